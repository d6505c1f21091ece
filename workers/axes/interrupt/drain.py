"""Nothing new is admitted; running requests finish, then the weights are swapped."""

from __future__ import annotations

from workers.axes.interrupt.base import Interruptible
from workers.contract.axes import KvAfter


class Drain:
    """Every sample is of one version. What waits is admitted under the new weights."""

    stops = True

    def __init__(self, kv_after: KvAfter) -> None:
        pass  # nothing runs when the weights change: there is no cache to treat

    def announced(self, engine: Interruptible) -> bool:
        engine.hold_admission()
        return engine.running == 0

    def flipped(self, engine: Interruptible) -> None:
        """Nothing to do: nothing runs."""
