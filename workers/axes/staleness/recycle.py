"""recycle: what is over the limit is generated again from its prompt, under the same ids."""

from __future__ import annotations

from workers.axes.staleness.base import Fate, lag_of
from workers.axes.staleness.count_only import CountOnly
from workers.records import Group


class Recycle(CountOnly):
    """No prompt is lost to staleness; its tokens are."""

    def judge(self, group: Group, version: int) -> Fate:
        return "recycle" if lag_of(group, version, self._options.lag_from) > self._options.max_lag else "train"
