"""Groups over the limit are dropped, counted and replaced by fresh ones."""

from __future__ import annotations

from workers.axes.staleness.base import lag_of
from workers.contract import config
from workers.records import Group


class Drop:
    """Version rejection: a group whose lag exceeds `max_lag` never reaches the trainer."""

    def __init__(self, options: config.Staleness) -> None:
        self._options = options

    def refuse(self, group: Group, version: int) -> str | None:
        return "stale" if lag_of(group, version, self._options.lag_from) > self._options.max_lag else None
