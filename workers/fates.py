"""By name, where samples went: what the sample ledger's figures stand for. Told with every step, every checkpoint, and at the end."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from workers.records import Batch, Group, Sample


class Fates:
    """Collects between two tellings; an event that tells of nothing is not made."""

    def __init__(self) -> None:
        self._batch: dict[str, Any] | None = None
        self._left: list[list[Any]] = []

    def trained(self, batch: Batch) -> None:
        """Called after each step. A row: group, prompt, completion slots, version of the oldest token, version at dispatch."""
        rows = [
            [group.id, group.prompt.id, indices(group.samples), group.oldest_version, group.dispatched_version] for group in batch.groups
        ]
        self._batch = {"step": batch.step, "version": batch.version, "groups": rows}

    def left(self, group: Group, slots: list[int], reason: str) -> None:
        """Called when slots of a group leave the flow untrained. A row: group, prompt, completion slots, reason."""
        self._left.append([group.id, group.prompt.id, slots, reason])

    def take(self) -> dict[str, Any] | None:
        """What happened since the last call, once; None: nothing."""
        batch, left = self._batch, self._left
        self._batch, self._left = None, []
        return {"batch": batch, "left": left} if batch or left else None


def indices(samples: Iterable[Sample]) -> list[int]:
    """The completion slots of these samples."""
    return [sample.rollout.index for sample in samples]
