"""none: nothing waits inside; a finished group is handed straight to the trainer, or waits at its door."""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass, field

from workers.axes.buffer.waiting import rank
from workers.contract import config
from workers.records import Group


@dataclass(eq=False)
class _Offer:
    """A group at the door, still its putter's: it counts as under way, not as buffered."""

    group: Group
    invited: asyncio.Event = field(default_factory=asyncio.Event)


class NoBuffer:
    """A rendezvous: `put` returns when a taker has the group. `order` chooses among those at the door.

    The putter hands over, in the very moment in which its `put` returns. A taker that is cancelled in that moment leaves the group
    behind, for the next taker; only then, and after a resume from such a moment, do `contents` name any.
    """

    def __init__(self, options: config.Buffer, batch_groups: int) -> None:
        self.capacity: int | None = 0
        self._order = options.order
        self._offers: list[_Offer] = []  # in order of arrival
        self._takers: deque[asyncio.Future[Group]] = deque()
        self._left: deque[Group] = deque()

    async def put(self, group: Group) -> list[Group]:
        offer = _Offer(group)
        self._offers.append(offer)
        try:
            self._invite()
            while True:
                await offer.invited.wait()
                offer.invited.clear()
                if self._give(group):  # otherwise the taker was cancelled meanwhile
                    return []
        finally:
            self._offers.remove(offer)
            self._invite()

    async def take(self) -> Group:
        if self._left:
            return self._left.popleft()
        taker: asyncio.Future[Group] = asyncio.get_running_loop().create_future()
        self._takers.append(taker)
        self._invite()
        try:
            return await taker
        except asyncio.CancelledError:
            if not taker.cancelled():  # it was served and then cancelled: that put has returned, so the group stays here
                self._takers.remove(taker)
                if not self._give(taker.result()):
                    self._left.append(taker.result())
            raise
        finally:
            if taker in self._takers:
                self._takers.remove(taker)

    def contents(self) -> list[Group]:
        served = [taker.result() for taker in self._takers if taker.done() and not taker.cancelled()]
        return [*self._left, *served]

    def restore(self, groups: list[Group]) -> None:
        self._left.extend(groups)

    def _give(self, group: Group) -> bool:
        """To the taker that has waited longest."""
        for taker in self._takers:
            if not taker.done():
                taker.set_result(group)
                return True
        return False

    def _invite(self) -> None:
        """As many putters as there are takers to serve, the first by order."""
        free = sum(not taker.done() for taker in self._takers) - sum(offer.invited.is_set() for offer in self._offers)
        if free > 0:
            uninvited = [offer for offer in self._offers if not offer.invited.is_set()]
            for offer in sorted(uninvited, key=lambda offer: rank(offer.group, self._order))[:free]:
                offer.invited.set()
