"""From a batch of groups to what the trainer computes on: advantages, and the completions that have loss tokens."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from workers.axes.backend.layout import Item
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.learn.advantages import ADVANTAGES
from workers.learn.aggregation import Denominators
from workers.records import Batch, Sample


@dataclass(frozen=True)
class Prepared:
    """groups: the items of each group, in the batch's order; scored: samples with a reward, masked ones included, by group."""

    groups: list[list[Item]]
    scored: list[int]
    advantages: dict[str, float]

    def denominators(self, chosen: list[int], max_tokens: int) -> Denominators:
        """Of one optimizer step on the groups `chosen`."""
        items = [item for number in chosen for item in self.groups[number]]
        return Denominators(
            tokens=sum(len(item.tokens) for item in items),
            sequences=len(items),
            samples=sum(self.scored[number] for number in chosen),
            max_tokens=max_tokens,
        )


def prepare(batch: Batch, config: RunConfig) -> Prepared:
    """Called at the start of each batch. A sample without a reward is neither compared nor trained; a truncated one is compared,
    but has no loss tokens where `rewards.on_truncated` is mask."""
    numbered = [(number, sample) for number, group in enumerate(batch.groups) for sample in group.samples]
    rewards = torch.tensor([math.nan if sample.reward is None else sample.reward for _, sample in numbered], dtype=torch.float64)
    valid = torch.tensor([sample.reward is not None for _, sample in numbered], dtype=torch.bool)
    members = torch.tensor([number for number, _ in numbered])
    values = ADVANTAGES[config.loss.advantage](rewards, members, valid, config.loss.advantage_eps).tolist()
    groups: list[list[Item]] = [[] for _ in batch.groups]
    scored = [0] * len(batch.groups)
    advantages: dict[str, float] = {}
    index = 0
    for (number, sample), advantage in zip(numbered, values, strict=True):
        if sample.reward is None:
            continue
        scored[number] += 1
        advantages[sample.rollout.id] = advantage
        if sample.truncated and config.rewards.on_truncated == "mask":
            continue
        _check(sample)
        groups[number].append(
            Item(
                id=sample.rollout.id,
                index=index,
                prompt=batch.groups[number].prompt.token_ids,
                tokens=sample.rollout.token_ids,
                rollout=sample.rollout.logprobs,
                advantage=advantage,
            )
        )
        index += 1
    return Prepared(groups, scored, advantages)


def _check(sample: Sample) -> None:
    rollout = sample.rollout
    if not rollout.token_ids or len(rollout.token_ids) != len(rollout.logprobs):
        raise EngineError(
            f"a rollout with {len(rollout.token_ids)} tokens and {len(rollout.logprobs)} log-probs cannot be trained",
            field="rollout",
            value=rollout.id,
            cure="this is a fault of the engine: report it with the run's log",
        )
