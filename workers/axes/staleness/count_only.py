"""count_only: lag is measured and shown; nothing is dropped."""

from __future__ import annotations

from collections.abc import Iterable

from workers.axes.staleness.base import Fate
from workers.contract import config
from workers.records import Group


class CountOnly:
    """Admits every group."""

    def __init__(self, options: config.Staleness) -> None:
        self._options = options

    def judge(self, group: Group, version: int) -> Fate:
        return "train"

    def delays(self, untrained: Iterable[Group], version: int) -> bool:
        return False
