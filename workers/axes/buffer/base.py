"""The door of the buffer: what waits between the pools."""

from __future__ import annotations

from typing import Protocol

from workers.records import Group


class Buffer(Protocol):
    """Constructed as `Buffer(options: config.Buffer, batch_groups: int)`, the second being the groups of one trainer batch.

    capacity: how many units (groups or samples, as `buffer.unit` says) it may hold, for pictures; None where nothing bounds it.
    A put or take that is cancelled has not happened: its group is neither lost nor doubled. Among what waits, the next group is
    chosen by `buffer.order`; ties go by arrival.
    """

    capacity: int | None

    async def put(self, group: Group) -> list[Group]:
        """Called when a group is complete and scored. Waits while the buffer is full: that is the backpressure.

        The group counts as buffered as soon as this returns, and not before. Returns the groups that had to go for it.
        """
        ...

    async def take(self) -> Group:
        """Called by the trainer, group by group. Waits while the buffer is empty."""
        ...

    def contents(self) -> list[Group]:
        """Called for pictures, ledgers and checkpoints: every group whose `put` returned and which was not taken, as they arrived."""
        ...

    def restore(self, groups: list[Group]) -> None:
        """Called once, on resume, before anything runs, with saved `contents`. Raises EngineError where they exceed the bound."""
        ...
