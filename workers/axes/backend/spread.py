"""How what learns lies over the ranks of the training pool. The optimizer and the checkpoint ask; one process has it all."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
from torch import Tensor


class Spread(Protocol):
    """Made by a backend once its model lies where it belongs. Names are those of `Adapters.masters`; a master is this rank's piece.

    Every method is called by all ranks, in the same order.
    """

    def mine(self, name: str) -> bool:
        """Whether this rank's optimizer steps the tensor, wholly or in part."""
        ...

    def norm(self, masters: Mapping[str, Tensor]) -> float:
        """Called before each optimizer step: the 2-norm of the whole gradient, the same number on every rank."""
        ...

    def stepped(self, masters: Mapping[str, Tensor]) -> None:
        """Called after each optimizer step: a rank that did not step a tensor gets it from the one that did."""
        ...

    def whole(self, name: str, piece: Tensor | None) -> Tensor | None:
        """The whole tensor on rank 0, None elsewhere. piece: a tensor shaped and spread like the master; None where this rank has none."""
        ...

    def cut(self, name: str, whole: Tensor) -> Tensor:
        """This rank's piece of a whole tensor shaped like the master. No communication."""
        ...

    def gathering(self) -> AbstractContextManager[bool]:
        """Around a save. True on the rank that writes."""
        ...


class Alone:
    """One process: every piece is the whole."""

    def mine(self, name: str) -> bool:
        return True

    def norm(self, masters: Mapping[str, Tensor]) -> float:
        return float(torch.nn.utils.get_total_norm([master.grad for master in masters.values() if master.grad is not None]))

    def stepped(self, masters: Mapping[str, Tensor]) -> None:
        return None

    def whole(self, name: str, piece: Tensor | None) -> Tensor | None:
        return piece

    def cut(self, name: str, whole: Tensor) -> Tensor:
        return whole

    def gathering(self) -> AbstractContextManager[bool]:
        return nullcontext(True)
