"""How what learns lies over the ranks of the training pool. The optimizer and the checkpoint ask; one process has it all."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor


class Spread(Protocol):
    """Made by a backend once its model lies where it belongs. Names are those of `Adapters.masters`; a master is this rank's piece."""

    cuts: bool  # whether a rank may have less than the whole of a tensor

    def mine(self, name: str) -> bool:
        """Whether this rank's optimizer steps the tensor, wholly or in part."""
        ...

    def norm(self, masters: Mapping[str, Tensor]) -> float:
        """Called by every rank before each optimizer step: the 2-norm of the whole gradient, the same number everywhere."""
        ...

    def stepped(self, masters: Mapping[str, Tensor]) -> None:
        """Called by every rank after each optimizer step: who did not step a tensor gets it from the one that did."""
        ...

    def shape(self, name: str, piece: Tensor) -> tuple[int, ...]:
        """Of the whole tensor."""
        ...

    def whole(self, kind: str, name: str, piece: Tensor | None) -> Tensor:
        """Called by rank 0 alone. kind: "master", "part" or a key of the optimizer's state; piece: what this rank has of it."""
        ...

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """This rank's piece of a whole tensor shaped like the master."""
        ...


class Alone:
    """One process: every piece is the whole."""

    cuts = False

    def mine(self, name: str) -> bool:
        return True

    def norm(self, masters: Mapping[str, Tensor]) -> float:
        return float(torch.nn.utils.get_total_norm([master.grad for master in masters.values() if master.grad is not None]))

    def stepped(self, masters: Mapping[str, Tensor]) -> None:
        """Everything was stepped here."""

    def shape(self, name: str, piece: Tensor) -> tuple[int, ...]:
        return tuple(piece.shape)

    def whole(self, kind: str, name: str, piece: Tensor | None) -> Tensor:
        assert piece is not None
        return piece

    def cut(self, name: str, whole: Tensor) -> Tensor:
        return whole
