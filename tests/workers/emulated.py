"""Engines and trainers that take declared time on a clock and do no arithmetic: the flow's test rig."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.clock import Clock, VirtualClock
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.records import Batch, EngineStatus, Group, Manifest, Prompt, Rollout, Sample, SampleRequest, StepResult, UpdateReport


class EmulatedGenerator:
    """Every token takes `token_s`; at most `slots` requests run; versions are flipped between two tokens."""

    def __init__(self, clock: Clock, *, slots: int = 64, token_s: float = 0.05, lengths: Callable[[str], int] = lambda _: 10) -> None:
        self._clock = clock
        self._token_s = token_s
        self._lengths = lengths
        self._slots = asyncio.Semaphore(slots)
        self.slots = slots
        self.version = 0
        self.running = 0
        self.tokens = 0
        self.fail_next = 0
        self.wrong_digest = False

    async def generate(self, request: SampleRequest) -> Rollout:
        async with self._slots:
            if self.fail_next:
                self.fail_next -= 1
                raise EngineError("the emulated engine fell over")
            self.running += 1
            versions = []
            for _ in range(self._lengths(request.id)):
                versions.append(self.version)
                await self._clock.sleep(self._token_s)
                self.tokens += 1
            self.running -= 1
        return Rollout(request.id, request.group_id, request.index, [1] * len(versions), [-1.0] * len(versions), versions, "stop")

    async def update(self, manifest: Manifest) -> UpdateReport:
        await self._clock.sleep(0.01)
        if not self.wrong_digest:
            self.version = manifest.version
        return UpdateReport(manifest.version, "wrong" if self.wrong_digest else manifest.digest, 0.01, 0.0, 0.001)

    async def status(self) -> EngineStatus:
        return EngineStatus(self.version, self.running, 0, self.slots, self.tokens, 0.0, 1)

    async def stop(self) -> None: ...


class EmulatedTrainer:
    """Every batch takes `train_s`; remembers what it was given."""

    def __init__(self, clock: Clock, *, train_s: float = 1.0) -> None:
        self._clock = clock
        self._train_s = train_s
        self.batches: list[Batch] = []

    async def train(self, batch: Batch) -> StepResult:
        await self._clock.sleep(self._train_s)
        self.batches.append(batch)
        return StepResult(batch.step, {"loss/policy": 0.0}, {}, {}, seconds=self._train_s)

    async def publish(self, version: int, receivers: list[str]) -> Manifest:
        await self._clock.sleep(0.01)
        return Manifest(version, f"digest-{version}", 1000, "adapter", "emulated", {}, 0.01)

    async def checkpoint(self, folder: Path, restore: bool = False) -> dict[str, Any]:
        return {}

    async def interrupt(self) -> None: ...


class InlineScorer:
    """Rewards by a seeded coin; ids in `failing` cannot be scored."""

    def __init__(self, failing: set[str] | None = None, constant: float | None = None) -> None:
        self._failing = failing or set()
        self._constant = constant

    async def score(self, prompt: Prompt, rollout: Rollout) -> Sample:
        if rollout.id in self._failing:
            return Sample(rollout, error="the verifier raised")
        reward = self._constant if self._constant is not None else float(random.Random(rollout.id).random() < 0.5)
        return Sample(rollout, text="x", reward=reward)


class CountingSource:
    def __init__(self) -> None:
        self.index = -1
        self.passed_over = 0

    def next(self) -> Prompt:
        self.index += 1
        return Prompt(f"p:{self.index}", self.index, f"question {self.index}", [1, 2, 3])

    def observe(self, prompt: Prompt, rewards: list[float]) -> None: ...

    def state(self) -> dict[str, Any]:
        return {"index": self.index}

    def restore(self, state: dict[str, Any]) -> None:
        self.index = state["index"]


@dataclass
class EmulatedEnvironment:
    source: CountingSource = field(default_factory=CountingSource)
    evaluation_prompts: list[Prompt] = field(default_factory=lambda: [Prompt("p:eval:0", 0, "held out", [1, 2])])
    stop_ids: list[int] = field(default_factory=lambda: [0])
    template_hash: str = "t"
    data_digest: str = "d"

    def decode(self, ids: list[int]) -> str:
        return "x" * len(ids)

    def tokens(self, ids: list[int]) -> list[str]:
        return ["x"] * len(ids)

    def verify(self, prompt: Prompt, text: str) -> tuple[float, str | None]:
        return 0.0, None

    def provenance(self) -> dict[str, Any]:
        return {}


class MemoryEmitter:
    """Collects events instead of spooling them."""

    def __init__(self) -> None:
        self.step = 0
        self.events: list[tuple[str, dict[str, Any]]] = []

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        self.events.append((kind, data))

    def metrics(self, values: dict[str, float]) -> None:
        self.emit("metrics", {"values": values})

    def log(self, level: str, message: str, source: str = "driver") -> None:
        self.emit("log", {"level": level, "message": message, "source": source})

    def phase(self, name: str, detail: str = "", done: float | None = None) -> None:
        self.emit("phase", {"name": name})

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [data for name, data in self.events if name == kind]


def rig(config: RunConfig, *, generators: int = 1, token_s: float = 0.05, train_s: float = 1.0, **options: Any) -> Any:
    """Parts for one pipeline on the running (virtual) loop. options: lengths, failing, constant."""
    from workers import registry
    from workers.ledger import SampleLedger, TimeLedger
    from workers.parts import Parts
    from workers.pool import Pool
    from workers.progress import Progress

    clock = VirtualClock()
    names = [f"generator/{index}" for index in range(generators)]
    time = TimeLedger(clock, [*names, "trainer"])
    lengths = options.get("lengths", lambda _: 10)
    engines = {name: EmulatedGenerator(clock, slots=config.rollout.max_running, token_s=token_s, lengths=lengths) for name in names}
    saved: list[dict[str, Group]] = []

    async def save(under_way: dict[str, Group]) -> None:
        saved.append(dict(under_way))

    parts = Parts(
        config=config,
        clock=clock,
        environment=EmulatedEnvironment(),
        scorer=InlineScorer(options.get("failing"), options.get("constant")),
        pool=Pool(engines, config.rollout.max_running, time),
        buffer=registry.resolve("buffer", config.buffer.kind)(config.buffer, config.batch.prompts),
        staleness=registry.resolve("staleness", config.staleness.over_limit)(config.staleness),
        partial=[registry.resolve("partial", kind)() for kind in config.partial],
        trainer=EmulatedTrainer(clock, train_s=train_s),
        emit=MemoryEmitter(),  # type: ignore[arg-type]
        samples=SampleLedger(),
        time=time,
        progress=Progress(),
        save=save,
    )
    return parts
