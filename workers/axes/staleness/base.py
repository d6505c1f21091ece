"""The door of staleness: how old a group may be when it is trained."""

from __future__ import annotations

from typing import Protocol

from workers.records import Group


class Staleness(Protocol):
    """Constructed as `Staleness(config.staleness)`."""

    def refuse(self, group: Group, version: int) -> str | None:
        """Called when the trainer has taken a group; returns the reason to drop it, or None to train on it.

        `version` is the version of the weights about to be trained.
        """
        ...


def lag_of(group: Group, version: int, lag_from: str) -> int:
    """Versions between the weights trained and those that sampled the group, counted as `staleness.lag_from` says."""
    return version - (group.oldest_version if lag_from == "oldest_token" else group.dispatched_version)
