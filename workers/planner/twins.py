"""Twins of trainer, scorer, environment and carrier: they take declared time on a clock and do no arithmetic."""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.clock import Clock
from workers.contract.config import RunConfig
from workers.environments.base import Source
from workers.planner.costs import Costs
from workers.records import Batch, EngineStatus, Manifest, Prompt, Rollout, Sample, SampleRequest, StepResult, UpdateReport
from workers.requests import stream_key
from workers.rollout.base import Generator
from workers.scoring.base import unjudged


class EmulatedTrainer:
    """See `orchestration.base.TrainerClient`. `batches` holds what it was given, where `remembers`."""

    def __init__(self, clock: Clock, config: RunConfig, costs: Costs, remembers: bool = False) -> None:
        self._clock = clock
        self._config = config
        self._costs = costs
        self._remembers = remembers
        self.batches: list[Batch] = []

    async def train(self, batch: Batch) -> StepResult:
        tokens = sum(len(sample.rollout.token_ids) for group in batch.groups for sample in group.samples)
        seconds = self._costs.batch_s + self._costs.token_s * tokens * self._config.batch.epochs
        await self._clock.sleep(self._costs.message_s + seconds + self._costs.message_s)
        if self._remembers:
            self.batches.append(batch)
        return StepResult(batch.step, {"loss/policy": 0.0}, {}, {}, seconds=seconds)

    async def publish(self, version: int, receivers: list[str]) -> Manifest:
        await self._clock.sleep(self._costs.message_s + self._costs.export_s + self._costs.message_s)
        transport = self._config.transport
        digest = hashlib.sha256(f"{self._config.seed}/{version}".encode()).hexdigest()
        return Manifest(version, digest, self._costs.payload_bytes, transport.payload, transport.kind, {}, self._costs.export_s)

    async def checkpoint(self, folder: Path, restore: bool = False) -> dict[str, Any]:
        return {}

    async def interrupt(self) -> None:
        """Called on cancel; the flow cancels the sleeping call itself."""


class Carried:
    """An engine behind a carrier: every message takes `message_s` each way."""

    def __init__(self, engine: Generator, clock: Clock, message_s: float) -> None:
        self.engine = engine
        self._clock = clock
        self._message_s = message_s

    async def generate(self, request: SampleRequest) -> Rollout:
        await self._clock.sleep(self._message_s)
        rollout = await self.engine.generate(request)
        await self._clock.sleep(self._message_s)
        return rollout

    async def update(self, manifest: Manifest) -> UpdateReport:
        await self._clock.sleep(self._message_s)
        report = await self.engine.update(manifest)
        await self._clock.sleep(self._message_s)
        return report

    async def status(self) -> EngineStatus:
        return await self.engine.status()

    async def stop(self) -> None:
        await self.engine.stop()


class EmulatedScorer:
    """Rewards by `reward(rollout)`, None for a sample that cannot be scored; by default a coin that hangs on the sample's id.

    `seconds(rollout)`: what a judgement takes, the environment's own time before it included.
    """

    def __init__(
        self, clock: Clock, reward: Callable[[Rollout], float | None] | None = None, seconds: Callable[[Rollout], float] | None = None
    ) -> None:
        self._clock = clock
        self._reward = reward or coin
        self._seconds = seconds

    async def score(self, prompt: Prompt, rollout: Rollout) -> Sample:
        if self._seconds is not None:
            await self._clock.sleep(self._seconds(rollout))
        nothing = unjudged(rollout)
        if nothing is not None:
            return Sample(rollout, error=nothing)
        reward = self._reward(rollout)
        return Sample(rollout, error="the verifier raised") if reward is None else Sample(rollout, text="x", reward=reward)


def coin(rollout: Rollout) -> float:
    return float(random.Random(rollout.id).random() < 0.5)


def spread_lengths(seed: int, shortest: int, longest: int) -> Callable[[SampleRequest], int]:
    """Completion lengths between two bounds, evenly spread over their logarithm: a long tail. They hang on the sample's key alone."""

    def length(request: SampleRequest) -> int:
        share = stream_key(seed, "length", request.key) / 2**63
        return round(shortest * math.exp(share * math.log(longest / shortest)))

    return length


class CountingSource:
    """Prompts without end. Each is a line of its own."""

    def __init__(self, prompt_tokens: int = 3) -> None:
        self.index = -1
        self.passed_over = self.let_through = 0
        self._ids = [1] * prompt_tokens

    def next(self) -> Prompt:
        self.index += 1
        return Prompt(f"p:{self.index}", self.index, f"question {self.index}", self._ids)

    def observe(self, prompt: Prompt, rewards: list[float]) -> None:
        """Nothing is learnt of it: prompts come as they are counted."""

    def state(self) -> dict[str, Any]:
        return {"index": self.index}

    def restore(self, state: dict[str, Any]) -> None:
        self.index = state["index"]


@dataclass
class EmulatedEnvironment:
    """See `environments.base.Environment`: questions that nobody reads."""

    source: Source = field(default_factory=CountingSource)
    evaluation_prompts: list[Prompt] = field(default_factory=lambda: [Prompt("p:eval:0", 0, "held out", [1, 2])])
    stop_ids: list[int] = field(default_factory=lambda: [0])
    template_hash: str = "emulated"
    data_digest: str = "emulated"

    def decode(self, ids: list[int]) -> str:
        return "x" * len(ids)

    def tokens(self, ids: list[int]) -> list[str]:
        return ["x"] * len(ids)

    def verify(self, prompt: Prompt, text: str) -> tuple[float, str | None]:
        return 0.0, None

    def provenance(self) -> dict[str, Any]:
        return {}
