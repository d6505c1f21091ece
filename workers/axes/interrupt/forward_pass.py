"""Weights are staged while decoding goes on; the pointer is flipped between two forward passes."""

from __future__ import annotations

from workers.axes.interrupt.base import Interruptible
from workers.contract.axes import KvAfter


class ForwardPass:
    """Never stops the engine. kv_after "keep": old keys and values stay; "recompute": they are made anew."""

    stops = False

    def __init__(self, kv_after: KvAfter) -> None:
        self._recompute = kv_after == "recompute"

    def announced(self, engine: Interruptible) -> bool:
        return True

    def flipped(self, engine: Interruptible) -> None:
        if self._recompute:
            engine.recompute_cache()
