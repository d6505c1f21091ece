"""Weights are staged while decoding goes on; the pointer is flipped between two forward passes."""

from __future__ import annotations

from workers.axes.interrupt.base import Interruptible
from workers.contract.axes import KvAfter


class ForwardPass:
    """Flips at the first chance. kv_after "keep": old keys and values stay; "recompute": they are made anew."""

    def __init__(self, kv_after: KvAfter) -> None:
        self._recompute = kv_after == "recompute"

    def between_passes(self, engine: Interruptible) -> bool:
        engine.flip()
        if self._recompute:
            engine.recompute_cache()
        return True
