"""The door of weight transport: the road a payload takes from the trainer to the engines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from workers.contract import config
from workers.records import Manifest

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Link:
    """One end of the road. name: "trainer", or the engine's; folder: the attempt's private scratch, seen by both ends."""

    run_id: str
    folder: Path
    name: str
    options: config.Transport


class Receiver(Protocol):
    """The engine's side of a transport, which is all that an engine needs."""

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine. Returns private copies whose digest, computed over the bytes received, agrees.

        Raises DigestMismatch or EngineError; the caller then keeps its old version.
        """
        ...

    @contextlib.contextmanager
    def borrow(self, manifest: Manifest) -> Iterator[Mapping[str, torch.Tensor]]:
        """Called by an engine that makes its own of the tensors at once: they are good inside the context, and not to be written into.

        Raises as `receive` does, and at the end of the context where they may have changed meanwhile: what was made is then void.
        """
        yield self.receive(manifest)


class Transport(Receiver, Protocol):
    """Constructed on both sides as `Transport(link: Link)`. Kinds derive from it."""

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish; returns without waiting for receivers.

        Each tensor is read once, in sorted order of names: a value may be gathered from other ranks when it is read.
        `receivers` are the names of the engines that will call `receive`; each publish has at least one. The payload stays
        readable until the next but one publish, except where a process group hands it on: that does so once, to all together.
        """
        ...

    def close(self) -> None:
        """Called at the end on both sides; the sender unlinks what it made."""
        ...
