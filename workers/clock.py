"""Time, as the flow sees it. The flow awaits only doors and this clock; on a virtual clock it simulates, on the wall clock it trains."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections.abc import Coroutine
from typing import Any, Protocol, TypeVar

T = TypeVar("T")


class Clock(Protocol):
    """`now` is for durations and ledgers, `stamp` for events (Unix seconds)."""

    def now(self) -> float: ...

    def stamp(self) -> float: ...

    async def sleep(self, seconds: float) -> None: ...


class WallClock:
    """Real time: durations are monotonic, stamps are Unix time."""

    def now(self) -> float:
        return time.monotonic()

    def stamp(self) -> float:
        return time.time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class VirtualClock:
    """Simulated time: the time of the loop it is made on, which jumps to the next timer. Stamps begin at 0."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()

    def now(self) -> float:
        return self._loop.time()

    def stamp(self) -> float:
        return self.now()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class _NoIO(selectors.BaseSelector):
    """A selector that never waits: it advances the loop's clock by the time it was asked to wait."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._map: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        # The loop registers its own wake-up pipe once; anything else would be real I/O.
        if self._map:
            raise RuntimeError("real I/O on the virtual clock: only emulated kinds may run here")
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._map[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("deadlock on the virtual clock: every task waits and no timer is set")
        self._loop.advance(timeout)
        return []

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._map


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer. Deterministic: ready callbacks run in order."""

    def __init__(self) -> None:
        self._virtual_now = 0.0
        super().__init__(_NoIO(self))

    def time(self) -> float:
        return self._virtual_now

    def advance(self, seconds: float) -> None:
        self._virtual_now += max(0.0, seconds)


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on simulated time and returns its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
