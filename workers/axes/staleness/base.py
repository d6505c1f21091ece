"""The door of staleness: how old a group may be when it is trained, and what becomes of one that is older."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Protocol

from workers.records import Group

Fate = Literal["train", "drop", "recycle"]


class Staleness(Protocol):
    """Constructed as `Staleness(config.staleness)`. Where the buffer's unit is the sample, groups of one sample are asked about."""

    def judge(self, group: Group, version: int) -> Fate:
        """Called when the trainer has taken a group. `version` is that of the weights about to be trained."""
        ...

    def delays(self, untrained: Iterable[Group], version: int) -> bool:
        """Called before a publish with everything not yet trained: whether `version` must wait until some of it is."""
        ...


def lag_of(group: Group, version: int, lag_from: str) -> int:
    """Versions between the weights trained and those that sampled the group, counted as `staleness.lag_from` says.

    A group still in flight has no tokens to ask: none of them will be older than its dispatch.
    """
    oldest = lag_from == "oldest_token" and any(sample.rollout.versions for sample in group.samples)
    return version - (group.oldest_version if oldest else group.dispatched_version)
