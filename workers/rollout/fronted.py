"""A queue of our own before an engine that schedules by itself: vLLM, or a server of others.

What waits for a slot waits here, so that evaluation goes before training, interrupts see who runs and who waits, and whoever is
admitted after a change is computed under the new weights alone.
"""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Generic, TypeVar

from workers import registry
from workers.axes.transport.base import Transport
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.records import Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.answers import refuse_older, settle
from workers.rollout.torch.recording import begin
from workers.rollout.torch.scheduler import Scheduler, Sequence, check_request


@dataclass(slots=True)
class FrontedChange:
    """One weight change as the interrupt sees it: an `Interruptible` over the samples that were given to the engine behind. What it
    asks for is noted, and done while that engine stands still.

    held: no waiting request is admitted; aborting: running and waiting requests end; busy: whether a sample ran since the
    announcement; first_arrival: when the first request that this change may keep waiting came.
    """

    scheduler: Scheduler
    held: bool = False
    aborting: bool = False
    busy: bool = False
    first_arrival: float | None = None

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return self.scheduler.waiting

    def hold_admission(self) -> None:
        self.held = True

    def abort(self) -> None:
        self.aborting = True

    def arrived(self) -> None:
        """Called when a request comes during the change."""
        if self.first_arrival is None:
            self.first_arrival = time.perf_counter()


C = TypeVar("C", bound=FrontedChange)


class Fronted(ABC, Generic[C]):
    """The half of `workers.rollout.base.Generator` that does not depend on the engine behind. Used from one event loop."""

    def __init__(self, config: RunConfig, name: str, transport: Transport) -> None:
        self._name = name
        self._transport = transport
        self._interrupt = registry.resolve("interrupt", config.interrupt.kind)(config.interrupt.kv_after)
        self._replay = config.replay
        self._scheduler = Scheduler(config.rollout.max_running)
        self._tasks: dict[int, asyncio.Task[None]] = {}  # by arrival, of the samples given to the engine behind
        self._version = 0
        self._change: C | None = None
        self._closed = False  # nothing is given to the engine behind until the new weights serve
        self._stopped = False
        self._left = asyncio.Event()  # a sample left slot or queue
        self._updating = asyncio.Lock()

    async def generate(self, request: SampleRequest) -> Rollout:
        self._check()
        check_request(request, *self._bounds())
        answered: asyncio.Future[Rollout] = asyncio.get_running_loop().create_future()
        sequence = Sequence(request, lambda answer: settle(answered, answer))
        begin(sequence, self._replay)
        if sequence.ended is not None:  # the prefix is complete
            return sequence.rollout(self._name)
        await self._ready()
        self._scheduler.submit(sequence)
        if self._change is not None:
            self._change.arrived()
        self._admit()
        try:
            return await answered
        except asyncio.CancelledError:
            sequence.cancelled = True
            self._scheduler.forget_cancelled()
            if sequence.arrival in self._tasks:
                self._tasks[sequence.arrival].cancel()
            self._left.set()
            raise

    async def update(self, manifest: Manifest) -> UpdateReport:
        """See `_put_in` for what the report's times hold. One update at a time; others wait here."""
        async with self._updating:
            self._check()
            refuse_older(manifest, self._version)
            self._change = change = self._new_change()
            try:
                return await self._put_in(manifest, change)
            finally:
                await asyncio.shield(self._release())

    def _admit(self) -> None:
        """Fills free slots, unless a change holds them."""
        if self._closed or (self._change is not None and self._change.held):
            return
        for sequence in self._scheduler.admit():
            self._tasks[sequence.arrival] = asyncio.create_task(self._run(sequence))
            self._admitted()

    async def _room_made(self, change: C) -> None:
        """Returns when the interrupt has made room for the new weights."""
        change.busy = change.running > 0
        while not self._interrupt.announced(change):
            self._left.clear()
            await self._left.wait()
            self._check()

    def _answer_waiting(self) -> None:
        """At the end: samples go out with the tokens they have; those that have none are refused."""
        for sequence in self._scheduler.empty():
            sequence.answer(sequence.rollout(self._name) if sequence.tokens else self._over())
        self._left.set()

    def _check(self) -> None:
        """Raises EngineError where nothing can be served any more."""
        if self._stopped:
            raise EngineError("the engine has stopped", field="rollout", value=self._name, cure="start a new one")

    def _over(self) -> EngineError:
        return EngineError("the engine was stopped", field="rollout", value=self._name, cure="dispatch the request again", retryable=True)

    async def _ready(self) -> None:
        """Called before each request is queued."""

    def _admitted(self) -> None:
        """Called after each sample that was given to the engine behind."""

    @abstractmethod
    def _bounds(self) -> tuple[int, int]:
        """Vocabulary and positions of the model."""

    @abstractmethod
    def _new_change(self) -> C: ...

    @abstractmethod
    async def _run(self, sequence: Sequence) -> None:
        """One sample from slot to answer."""

    @abstractmethod
    async def _put_in(self, manifest: Manifest, change: C) -> UpdateReport:
        """From the announcement until the new version serves."""

    @abstractmethod
    async def _release(self) -> None:
        """The update is over, or its weights did not come: whatever it held up goes on."""
