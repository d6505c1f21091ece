"""wait: a publish waits until everything that it would push over the limit has been trained."""

from __future__ import annotations

from workers.axes.staleness.base import lag_of
from workers.axes.staleness.count_only import CountOnly
from workers.records import Group


class Wait(CountOnly):
    """Nothing is thrown away and nothing grows too old: the trainer steps on at the old version meanwhile."""

    def delays(self, group: Group, version: int) -> bool:
        return lag_of(group, version, self._options.lag_from) > self._options.max_lag
