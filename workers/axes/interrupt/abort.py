"""Running and waiting requests end and go to their caller, who decides what becomes of them."""

from __future__ import annotations

from workers.axes.interrupt.base import Interruptible
from workers.contract.axes import KvAfter


class Abort:
    """What comes while the weights are on their way, samples sent again among it, waits for the new ones."""

    stops = True

    def __init__(self, kv_after: KvAfter) -> None:
        pass  # always "flush": an aborted sample leaves its slot

    def announced(self, engine: Interruptible) -> bool:
        engine.abort()
        return True

    def flipped(self, engine: Interruptible) -> None:
        """Nothing to do: nothing runs."""
