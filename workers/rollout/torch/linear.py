"""Frozen linear layers, with an adapter's product added where there is one. bf16 weights on a CPU are packed once: into AMX tiles
where the processor has them, else into oneDNN's own layout."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch.nn import functional

from workers.rollout.torch.adapter import Pair
from workers.rollout.torch.native import NativeKernels, tile_kernels
from workers.rollout.torch.room import Room
from workers.rollout.torch.tiled import Tiled, fits

# The operators are private to torch: they are probed once and `functional.linear` stands in where they are missing or wrong.
_ROWS_HINT = 64


@cache
def packing_works() -> bool:
    """Whether this torch build packs bf16 weights and multiplies with them correctly."""
    if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator).bfloat16()
    rows = torch.randn(5, 32, generator=generator).bfloat16()
    try:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, _ROWS_HINT)
        plain = torch.ops.mkldnn._linear_pointwise(rows, packed, None, "none", [], "")
        added = torch.ops.mkldnn._linear_pointwise.binary(rows, plain, packed, None, "add")
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    wanted = functional.linear(rows.float(), weight.float())
    return bool(torch.allclose(plain.float(), wanted, atol=0.2) and torch.allclose(added.float(), 2 * wanted, atol=0.4))


class Linear:
    """y = x W^T + b on rows [n, inputs]."""

    __slots__ = ("_bias", "_kernels", "_packed", "_tiled", "_weight", "inputs", "outputs")

    def __init__(self, parts: Sequence[torch.Tensor], biases: Sequence[torch.Tensor], room: Room, place: str) -> None:
        """parts: the rows of W, one under the other; biases: as many, or none. Both are copied, where nothing else keeps them, into
        the room at this place."""
        self.outputs, self.inputs = sum(len(part) for part in parts), parts[0].shape[1]
        half = parts[0].dtype == torch.bfloat16 and parts[0].device.type == "cpu"
        self._kernels = tile_kernels(self.outputs, self.inputs) if half else None
        self._packed = half and self._kernels is None and packing_works()
        self._tiled = None
        if self._kernels:
            if not all(fits(*part.shape) for part in parts):
                parts = [torch.cat(list(parts))]
            packed = room.empty(f"{place}, in tiles", (self.outputs * self.inputs,), parts[0].dtype)
            self._tiled = self._kernels.pack_into(packed, parts)
            self._weight = parts[0].new_empty(0)  # one copy of the numbers is enough
        elif self._packed:
            self._weight = torch.ops.mkldnn._reorder_linear_weight(torch.cat(list(parts)), _ROWS_HINT)
        else:
            self._weight = room.copy(place, *parts)
        self._bias = room.copy(f"{place}, bias", *biases) if biases else None

    @property
    def biased(self) -> bool:
        return self._bias is not None

    def __call__(self, rows: torch.Tensor, pair: Pair | None = None) -> torch.Tensor:
        if self._kernels and self._tiled:
            return self._by_tiles(self._kernels, self._tiled, rows, None, pair)
        return _adapted(self._plain(rows), rows, pair)

    def added_to(self, residual: torch.Tensor, rows: torch.Tensor, pair: Pair | None = None) -> torch.Tensor:
        """residual + y, in one pass where packed."""
        if self._kernels and self._tiled:
            return self._by_tiles(self._kernels, self._tiled, rows, residual, pair)
        if self._packed:
            added: torch.Tensor = torch.ops.mkldnn._linear_pointwise.binary(rows, residual, self._weight, self._bias, "add")
            return _adapted(added, rows, pair)
        return _adapted(residual + self._plain(rows), rows, pair)

    def _plain(self, rows: torch.Tensor) -> torch.Tensor:
        if self._packed:
            plain: torch.Tensor = torch.ops.mkldnn._linear_pointwise(rows, self._weight, self._bias, "none", [], "")
            return plain
        return functional.linear(rows, self._weight, self._bias)

    def _by_tiles(
        self, kernels: NativeKernels, weight: Tiled, rows: torch.Tensor, residual: torch.Tensor | None, pair: Pair | None
    ) -> torch.Tensor:
        tiled = None if pair is None else pair.tiled
        out = kernels.multiply(rows, weight, self._bias, residual, tiled)
        return out if tiled is not None else _adapted(out, rows, pair)


def _adapted(out: torch.Tensor, rows: torch.Tensor, pair: Pair | None) -> torch.Tensor:
    if pair is not None:
        pair.add_to(out, rows)
    return out
