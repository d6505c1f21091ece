"""The door of interrupts: what happens inside an engine when new weights arrive. Engines of tensors and emulated ones obey alike."""

from __future__ import annotations

from typing import Protocol


class Interruptible(Protocol):
    """What an interrupt may do to an engine. Every method is called between two forward passes, by whoever runs them."""

    @property
    def running(self) -> int:
        """Samples in slots."""
        ...

    @property
    def waiting(self) -> int:
        """Requests that wait for a slot."""
        ...

    def hold_admission(self) -> None:
        """No waiting request is admitted until the new weights serve."""
        ...

    def retract(self) -> None:
        """Every running sample gives up slot and cache and goes back to the head of the queue with its tokens."""
        ...

    def abort(self) -> None:
        """Every running and waiting training request ends with reason "abort" and goes to its caller with what it has."""
        ...

    def recompute_cache(self) -> None:
        """Every running sample is prefilled again under the weights that serve; its tokens and log-probs stay."""
        ...


class Interrupt(Protocol):
    """Constructed as `Interrupt(kv_after)`. One update is under way at a time.

    stops: whether decoding stands still from the moment `announced` said True until the new weights serve.
    """

    stops: bool

    def announced(self, engine: Interruptible) -> bool:
        """Called between forward passes from the announcement of new weights on, until it says True: then they are fetched."""
        ...

    def flipped(self, engine: Interruptible) -> None:
        """Called once, between two forward passes, right after the new weights became the ones that serve."""
        ...
