"""drop: what is over the limit is dropped, counted and replaced by fresh samples."""

from __future__ import annotations

from workers.axes.staleness.base import Fate, lag_of
from workers.axes.staleness.count_only import CountOnly
from workers.records import Group


class Drop(CountOnly):
    """Version rejection: what lags by more than `max_lag` never reaches the trainer."""

    def judge(self, group: Group, version: int) -> Fate:
        return "drop" if lag_of(group, version, self._options.lag_from) > self._options.max_lag else "train"
