"""Weights in the order that tiles.c reads them. Plain torch: packing happens once a weight, beside the decode thread."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch.nn import functional

_TILE, _DEPTH = 16, 32  # as in tiles.c


@dataclass(frozen=True, slots=True)
class Tiled:
    """W [outputs, inputs] as [outputs / 16, inputs / 32, 16 pairs of inputs, 16 outputs, 2], bfloat16."""

    data: torch.Tensor
    outputs: int
    inputs: int


@dataclass(frozen=True, slots=True)
class TiledPair:
    """The halves of an adapter: lowering [ranks, inputs], raising [outputs, ranks]; ranks is a multiple of 32."""

    lowering: Tiled
    raising: Tiled


def fits(outputs: int, inputs: int) -> bool:
    """Whether a weight of this size divides into tiles."""
    return outputs % _TILE == 0 and inputs % _DEPTH == 0


def pack(weight: torch.Tensor) -> Tiled:
    """A copy of [outputs, inputs], which must fit."""
    return _pack(weight.unsqueeze(0))[0]


def pack_pairs(a: torch.Tensor, b: torch.Tensor) -> list[TiledPair]:
    """Of n layers at once, from a [n, inputs, ranks] and b [n, ranks, outputs]; ranks are filled up with zeros."""
    missing = -a.shape[2] % _DEPTH
    lowering = _pack(functional.pad(a, (0, missing)).transpose(1, 2))
    raising = _pack(functional.pad(b, (0, 0, 0, missing)).transpose(1, 2))
    return [TiledPair(*halves) for halves in zip(lowering, raising, strict=True)]


def _pack(weights: torch.Tensor) -> list[Tiled]:
    """[n, outputs, inputs], in one copy."""
    count, outputs, inputs = weights.shape
    pieces = weights.view(count, outputs // _TILE, _TILE, inputs // _DEPTH, _DEPTH // 2, 2)
    return [Tiled(data, outputs, inputs) for data in pieces.permute(0, 1, 3, 4, 2, 5).contiguous().unbind(0)]
