"""The door of the buffer: what waits between the pools."""

from __future__ import annotations

from typing import Protocol

from workers.records import Group


class Buffer(Protocol):
    """Constructed as `Buffer(config.buffer)`. Never holds more than its bound; groups leave in the order they came."""

    async def put(self, group: Group) -> None:
        """Called when a group is complete and scored. Waits while the buffer is full: that is the backpressure."""
        ...

    async def take(self) -> Group:
        """Called by the trainer, group by group. Waits while the buffer is empty."""
        ...

    def contents(self) -> list[Group]:
        """Called for pictures, ledgers and checkpoints; oldest first."""
        ...

    def restore(self, groups: list[Group]) -> None:
        """Called once, on resume, before anything runs."""
        ...
