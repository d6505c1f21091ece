"""bounded: at most `depth` units wait; a full buffer holds generation back."""

from __future__ import annotations

from workers.axes.buffer.waiting import Store, WaitingGroups, too_many, units
from workers.contract import config
from workers.records import Group


class BoundedBuffer(Store):
    """At most `depth` groups or samples. A group larger than the whole depth gets in when nothing else is there."""

    def __init__(self, options: config.Buffer, batch_groups: int) -> None:
        super().__init__()
        self.capacity: int | None = options.depth
        self._depth = options.depth
        self._unit = options.unit
        self._groups = WaitingGroups(options.order, options.unit)

    def contents(self) -> list[Group]:
        return self._groups.contents()

    def restore(self, groups: list[Group]) -> None:
        held = sum(units(group, self._unit) for group in groups)
        if held > self._depth and len(groups) > 1:
            raise too_many(held, self._depth, self._unit, "buffer.depth")
        for group in groups:
            self._groups.add(group)

    def _any(self) -> bool:
        return len(self._groups) > 0

    def _fits(self, group: Group) -> bool:
        return not len(self._groups) or self._groups.units + units(group, self._unit) <= self._depth

    def _add(self, group: Group) -> list[Group]:
        self._groups.add(group)
        return []

    def _next(self) -> Group:
        return self._groups.next()
