"""From a batch of groups to what the trainer computes on: advantages, and the completions that have loss tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor

from workers.axes.backend.layout import Item
from workers.axes.backend.routing import of_group
from workers.contract.config import Loss, RunConfig
from workers.contract.errors import EngineError
from workers.learn.advantages import ADVANTAGES, overlong
from workers.learn.aggregation import token_weights
from workers.records import Batch, Sample


@dataclass(frozen=True)
class Prepared:
    """groups: the items of each group, in the batch's order; scored: samples with a reward, masked ones included, by group;
    advantages: by sample id; versions: by item index, of each token; version: the one being trained."""

    groups: list[list[Item]]
    scored: list[int]
    advantages: dict[str, float]
    versions: dict[int, list[int]] = field(default_factory=dict)
    version: int = 0
    hidden: int = 0  # completion tokens of compared samples that have no loss

    @property
    def masked_share(self) -> float:
        """Completion tokens without loss, of all that are compared."""
        trained = self.tokens(list(range(len(self.groups))))
        return self.hidden / (self.hidden + trained) if self.hidden else 0.0

    def tokens(self, chosen: list[int]) -> int:
        """Loss tokens of the groups `chosen`."""
        return sum(len(item.tokens) for number in chosen for item in self.groups[number])

    def weights(self, chosen: list[int], loss: Loss, max_tokens: int, counted: Mapping[int, int] | None = None) -> dict[int, float]:
        """What one loss token of each item weighs in the optimizer step on the groups `chosen`, by item index.

        counted: tokens in the denominator by item index, where corrections took some out; else every loss token.
        """
        items = [(number, item) for number in chosen for item in self.groups[number]]
        hidden = [number for number in chosen for _ in range(self.scored[number] - len(self.groups[number]))]
        lengths = [len(item.tokens) if counted is None else counted[item.index] for _, item in items] + [0] * len(hidden)
        prompts = [number for number, _ in items] + hidden
        values = token_weights(torch.tensor(lengths), torch.tensor(prompts), loss.aggregation, max_tokens, loss.empty_samples)
        return {item.index: value for (_, item), value in zip(items, values.tolist(), strict=False)}


def prepare(batch: Batch, config: RunConfig) -> Prepared:
    """Called at the start of each batch. A sample without a reward is neither compared nor trained; a truncated one is compared,
    but has no loss tokens where `rewards.on_truncated` is mask."""
    numbered = [(number, sample) for number, group in enumerate(batch.groups) for sample in group.samples]
    hidden = [sample.truncated and config.rewards.on_truncated == "mask" for _, sample in numbered]
    values = _advantages([sample for _, sample in numbered], [number for number, _ in numbered], hidden, config)
    groups: list[list[Item]] = [[] for _ in batch.groups]
    scored = [0] * len(batch.groups)
    advantages: dict[str, float] = {}
    versions: dict[int, list[int]] = {}
    without_loss = 0
    for (number, sample), advantage, masked_out in zip(numbered, values.tolist(), hidden, strict=True):
        if sample.reward is None:
            continue
        scored[number] += 1
        advantages[sample.rollout.id] = advantage
        if masked_out:
            without_loss += len(sample.rollout.token_ids)
            continue
        _check(sample)
        index = len(versions)
        versions[index] = sample.rollout.versions
        groups[number].append(
            Item(
                id=sample.rollout.id,
                index=index,
                prompt=batch.groups[number].prompt.token_ids,
                tokens=sample.rollout.token_ids,
                rollout=sample.rollout.logprobs,
                advantage=advantage,
                support=sample.rollout.support if config.replay.sampling_mask else None,
            )
        )
    if config.replay.routing == "r3":
        rollouts = {sample.rollout.id: sample.rollout for _, sample in numbered}
        groups = [of_group(items, rollouts) for items in groups]
    return Prepared(groups, scored, advantages, versions, batch.version, without_loss)


def _advantages(samples: list[Sample], groups: list[int], hidden: list[bool], config: RunConfig) -> Tensor:
    """(B,) float64. Overlong shaping is put on here: the sample keeps the reward that its verifier gave."""
    loss, rewards = config.loss, config.rewards
    valid = torch.tensor([sample.reward is not None for sample in samples], dtype=torch.bool)
    scores = torch.tensor([math.nan if sample.reward is None else sample.reward for sample in samples], dtype=torch.float64)
    lengths = torch.tensor([len(sample.rollout.token_ids) for sample in samples], dtype=torch.int64)
    if rewards.on_truncated == "penalise":
        scores = scores + overlong(lengths, config.sampling.max_new_tokens, rewards.overlong_tokens)
    if loss.advantage != "opo":  # its baseline weighs by completion length, whitening by loss tokens
        lengths = torch.where(torch.tensor(hidden, dtype=torch.bool), torch.zeros_like(lengths), lengths)
    formula = ADVANTAGES[loss.advantage]
    return formula(scores, torch.tensor(groups, dtype=torch.int64), valid, lengths, loss.advantage_eps, loss.singletons)


def _check(sample: Sample) -> None:
    rollout = sample.rollout
    if not rollout.token_ids or not len(rollout.token_ids) == len(rollout.logprobs) == len(rollout.versions):
        raise EngineError(
            f"a rollout with {len(rollout.token_ids)} tokens, {len(rollout.logprobs)} log-probs and {len(rollout.versions)} versions"
            " cannot be trained",
            field="rollout",
            value=rollout.id,
            cure="this is a fault of the engine: report it with the run's log",
        )
