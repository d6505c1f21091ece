"""Time, as the flow sees it. The flow awaits only doors and this clock; on a virtual clock it simulates, on the wall clock it trains."""

from __future__ import annotations

import asyncio
import selectors
import time
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, copy_context
from heapq import heapify, heappop, heappush
from typing import Any, Protocol, TypeVar, TypeVarTuple

T = TypeVar("T")
Ts = TypeVarTuple("Ts")
MOST_CANCELLED = 100  # timers that are kept for nothing


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
    """A selector that watches nothing. The loop registers its own wake-up pipe; anything else would be real I/O."""

    def __init__(self) -> None:
        self._map: dict[Any, selectors.SelectorKey] = {}

    def register(self, fileobj: Any, events: int, data: Any = None) -> selectors.SelectorKey:
        if self._map:
            raise RuntimeError("real I/O on the virtual clock: only emulated kinds may run here")
        key = selectors.SelectorKey(fileobj, 0, events, data)
        self._map[fileobj] = key
        return key

    def unregister(self, fileobj: Any) -> selectors.SelectorKey:
        return self._map.pop(fileobj)

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        return []

    def get_map(self) -> dict[Any, selectors.SelectorKey]:
        return self._map


class _Call(asyncio.TimerHandle):
    """A callback to be run. The base class keeps more, for a debugger; a simulated sample needs about six of these."""

    __slots__ = ("args", "at", "callback", "context", "loop", "over")

    def __init__(
        self, loop: VirtualLoop, when: float, callback: Callable[..., object], args: tuple[Any, ...], context: Context | None
    ) -> None:
        self.loop = loop
        self.at = when
        self.callback = callback
        self.args = args
        self.context = copy_context() if context is None else context  # an empty one is false
        self.over = False

    def when(self) -> float:
        return self.at

    def cancel(self) -> None:
        if not self.over:
            self.over = True
            self.loop.one_cancelled()

    def cancelled(self) -> bool:
        return self.over


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next timer. Deterministic: what is ready runs in order, timers of one instant as they were set.

    Raises RuntimeError for real I/O, and where every task waits and no timer is set.
    """

    def __init__(self) -> None:
        self._cancelled = 0  # calls that may still be among the timers
        self._now = 0.0
        self._soon: deque[_Call] = deque()
        self._timers: list[tuple[float, int, _Call]] = []
        self._timers_set = 0
        self._runs = self._ends = False
        super().__init__(_NoIO())

    def time(self) -> float:
        return self._now

    def call_soon(self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        call = _Call(self, self._now, callback, args, context)
        self._soon.append(call)
        return call

    def call_at(self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None) -> asyncio.TimerHandle:
        call = _Call(self, when, callback, args, context)
        self._timers_set += 1
        heappush(self._timers, (when, self._timers_set, call))
        return call

    def call_later(
        self, delay: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def one_cancelled(self) -> None:
        self._cancelled += 1
        if self._cancelled > MOST_CANCELLED + len(self._timers) // 2:
            self._timers[:] = [entry for entry in self._timers if not entry[2].over]
            heapify(self._timers)
            self._cancelled = 0

    def create_task(self, coro: Any, *, name: object = None, context: Context | None = None) -> asyncio.Task[Any]:
        return asyncio.Task(coro, loop=self, name=None if name is None else str(name), context=context)

    def is_running(self) -> bool:
        return self._runs

    def stop(self) -> None:
        self._ends = True

    def run_forever(self) -> None:
        soon, timers = self._soon, self._timers
        asyncio._set_running_loop(self)
        self._runs, self._ends = True, False
        try:
            while not self._ends:
                if not soon or (timers and timers[0][0] <= self._now):
                    self._due()
                for _ in range(len(soon)):
                    call = soon.popleft()
                    if call.over:
                        continue
                    try:
                        call.context.run(call.callback, *call.args)
                    except (SystemExit, KeyboardInterrupt):
                        raise
                    except BaseException as error:
                        self.call_exception_handler({"message": f"{call.callback} raised", "exception": error})
        finally:
            self._runs = False
            asyncio._set_running_loop(None)

    def _due(self) -> None:
        """Makes ready the timers of this instant or, where nothing else is, those of the next one, to which time jumps."""
        timers, soon = self._timers, self._soon
        while timers and (timers[0][0] <= self._now or not soon):
            when, _, call = heappop(timers)
            if not call.over:
                self._now = max(self._now, when)
                soon.append(call)
        if not soon:
            raise RuntimeError("deadlock on the virtual clock: every task waits and no timer is set")


def run_virtual(main: Coroutine[Any, Any, T]) -> T:
    """Runs a coroutine on simulated time and returns its result."""
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(main)
