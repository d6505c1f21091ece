"""Decoding stops before the transfer and goes on after it; slots stay as they are."""

from __future__ import annotations

from workers.axes.interrupt.base import Interruptible
from workers.axes.interrupt.forward_pass import ForwardPass


class Keep(ForwardPass):
    """Nothing is decoded under weights that are known to be old. kv_after as with forward_pass."""

    stops = True

    def announced(self, engine: Interruptible) -> bool:
        return True
