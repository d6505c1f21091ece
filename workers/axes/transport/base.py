"""The door of weight transport: the road a payload takes from the trainer to the engines."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Protocol

from workers.records import Manifest

if TYPE_CHECKING:
    import torch


class Transport(Protocol):
    """Constructed on both sides as `Transport(run_id: str, folder: Path)`; `folder` is the attempt's private scratch."""

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str) -> Manifest:
        """Called by the trainer at each publish. The payload must stay readable until the next but one publish."""
        ...

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine. Returns private copies whose digest, computed over the bytes received, agrees.

        Raises DigestMismatch or EngineError; the caller then keeps its old version.
        """
        ...

    def close(self) -> None:
        """Called at the end on both sides; the sender unlinks what it made."""
        ...
