"""Lag is measured and shown; nothing is dropped."""

from __future__ import annotations

from workers.contract import config
from workers.records import Group


class CountOnly:
    """Admits every group."""

    def __init__(self, options: config.Staleness) -> None:
        self._options = options

    def refuse(self, group: Group, version: int) -> str | None:
        return None
