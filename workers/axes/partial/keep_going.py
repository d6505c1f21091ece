"""A running sample goes on under the new weights; each token keeps the version that produced it."""

from __future__ import annotations

from workers.axes.partial.base import Fate


class Continue:
    """In-flight samples survive every weight change."""

    def at_weight_change(self, tokens_done: int) -> Fate:
        return "continue"
