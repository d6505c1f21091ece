"""adapter, full, merged_adapter: the tensors as they are. What they hold is settled by what learns (the LoRA axis)."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from workers.axes.payload.base import Packed
from workers.records import Manifest


class Whole:
    """Nothing is taken away and nothing has to be put together."""

    remembers = False

    def __init__(self, kind: str) -> None:
        self._kind = kind

    def pack(self, weights: Mapping[str, torch.Tensor], version: int, receivers: list[str]) -> Packed:
        return Packed(self._kind, weights)

    def unpack(self, received: Mapping[str, torch.Tensor], manifest: Manifest) -> dict[str, torch.Tensor]:
        return dict(received)
