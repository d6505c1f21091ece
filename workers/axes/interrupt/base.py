"""The door of interrupts: what happens inside an engine when new weights arrive."""

from __future__ import annotations

from typing import Protocol


class Interruptible(Protocol):
    """What an interrupt may do to an engine. Every method is called by the engine's own thread, between two forward passes."""

    def flip(self) -> None:
        """The staged weights become the ones that serve."""
        ...

    def recompute_cache(self) -> None:
        """Every running sample is prefilled again under the weights that serve; its tokens and log-probs stay."""
        ...


class Interrupt(Protocol):
    """Constructed as `Interrupt(kv_after)`."""

    def between_passes(self, engine: Interruptible) -> bool:
        """Called between two forward passes for as long as staged weights wait. True: they serve now."""
        ...
