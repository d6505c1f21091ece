"""An engine that takes new weights by being stopped and started anew from their file; for transport `restart`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Protocol

from workers.axes.orchestration.wire import copy_of
from workers.contract.errors import EngineError
from workers.records import EngineStatus, Manifest, Rollout, SampleRequest, UpdateReport
from workers.rollout.base import Generator


class Renewable(Protocol):
    """The place of the engine's process."""

    @property
    def pid(self) -> int | None: ...

    async def respawn(self) -> None:
        """The old process ends, a new one has loaded its model. Raises EngineError where that fails: then the engine is lost."""
        ...

    def lose(self, error: Exception) -> EngineError:
        """The new process is of no use: it ends, and whoever watches is told."""
        ...


class RestartingGenerator:
    """`rollout.base.Generator` around another one, whose process `place` renews at every update.

    Requests that arrive meanwhile wait; those under way are finished by the old process first.
    """

    def __init__(self, engine: Generator, place: Renewable, now: Callable[[], float] = time.perf_counter) -> None:
        self._engine = engine
        self._place = place
        self._now = now
        self._serving = asyncio.Event()
        self._serving.set()
        self._idle = asyncio.Event()
        self._idle.set()
        self._updating = asyncio.Lock()
        self._running = 0
        self._waiting = 0
        self._before: EngineStatus | None = None  # totals of the processes that are gone
        self._away: EngineStatus | None = None  # the last word of the old process, while there is none that serves
        self._lost: EngineError | None = None

    @property
    def pid(self) -> int | None:
        return self._place.pid

    async def generate(self, request: SampleRequest) -> Rollout:
        self._waiting += 1
        try:
            while not self._serving.is_set():
                await self._serving.wait()
        finally:
            self._waiting -= 1
        self._check()
        self._running += 1
        self._idle.clear()
        try:
            return await self._engine.generate(request)
        finally:
            self._running -= 1
            if not self._running:
                self._idle.set()

    async def update(self, manifest: Manifest) -> UpdateReport:
        """Waits for what is under way, then changes the process. `pause_s` is the whole time in which nothing could decode."""
        async with self._updating:
            self._check()
            self._serving.clear()
            try:
                await self._idle.wait()
                began = self._now()
                self._away = await self.status()
                self._before = self._away
                await self._place.respawn()
                report = await self._first_weights(manifest)
                pause_s = self._now() - began
                return replace(report, apply_s=pause_s - report.transfer_s, pause_s=pause_s)
            except EngineError as error:
                self._lost = error
                raise
            finally:
                self._away = None
                self._serving.set()

    async def status(self) -> EngineStatus:
        self._check()
        before, seen = self._before, self._away
        try:
            status = seen or await self._engine.status()
        except EngineError:
            if self._away is None:
                raise
            status = seen = self._away  # the old process ended while it was asked
        if seen is not None:
            return replace(seen, running=0, waiting=self._waiting)
        status = replace(status, waiting=status.waiting + self._waiting)
        return status if before is None else _added(status, before)

    async def stop(self) -> None:
        await self._engine.stop()

    async def _first_weights(self, manifest: Manifest) -> UpdateReport:
        """A process that cannot take them serves the model before training: worse than none."""
        try:
            return await self._engine.update(manifest)
        except EngineError as error:
            self._place.lose(error)
            raise

    def _check(self) -> None:
        if self._lost is not None:
            raise copy_of(self._lost)


def _added(status: EngineStatus, before: EngineStatus) -> EngineStatus:
    """Totals go on over a restart."""
    return replace(
        status,
        generated_tokens=status.generated_tokens + before.generated_tokens,
        decode_s=status.decode_s + before.decode_s,
        decode_steps=status.decode_steps + before.decode_steps,
        longest_decode_s=max(status.longest_decode_s, before.longest_decode_s),
    )
