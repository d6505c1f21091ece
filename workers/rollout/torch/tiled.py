"""Weights in the order that tiles.c reads them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

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


def filled(ranks: int) -> int:
    """An adapter's ranks with the zeros that fill them up to whole tiles."""
    return -(-ranks // _DEPTH) * _DEPTH
