"""Running requests go back to the queue with their tokens; under the new weights they are prefilled again."""

from __future__ import annotations

from workers.axes.interrupt.base import Interruptible
from workers.contract.axes import KvAfter


class Retract:
    """Slots and caches are empty while the weights change, so that no cache of old weights is ever read under new ones."""

    stops = True

    def __init__(self, kv_after: KvAfter) -> None:
        pass  # always "recompute": the caches are given up

    def announced(self, engine: Interruptible) -> bool:
        engine.retract()
        return True

    def flipped(self, engine: Interruptible) -> None:
        """Nothing to do: whoever is admitted now is prefilled."""
