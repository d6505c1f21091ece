"""double: two batches; one fills while the other is emptied."""

from __future__ import annotations

from workers.axes.buffer.waiting import Store, WaitingGroups, too_many
from workers.contract import config
from workers.records import Group


class DoubleBuffer(Store):
    """The trainer empties the front; what is put goes to the back, which holds one batch of groups, whatever `unit` says.

    They change places when the trainer wants a group and the front is empty: the whole back becomes the front at once, so nothing
    that comes later overtakes it, and the new back has room for a whole batch.

    The back need not be full for that. A trainer that refused groups as too old wants more than one batch's worth, and with a depth
    bound, or at the end of a run, no further whole batch may ever be dispatched: waiting for one would be a deadlock. A trainer
    that finds a short batch waits for the rest of it, so it still trains on whole ones.
    """

    def __init__(self, options: config.Buffer, batch_groups: int) -> None:
        super().__init__()
        # How many samples two batches are is not known here: groups lose failed ones.
        self.capacity = 2 * batch_groups if options.unit == "group" else None
        self._batch = batch_groups
        self._options = options
        self._front = self._empty()
        self._back = self._empty()

    def contents(self) -> list[Group]:
        return [*self._front.contents(), *self._back.contents()]

    def restore(self, groups: list[Group]) -> None:
        """The front may have held any number up to a batch: the last batch's worth fills the back, what is left the front."""
        if len(groups) > 2 * self._batch:
            raise too_many(len(groups), 2 * self._batch, "group", "batch.prompts")
        in_front = max(0, len(groups) - self._batch)
        for group in groups[:in_front]:
            self._front.add(group)
        for group in groups[in_front:]:
            self._back.add(group)

    def _any(self) -> bool:
        return len(self._front) > 0 or len(self._back) > 0

    def _fits(self, group: Group) -> bool:
        return len(self._back) < self._batch

    def _add(self, group: Group) -> list[Group]:
        self._back.add(group)
        return []

    def _next(self) -> Group:
        if not len(self._front):
            self._front, self._back = self._back, self._empty()
        return self._front.next()

    def _empty(self) -> WaitingGroups:
        return WaitingGroups(self._options.order, "group")
