"""What each lane did and when: the time ledger's seconds as stretches on the clock, told piece by piece. Gaps and overlaps do not occur."""

from __future__ import annotations

from typing import Any

SHORTEST_S = 0.001  # a shorter stretch is drawn as part of its neighbour
MOST_TOLD = 600  # stretches at once, over all lanes; beyond it longer ones are merged, too
MOST_UNTOLD = 4096  # of one lane, while nobody asks
Stretch = tuple[str, float, float]  # cause, began, ended


class Spans:
    """Stretches not yet told, by lane. `offset` is what turns the ledger's clock into Unix seconds (0 on a virtual clock)."""

    def __init__(self, lanes: list[str], offset: float) -> None:
        self._offset = offset
        self._untold: dict[str, list[Stretch]] = {lane: [] for lane in lanes}
        # Seconds moved to another cause whose stretches have been told already: the next ones of the source pay them.
        self._owed: dict[str, list[tuple[str, str, float]]] = {lane: [] for lane in lanes}

    def add(self, lane: str, cause: str, began: float, ended: float) -> None:
        """Called with each settled stretch of a lane; it begins where the one before ended."""
        if ended <= began:
            return
        for index, (source, target, seconds) in enumerate(self._owed[lane]):
            if source == cause:
                paid = min(seconds, ended - began)
                self._append(lane, target, began, began + paid)
                began += paid
                self._owed[lane][index] = (source, target, seconds - paid)
        self._owed[lane] = [debt for debt in self._owed[lane] if debt[2] > 1e-9]
        if ended > began:
            self._append(lane, cause, began, ended)

    def move(self, lane: str, source: str, target: str, seconds: float) -> None:
        """Called with time that is known only afterwards to have been another cause's: the newest of the source becomes the target."""
        kept: list[Stretch] = []
        for cause, began, ended in reversed(self._untold[lane]):
            taken = min(seconds, ended - began) if cause == source else 0.0
            seconds -= taken
            if taken > 0:
                kept.append((target, ended - taken, ended))
            if ended - taken > began:
                kept.append((cause, began, ended - taken))
        self._untold[lane] = merged(kept[::-1])
        if seconds > 1e-9:
            self._owed[lane].append((source, target, seconds))

    def take(self) -> list[list[Any]]:
        """Rows [lane, cause, began, ended] of what was not told yet, lane by lane and in order; forgotten with that.

        A lane of which less than SHORTEST_S is new is told the next time.
        """
        shortest = SHORTEST_S
        told = {
            lane: merged(stretches, shortest) if stretches and stretches[-1][2] - stretches[0][1] >= SHORTEST_S else []
            for lane, stretches in self._untold.items()
        }
        most = max(MOST_TOLD, 2 * len(told))
        while sum(map(len, told.values())) > most:
            shortest *= 2
            told = {lane: merged(stretches, shortest) for lane, stretches in told.items()}
        self._untold = {lane: [] if told[lane] else stretches for lane, stretches in self._untold.items()}
        return [
            [lane, cause, round(began + self._offset, 6), round(ended + self._offset, 6)]
            for lane, stretches in told.items()
            for cause, began, ended in stretches
        ]

    def _append(self, lane: str, cause: str, began: float, ended: float) -> None:
        stretches = self._untold[lane]
        if stretches and stretches[-1][0] == cause:
            stretches[-1] = (cause, stretches[-1][1], ended)
            return
        stretches.append((cause, began, ended))
        shortest = SHORTEST_S
        while len(stretches) > MOST_UNTOLD:
            stretches[:] = merged(stretches, shortest)
            shortest *= 2


def merged(stretches: list[Stretch], shortest: float = 0.0) -> list[Stretch]:
    """Equal neighbours become one; one under `shortest` becomes part of the one before it, the first of the one behind."""
    out: list[Stretch] = []
    for cause, began, ended in stretches:
        if out and (out[-1][0] == cause or ended - began < shortest):
            out[-1] = (out[-1][0], out[-1][1], ended)
        elif len(out) == 1 and out[0][2] - out[0][1] < shortest:
            out[0] = (cause, out[0][1], ended)
        else:
            out.append((cause, began, ended))
    return out
