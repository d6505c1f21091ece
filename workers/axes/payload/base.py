"""The door of payloads: what of the weights is sent at a publish, and how an engine makes whole weights of it again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from workers.records import Manifest

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Packed:
    """What goes to the transport. kind: what it became (a delta may fall back to full); base: the version it builds on."""

    kind: str
    tensors: Mapping[str, torch.Tensor]
    base: int | None = None
    note: dict[str, float] = field(default_factory=dict)


class Payload(Protocol):
    """Constructed on both sides as `Payload(kind: str)`; one object lives as long as its side does."""

    remembers: bool  # whether `unpack` keeps what it was given: it must then be the caller's own, and certain

    def pack(self, weights: Mapping[str, torch.Tensor], version: int, receivers: list[str]) -> Packed:
        """Called by the trainer at each publish with the weights in the engine's number format, and who will receive them.

        Each tensor is read at most once, in sorted order of names, here or later by the transport. The same version again
        means that the last publish failed somewhere: whatever builds on what engines hold must then go out whole.
        """
        ...

    def unpack(self, received: Mapping[str, torch.Tensor], manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by an engine with what the transport received, digest checked: whole weights, by the trainer's names.

        The result is to be read and not written into: a payload that builds on the last version may hold on to it.
        Raises EngineError where the payload builds on a version that this engine does not hold.
        """
        ...
