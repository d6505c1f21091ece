"""The inference pool as the flow sees it: routing, one retry for a dead engine, and each engine's lane in the time ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Literal

from workers.contract.errors import EngineError
from workers.ledger import TimeLedger
from workers.records import EngineStatus, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.base import Generator

# "slots_full" and "enough" are no waits: the engines are busy, or what is under way suffices for the rest of the run.
Blocked = Literal["wait_buffer_full", "wait_depth_bound", "slots_full", "enough"]
_WAITS = ("wait_buffer_full", "wait_depth_bound", "enough")


class Pool:
    """Engines by lane name. `blocked` says why nothing is being dispatched, None while dispatch is open."""

    def __init__(self, engines: dict[str, Generator], slots: int, time: TimeLedger) -> None:
        self.engines = engines
        self.slots = slots * len(engines)
        self.versions = dict.fromkeys(engines, 0)
        self.statuses: dict[str, EngineStatus] = {}
        self._slots_each = slots
        self._time = time
        self._train: Counter[str] = Counter()
        self._evaluation: Counter[str] = Counter()
        self._blocked: Blocked | None = None

    @property
    def in_flight(self) -> int:
        return self._train.total()

    async def generate(self, request: SampleRequest) -> Rollout:
        """Routes to the engine with the least work; an engine that fails has its request dispatched once more, elsewhere if it can."""
        first = self._choose(None)
        try:
            return await self._generate_on(first, request)
        except EngineError:
            if len(self.engines) == 1:
                raise
            return await self._generate_on(self._choose(first), request)

    async def update(self, manifest: Manifest) -> dict[str, UpdateReport]:
        """Hands a new version to every engine at once; returns when all serve it. The digest must agree on each."""

        async def one(name: str, engine: Generator) -> UpdateReport:
            report = await engine.update(manifest)
            if report.digest != manifest.digest or report.version != manifest.version:
                raise EngineError(
                    f"engine {name} took version {report.version} with another digest than was published",
                    field="sync.digest",
                    value=report.digest[:16],
                    cure="the old version still serves; see the trainer's log",
                )
            self.versions[name] = report.version
            self._time.shift(name, "generate", "sync_pause", report.pause_s)
            return report

        reports = await asyncio.gather(*(one(name, engine) for name, engine in self.engines.items()))
        return dict(zip(self.engines, reports, strict=True))

    async def refresh(self) -> None:
        """Called about once a second: each engine's load and version."""
        reports = await asyncio.gather(*(engine.status() for engine in self.engines.values()))
        self.statuses = dict(zip(self.engines, reports, strict=True))

    def block(self, reason: Blocked | None) -> None:
        if reason != self._blocked:
            self._blocked = reason
            self._retime()

    @property
    def blocked(self) -> Blocked | None:
        return self._blocked

    async def _generate_on(self, name: str, request: SampleRequest) -> Rollout:
        counter = self._evaluation if request.purpose == "evaluation" else self._train
        counter[name] += 1
        self._retime()
        try:
            return await self.engines[name].generate(request)
        finally:
            counter[name] -= 1
            self._retime()

    def _choose(self, avoid: str | None) -> str:
        names = [name for name in self.engines if name != avoid]
        return min(names, key=lambda name: self._train[name] + self._evaluation[name])

    def _retime(self) -> None:
        for name in self.engines:
            causes: set[str] = set()
            if self._evaluation[name]:
                causes.add("evaluation")
            if self._train[name]:
                causes.add("generate")
                if self._blocked in _WAITS and self._train[name] < self._slots_each / 2:
                    causes.add("straggler_tail")
            if not causes:
                causes.add(self._blocked if self._blocked in ("wait_buffer_full", "wait_depth_bound") else "idle")
            self._time.set(name, causes)
