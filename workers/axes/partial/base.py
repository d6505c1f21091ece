"""The door of partial rollouts: what becomes of a half-finished sample at a weight change."""

from __future__ import annotations

from typing import Literal, Protocol

Fate = Literal["continue", "abort"]


class Partial(Protocol):
    """Constructed without arguments; a config may name several, and one that aborts wins."""

    def at_weight_change(self, tokens_done: int) -> Fate:
        """Called for each running sample after a flip. "abort": it ends with that reason and goes to its caller."""
        ...
