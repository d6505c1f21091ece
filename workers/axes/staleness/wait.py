"""wait: a publish waits until everything that it would push over the limit has been trained."""

from __future__ import annotations

from collections.abc import Iterable

from workers.axes.staleness.base import lag_of
from workers.axes.staleness.recycle import Recycle
from workers.records import Group


class Wait(Recycle):
    """Nothing grows too old: the trainer steps on at the old version meanwhile.

    Only the last publish of an attempt waits for nothing. What a resume then finds over the limit is generated again.
    """

    def delays(self, untrained: Iterable[Group], version: int) -> bool:
        return any(lag_of(group, version, self._options.lag_from) > self._options.max_lag for group in untrained)
