"""Weights are swapped only between whole batches, when nothing runs and nothing waits."""

from __future__ import annotations

from workers.axes.interrupt.base import Interruptible
from workers.contract.axes import KvAfter


class BetweenBatches:
    """All that was sent before the swap is done under the old weights; the flow holds back what belongs after it."""

    stops = True

    def __init__(self, kv_after: KvAfter) -> None:
        pass  # nothing runs when the weights change: there is no cache to treat

    def announced(self, engine: Interruptible) -> bool:
        return engine.running == 0 and engine.waiting == 0

    def flipped(self, engine: Interruptible) -> None:
        """Nothing to do: nothing runs."""
