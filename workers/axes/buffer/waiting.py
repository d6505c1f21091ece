"""What buffers are made of: groups that wait in an order, and tasks that wait for their turn."""

from __future__ import annotations

import asyncio
import heapq
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from workers.contract.axes import BufferOrder, BufferUnit
from workers.contract.errors import EngineError
from workers.records import Group


def rank(group: Group, order: BufferOrder) -> tuple[int, str]:
    """Sorts first what the trainer is to take next; equal ranks go by arrival."""
    if order == "dispatch_order":
        return len(group.id), group.id  # "g9" before "g10"
    if order == "oldest_version":
        return group.oldest_version, ""
    if order == "newest_version":
        return -group.oldest_version, ""
    return 0, ""


def units(group: Group, unit: BufferUnit) -> int:
    """What a group counts for."""
    return 1 if unit == "group" else len(group.samples)


class WaitingGroups:
    """Groups in order of arrival, given out by `order`. `units` is what they count for together, as weighed on arrival."""

    def __init__(self, order: BufferOrder, unit: BufferUnit) -> None:
        self._order = order
        self._unit = unit
        self._arrivals = 0
        self._held: dict[int, tuple[Group, int]] = {}  # by arrival
        self._heap: list[tuple[tuple[int, str], int]] = []  # (rank, arrival); may name arrivals that have left by `oldest`
        self.units = 0

    def __len__(self) -> int:
        return len(self._held)

    def add(self, group: Group) -> None:
        weight = units(group, self._unit)
        self._held[self._arrivals] = (group, weight)
        heapq.heappush(self._heap, (rank(group, self._order), self._arrivals))
        self._arrivals += 1
        self.units += weight

    def next(self) -> Group:
        """Removes and returns the first by order. There must be one."""
        while True:
            _, arrival = heapq.heappop(self._heap)
            if arrival in self._held:
                return self._leave(arrival)

    def oldest(self) -> Group:
        """Removes and returns the one that has waited longest. There must be one."""
        group = self._leave(next(iter(self._held)))
        if len(self._heap) > 2 * len(self._held) + 16:
            self._heap = [entry for entry in self._heap if entry[1] in self._held]
            heapq.heapify(self._heap)
        return group

    def contents(self) -> list[Group]:
        return [group for group, _ in self._held.values()]

    def _leave(self, arrival: int) -> Group:
        group, weight = self._held.pop(arrival)
        self.units -= weight
        return group


@dataclass(eq=False)
class _Place:
    ready: Callable[[], bool]
    called: asyncio.Future[None] | None = None


class Line:
    """Tasks that wait until something is so; first come, first served. Whoever may have made it so calls `wake`."""

    def __init__(self) -> None:
        self._places: deque[_Place] = deque()

    async def turn(self, ready: Callable[[], bool]) -> None:
        """Returns when this task is the first in line and `ready()` holds. The caller then acts before it awaits anything."""
        if not self._places and ready():
            return
        loop, place = asyncio.get_running_loop(), _Place(ready)
        self._places.append(place)
        try:
            # A place is kept until its task really runs, so that nobody who comes in between overtakes it.
            while self._places[0] is not place or not ready():
                place.called = loop.create_future()
                await place.called
        finally:
            self._places.remove(place)
            loop.call_soon(self.wake)  # the next in line, once this one has acted or given up

    def wake(self) -> None:
        if self._places:
            first = self._places[0]
            if first.called is not None and not first.called.done() and first.ready():
                first.called.set_result(None)


class Store(ABC):
    """What all buffers that hold groups share. Subclasses say whether a group may come in, and which one leaves next."""

    def __init__(self) -> None:
        self._putters = Line()
        self._takers = Line()

    async def put(self, group: Group) -> list[Group]:
        await self._putters.turn(lambda: self._fits(group))
        gone = self._add(group)
        self._takers.wake()
        return gone

    async def take(self) -> Group:
        await self._takers.turn(self._any)
        group = self._next()
        self._putters.wake()
        return group

    @abstractmethod
    def _any(self) -> bool: ...

    @abstractmethod
    def _fits(self, group: Group) -> bool: ...

    @abstractmethod
    def _add(self, group: Group) -> list[Group]:
        """Takes in a group that fits; returns those that went for it."""

    @abstractmethod
    def _next(self) -> Group:
        """Removes and returns the next group. There is one."""


def too_many(held: int, bound: int, unit: BufferUnit, field: str) -> EngineError:
    """The error of a restore that would break the bound."""
    return EngineError(
        f"the saved buffer holds {held} {unit}s, more than its bound", field=field, value=bound, cure=f"at least {held}, as in the run"
    )
