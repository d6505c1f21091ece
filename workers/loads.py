"""How many requests each engine has, and which one has the fewest: asked for every sample, and of large pools."""

from __future__ import annotations

from collections.abc import Iterable
from heapq import heapify, heappop, heappush

_STALE = 4  # so many times as many entries as engines are kept


class Loads:
    """By name. Of several with the fewest it is the first, as they were named at the start."""

    def __init__(self, names: Iterable[str]) -> None:
        self._loads = dict.fromkeys(names, 0)
        self._places = {name: place for place, name in enumerate(self._loads)}
        self._heap: list[tuple[int, int, str]] = []  # load, place, name: every load that a name has now, and some that it had
        self._tidy()

    def __getitem__(self, name: str) -> int:
        return self._loads[name]

    def change(self, name: str, by: int) -> None:
        load = self._loads[name] = self._loads[name] + by
        heappush(self._heap, (load, self._places[name], name))
        if len(self._heap) > _STALE * len(self._loads):
            self._tidy()

    def leave(self, name: str) -> None:
        self._loads.pop(name, None)

    def least(self) -> str:
        """There must be one."""
        while True:
            load, _, name = self._heap[0]
            if self._loads.get(name) == load:
                return name
            heappop(self._heap)

    def _tidy(self) -> None:
        self._heap = [(load, self._places[name], name) for name, load in self._loads.items()]
        heapify(self._heap)
