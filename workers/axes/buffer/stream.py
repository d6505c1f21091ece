"""stream: generation never waits; with `ring`, the oldest group goes for a new one."""

from __future__ import annotations

from workers.axes.buffer.waiting import Store, WaitingGroups, too_many, units
from workers.contract import config
from workers.records import Group


class StreamBuffer(Store):
    """Without a ring nothing bounds it. With one, groups leave by arrival, the longest held first, until the new one has room.

    The new group itself always stays, even where it alone is larger than the ring.
    """

    def __init__(self, options: config.Buffer, batch_groups: int) -> None:
        super().__init__()
        self.capacity = options.ring
        self._unit = options.unit
        self._groups = WaitingGroups(options.order, options.unit)

    def contents(self) -> list[Group]:
        return self._groups.contents()

    def restore(self, groups: list[Group]) -> None:
        held = sum(units(group, self._unit) for group in groups)
        if self.capacity is not None and held > self.capacity and len(groups) > 1:
            raise too_many(held, self.capacity, self._unit, "buffer.ring")
        for group in groups:
            self._groups.add(group)

    def _any(self) -> bool:
        return len(self._groups) > 0

    def _fits(self, group: Group) -> bool:
        return True

    def _add(self, group: Group) -> list[Group]:
        gone: list[Group] = []
        if self.capacity is not None:
            weight = units(group, self._unit)
            while len(self._groups) and self._groups.units + weight > self.capacity:
                gone.append(self._groups.oldest())
        self._groups.add(group)
        return gone

    def _next(self) -> Group:
        return self._groups.next()
