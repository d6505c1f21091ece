"""Memory for one copy of the weights that is used again: to touch fresh memory takes longer than to fill it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch


class Room:
    """Each place has its name. What is written here is a copy: nothing that serves shares memory with what a publish carried.

    borrows: while it is set, a tensor that needs no new layout is taken as it is. Of a model's file that is the mapped file, whose
    pages every process on the machine shares.
    """

    def __init__(self) -> None:
        self._places: dict[str, torch.Tensor] = {}
        self.borrows = False

    def empty(self, place: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The tensor of this place, with whatever stands in it."""
        return self._tensor(torch.empty, place, shape, dtype)

    def zeros(self, place: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """The tensor of this place: zeros where nobody has written since the first time."""
        return self._tensor(torch.zeros, place, shape, dtype)

    def copy(self, place: str, *parts: torch.Tensor) -> torch.Tensor:
        """The parts, one under the other."""
        if self.borrows and len(parts) == 1:
            return parts[0]
        kept = self.empty(place, (sum(len(part) for part in parts), *parts[0].shape[1:]), parts[0].dtype)
        row = 0
        for part in parts:
            kept[row : row + len(part)].copy_(part)
            row += len(part)
        return kept

    def _tensor(self, make: Callable[..., torch.Tensor], place: str, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        found = self._places.get(place)
        if found is None or found.shape != torch.Size(shape) or found.dtype != dtype:
            found = self._places[place] = make(*shape, dtype=dtype)
        return found
