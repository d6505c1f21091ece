"""The samples in an emulated engine's slots: how far each of them is, without a look at those that do not end."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heapify, heappop, heappush
from operator import itemgetter

from workers.rollout.leaps import Sequence, Weights

_PARTS = 2**30


def whole(tokens: float) -> float:
    """The nearest whole billionth of a token, in powers of two: sums of these are exact, and who draws in step ends in step."""
    return round(tokens * _PARTS) / _PARTS


class Running:
    """All draw in step, so that one count of tokens tells of everybody: who came at 40 and has 10 to go ends at 50.

    held: positions whose keys and values are kept, in real tokens, of which one simulated token stands for `grain`.
    A sample's own figures are reckoned when it leaves.
    """

    def __init__(self, grain: int) -> None:
        self.held: float = 0
        self._grain = grain
        self._drawn: float = 0
        self._arrivals = 0
        self._by_end: list[tuple[float, int, Sequence]] = []  # a heap: the count at which it ends, arrival
        self._weights = Weights(0, 0)

    def __len__(self) -> int:
        return len(self._by_end)

    def add(self, sequence: Sequence, tokens: int = 0) -> None:
        """tokens: that it gets from its prefill."""
        sequence.came, sequence.weights = self._drawn - tokens, self._weights
        self._arrivals += 1
        heappush(self._by_end, (sequence.came + sequence.length - sequence.done, self._arrivals, sequence))
        self.held += sequence.prompt + (sequence.done + tokens) * self._grain

    def left(self) -> float:
        """Tokens until the first one ends."""
        return self._by_end[0][0] - self._drawn

    def draw(self, tokens: float) -> list[Sequence]:
        """Everybody draws so many tokens, no more than are left. Takes out those that end with it."""
        self._drawn += tokens
        self.held += len(self._by_end) * tokens * self._grain
        ended = []
        while self._by_end and self._by_end[0][0] <= self._drawn:
            ended.append(heappop(self._by_end))
        return self._leave(ended) if ended else []

    def take(self, wanted: Callable[[Sequence], bool]) -> list[Sequence]:
        """Takes out those that are wanted."""
        taken = [entry for entry in self._by_end if wanted(entry[2])]
        self._by_end = [entry for entry in self._by_end if not wanted(entry[2])]
        heapify(self._by_end)
        return self._leave(taken)

    def turn(self, version: int) -> None:
        """From here on tokens are drawn under another version."""
        self._weights.then = Weights(version, self._drawn)
        self._weights = self._weights.then

    def _leave(self, entries: list[tuple[float, int, Sequence]]) -> list[Sequence]:
        """In the order in which they came."""
        if len(entries) > 1:
            entries.sort(key=itemgetter(1))
        for _, _, sequence in entries:
            sequence.leave(self._drawn)
            self.held -= sequence.prompt + sequence.done * self._grain
        return [sequence for _, _, sequence in entries]
