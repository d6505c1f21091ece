"""The inference pool as the flow sees it: routing, one retry for a dead engine, and each engine's lane in the time ledger."""

from __future__ import annotations

import asyncio
import math
from collections import defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Literal, TypeVar
from zlib import crc32

from workers.axes.orchestration.watch import answered, silence
from workers.axes.orchestration.wire import copy_of
from workers.contract.errors import EngineError
from workers.ledger import TimeLedger
from workers.loads import Loads
from workers.recall import Call
from workers.records import EngineStatus, FinishReason, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.base import Generator

# "slots_full" and "enough" are no waits: the engines are busy, or what is under way suffices for the rest of the run.
Blocked = Literal["wait_buffer_full", "wait_depth_bound", "wait_sync", "slots_full", "enough", "paused"]
STATUS_PATIENCE_S = 30.0
_WAITS = ("wait_buffer_full", "wait_depth_bound", "wait_sync", "enough")
T = TypeVar("T")


class Pool:
    """The living engines by lane name. `blocked` says why nothing is being dispatched, None while dispatch is open.

    `on_lost(name, error)` is told once of each engine that leaves, before the error of the last one is raised.
    """

    def __init__(
        self,
        engines: dict[str, Generator],
        slots: int,
        time: TimeLedger,
        on_lost: Callable[[str, EngineError], None] | None = None,
        route: str = "least_tokens",
        deadline_s: float | None = None,
    ) -> None:
        self.engines = dict(engines)
        self.versions = dict.fromkeys(engines, 0)
        self.statuses: dict[str, EngineStatus] = {}
        self._slots_each = slots
        self._time = time
        self._on_lost = on_lost
        self._route = route
        self._deadline_s = deadline_s
        self._down: dict[str, EngineError] = {}
        self._calls: dict[str, set[Call]] = {name: set() for name in engines}
        self._last_loss: EngineError | None = None
        self._loads = Loads(engines)  # of both purposes
        self._train: dict[str, int] = defaultdict(int)
        self._evaluation: dict[str, int] = defaultdict(int)
        self._loose = dict.fromkeys(engines)  # engines whose cause hangs on why dispatch is blocked: idle, or under half full
        half = math.ceil(slots / 2)
        self._turns = {0, 1, half - 1, half}  # of an engine's samples of one purpose: where its cause may change as one comes or goes
        self._blocked: Blocked | None = None
        self._held = False

    @property
    def slots(self) -> int:
        """Of the living engines together."""
        return self._slots_each * len(self.engines)

    def lost(self, name: str, error: EngineError) -> None:
        """Called when an engine is dead or silent: it leaves the routing, its calls fail, and what they were to do is done elsewhere.

        Called again for the same engine it does nothing. Raises `error` where no engine is left.
        """
        if self.engines.pop(name, None) is None:
            return
        self._last_loss = error
        self.versions.pop(name, None)
        if name in self.statuses:  # its totals stay, so that sums over the pool never fall
            self.statuses[name] = replace(self.statuses[name], running=0, waiting=0, slots=0, rss=0)
        self._time.set(name, {"down"})
        self._loose.pop(name, None)
        self._loads.leave(name)
        self._down[name] = error
        for call in list(self._calls.pop(name, ())):
            call.take_back()
        if self._on_lost is not None:
            self._on_lost(name, error)
        if not self.engines:
            raise copy_of(error)

    async def generate(self, request: SampleRequest) -> Rollout:
        """Routes to the engine that parked the sample, else as `rollout.route` says.

        A request is dispatched again when its engine dies, and once when a living engine fails it; never twice to the same.
        One that is not answered within the deadline is taken back, and one that living engines fail is given up: its rollout ended by
        "deadline" or "failed" and has no tokens. Raises EngineError where no engine is left.
        """
        tried: set[str] = set()
        refused = 0
        while True:
            name = self._choose(request, tried)
            tried.add(name)
            try:
                return await self._generate_on(name, request)
            except TimeoutError:
                return _nothing(request, "deadline", name, seconds=self._deadline_s or 0.0)
            except EngineError as error:
                refused += await self._lives(name, error)
                if self.engines and (refused > 1 or not self.engines.keys() - tried):
                    return _nothing(request, "failed", name, error=str(error))

    async def update(self, manifest: Manifest) -> dict[str, UpdateReport]:
        """Hands a new version to every engine at once; returns when all living ones serve it. The digest must agree on each."""
        reports: dict[str, UpdateReport] = {}

        async def one(name: str, engine: Generator) -> None:
            try:
                report = await self._until_down(name, engine.update(manifest))
            except EngineError as error:
                if await self._lives(name, error):
                    raise
                return
            if report.digest != manifest.digest or report.version != manifest.version:
                raise EngineError(
                    f"engine {name} took version {report.version} with another digest than was published",
                    field="sync.digest",
                    value=report.digest[:16],
                    cure="the old version still serves; see the trainer's log",
                )
            if name in self.engines:
                self.versions[name] = report.version
                self._time.shift(name, "generate", "sync_pause", report.pause_s)
                reports[name] = report

        await asyncio.gather(*(one(name, engine) for name, engine in list(self.engines.items())))
        if not reports:
            raise self._none_left()
        return {name: reports[name] for name in sorted(reports)}

    async def refresh(self) -> None:
        """Called about once a second: each engine's load and version. One that fails or is silent is lost; raises for the last."""
        await asyncio.gather(*(self._look_at(name) for name in list(self.engines)))

    def block(self, reason: Blocked | None) -> None:
        if reason != self._blocked:
            self._blocked = reason
            for name in list(self._loose):
                self._retime(name)

    def hold(self, held: bool) -> None:
        """Called when the run pauses and when it goes on: meanwhile every engine's time is charged to the pause."""
        self._held = held
        for name in self.engines:
            self._retime(name)

    @property
    def blocked(self) -> Blocked | None:
        return self._blocked

    async def _look_at(self, name: str) -> None:
        engine = self.engines.get(name)
        if engine is None:  # lost since the round began
            return
        try:
            status = await answered(self._until_down(name, engine.status()), STATUS_PATIENCE_S)
        except TimeoutError:
            self.lost(name, silence(name, getattr(engine, "pid", None), STATUS_PATIENCE_S))
        except EngineError as error:
            self.lost(name, error)
        else:
            if name in self.engines:
                self.statuses[name] = status

    async def _lives(self, name: str, error: EngineError) -> bool:
        """After a failed call: whether the engine still answers. One that does not is lost, for this reason; raises for the last."""
        engine = self.engines.get(name)
        if engine is None:
            return False
        try:
            await answered(self._until_down(name, engine.status()), STATUS_PATIENCE_S)
        except (EngineError, TimeoutError):
            self.lost(name, error)
        return name in self.engines

    async def _until_down(self, name: str, call: Awaitable[T], patience_s: float | None = None) -> T:
        """A call's result. Raises EngineError as soon as its engine is lost: a process that hangs never answers. Raises TimeoutError
        after `patience_s`, where that is given. In both cases the call is taken back."""
        patience = None if patience_s is None else asyncio.timeout(patience_s)
        try:
            with Call(self._calls.setdefault(name, set())) as taken:
                if name in self._down:
                    asyncio.get_running_loop().call_soon(taken.take_back)
                if patience is None:
                    return await call
                async with patience:
                    return await call
        except Exception:
            if name in self._down:
                raise copy_of(self._down[name]) from None
            if patience is not None and patience.expired():  # whatever taking it back raised
                raise TimeoutError from None
            raise

    async def _generate_on(self, name: str, request: SampleRequest) -> Rollout:
        counter = self._evaluation if request.purpose == "evaluation" else self._train
        self._count(name, counter, 1)
        try:
            return await self._until_down(name, self.engines[name].generate(request), self._deadline_s)
        finally:
            self._count(name, counter, -1)

    def _count(self, name: str, counter: dict[str, int], change: int) -> None:
        counter[name] += change
        if name in self.engines:
            self._loads.change(name, change)
            if counter[name] in self._turns:
                self._retime(name)

    def _choose(self, request: SampleRequest, avoid: set[str]) -> str:
        names = [name for name in self.engines if name not in avoid] if avoid else self.engines
        if not names:
            raise self._none_left()
        if request.parked_on in names:
            return request.parked_on
        if self._route == "prefix":
            return list(names)[crc32(request.group_id.encode()) % len(names)]
        if avoid:
            return min(names, key=self._loads.__getitem__)
        return self._loads.least()

    def _none_left(self) -> EngineError:
        if self._last_loss is not None:
            return copy_of(self._last_loss)
        return EngineError("there is no engine", field="rollout.engines", value=0, cure="set it to at least 1")

    def _retime(self, name: str) -> None:
        """What this engine's time is charged to from now on."""
        training = self._train[name]
        under_half = training < self._slots_each / 2
        if under_half:
            self._loose[name] = None
        else:
            self._loose.pop(name, None)
        causes: set[str] = {"paused"} if self._held else set()
        if self._evaluation[name]:
            causes.add("evaluation")
        if training:
            causes.add("generate")
            if under_half and self._blocked in _WAITS:
                causes.add("straggler_tail")
        if not causes:
            causes.add(self._blocked if self._blocked in ("wait_buffer_full", "wait_depth_bound", "wait_sync", "paused") else "idle")
        self._time.set(name, causes)


def _nothing(request: SampleRequest, ended: FinishReason, engine: str, *, seconds: float = 0.0, error: str = "") -> Rollout:
    return Rollout(request.id, request.group_id, request.index, [], [], [], ended, engine=engine, seconds=seconds, error=error)
