"""LoRA adapters beside the frozen weights: one low-rank pair for each fused linear, never merged into the base.

Merging in bf16 would lose small updates. The A matrices of a fused linear are stacked, its B matrices stand on the diagonal
of one matrix, so that each fused linear costs two small products.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from workers.contract.errors import EngineError
from workers.rollout.torch.shape import Shape

_NAME = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.([a-z]+)_proj\.lora_([AB])\.weight")
FUSED = {"qkv": ("q", "k", "v"), "output": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}


@dataclass(frozen=True, slots=True)
class Pair:
    """delta = (x @ a) @ b; a [inputs, ranks], b [ranks, outputs] with alpha / rank in it."""

    a: torch.Tensor
    b: torch.Tensor

    def add_to(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        out.addmm_(rows @ self.a, self.b)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One policy version's adapters, by layer and fused linear. Empty at version 0: lora_B is zero there."""

    version: int
    layers: list[dict[str, Pair]]


def no_adapter(shape: Shape, version: int = 0) -> Adapter:
    """The base policy."""
    return Adapter(version, [{} for _ in range(shape.layers)])


def build_adapter(tensors: Mapping[str, torch.Tensor], shape: Shape, scaling: float, version: int, dtype: torch.dtype) -> Adapter:
    """Called beside the decode loop when a payload has arrived. Raises EngineError on a name or shape that does not fit."""
    found: dict[tuple[int, str], dict[str, torch.Tensor]] = {}
    for name, tensor in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None or match[2] not in _sizes(shape) or int(match[1]) >= shape.layers:
            raise EngineError("the payload names a tensor this model has no place for", field="transport.payload", value=name)
        found.setdefault((int(match[1]), match[2]), {})[match[3]] = tensor
    for (layer, module), pair in found.items():
        _check(layer, module, pair, shape)
    adapter = no_adapter(shape, version)
    for layer, pairs in enumerate(adapter.layers):
        for fused, modules in FUSED.items():
            if any((layer, module) in found for module in modules):
                pairs[fused] = _fuse([found.get((layer, module)) for module in modules], modules, shape, scaling, dtype)
    return adapter


def _sizes(shape: Shape) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of each module."""
    hidden, wide = shape.hidden, shape.intermediate
    return {
        "q": (hidden, shape.query_rows),
        "k": (hidden, shape.kv_rows),
        "v": (hidden, shape.kv_rows),
        "o": (shape.query_rows, hidden),
        "gate": (hidden, wide),
        "up": (hidden, wide),
        "down": (wide, hidden),
    }


def _check(layer: int, module: str, pair: dict[str, torch.Tensor], shape: Shape) -> None:
    inputs, outputs = _sizes(shape)[module]
    fits = set(pair) == {"A", "B"} and pair["A"].shape[1:] == (inputs,) and pair["B"].shape == (outputs, pair["A"].shape[0])
    if not fits:
        given = {f"lora_{half}": tuple(tensor.shape) for half, tensor in sorted(pair.items())}
        raise EngineError(
            f"the adapter of layer {layer}, {module}_proj does not fit",
            field="transport.payload",
            value=given,
            cure=f"lora_A must be [rank, {inputs}] and lora_B [{outputs}, rank]: trainer and engine need the same model",
        )


def _fuse(given: list[dict[str, torch.Tensor] | None], modules: tuple[str, ...], shape: Shape, scaling: float, dtype: torch.dtype) -> Pair:
    outputs = [_sizes(shape)[module][1] for module in modules]
    present = [pair for pair in given if pair is not None]
    a = torch.cat([pair["A"] for pair in present]).float().t().contiguous()
    b = torch.zeros(a.shape[1], sum(outputs))
    row = column = 0
    for pair, width in zip(given, outputs, strict=True):
        if pair is not None:
            rank = pair["A"].shape[0]
            b[row : row + rank, column : column + width] = pair["B"].float().t() * scaling
            row += rank
        column += width
    return Pair(a.to(dtype), b.to(dtype))
