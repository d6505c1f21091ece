"""LoRA adapters beside the frozen weights: one low-rank pair for each fused linear, never merged into the base.

Merging in bf16 would lose small updates. The A matrices of a fused linear are stacked, its B matrices stand on the diagonal
of one matrix, so that each fused linear costs two small products. Adapters of experts are stacked by expert.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from workers.contract.errors import EngineError
from workers.rollout.torch.native import NativeKernels, tile_kernels
from workers.rollout.torch.room import Room
from workers.rollout.torch.shape import Shape
from workers.rollout.torch.tiled import Tiled, TiledPair, filled

_NAME = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.(?:self_attn|mlp)\.([a-z]+)_proj\.lora_([AB])\.weight")
# PEFT wraps the stacked tensors of a sparse layer one inside the other: down_proj outside, gate_up_proj inside.
_EXPERTS_NAME = re.compile(r"base_model\.model\.model\.layers\.(\d+)\.mlp\.experts\.(base_layer\.)?lora_([AB])\.weight")
FUSED = {"qkv": ("q", "k", "v"), "output": ("o",), "gate_up": ("gate", "up"), "down": ("down",)}
EXPERTS = ("experts_gate_up", "experts_down")


@dataclass(frozen=True, slots=True)
class Pair:
    """delta = (x @ a) @ b; a [inputs, ranks] with alpha / rank in it, b [ranks, outputs]. Of experts: [experts, ..., ...]."""

    a: torch.Tensor
    b: torch.Tensor
    tiled: TiledPair | None = None  # the same, as the kernels read it

    def of(self, expert: int) -> Pair:
        """One expert's."""
        return Pair(self.a[expert], self.b[expert])

    def add_to(self, out: torch.Tensor, rows: torch.Tensor) -> None:
        out.addmm_(rows @ self.a, self.b)


@dataclass(slots=True)
class Recipe:
    """Where the tensors of a payload go in a room. The next payload of the same tensors is put there without looking for places: names
    and shapes of 420 tensors, as a model of 30 layers has, cost more than their bytes."""

    tensors: dict[str, tuple[torch.Size, torch.dtype]]
    layers: list[dict[str, Pair]]
    whole: bool = True  # whether every tensor has its place here: an expert's pair is made anew
    places: dict[str, torch.Tensor] = field(default_factory=dict)  # of each A and B, by name
    lowering: list[torch.Tensor] = field(default_factory=list)  # what holds all A, which take the scaling: they are less than B
    tiled: list[tuple[NativeKernels, torch.Tensor, torch.Tensor]] = field(default_factory=list)  # what is laid out in tiles, and where

    def fits(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether the payload has the tensors for which this was made."""
        return self.whole and self.tensors == _kinds(tensors)

    def fill(self, tensors: Mapping[str, torch.Tensor], scaling: float) -> None:
        torch._foreach_copy_(list(self.places.values()), [tensors[name] for name in self.places])
        for halves in self.lowering:
            halves.mul_(scaling)
        for kernels, halves, tiles in self.tiled:
            kernels.pack(halves, tiles)


@dataclass(frozen=True, slots=True)
class Adapter:
    """One policy version's adapters, by layer and fused linear. Empty at version 0: lora_B is zero there."""

    version: int
    layers: list[dict[str, Pair]]
    room: Room = field(default_factory=Room)  # holds all of them but those of experts
    recipe: Recipe | None = None  # none at version 0


def no_adapter(shape: Shape, version: int = 0) -> Adapter:
    """The base policy."""
    return Adapter(version, [{} for _ in range(shape.layers)])


def build_adapter(
    tensors: Mapping[str, torch.Tensor], shape: Shape, scaling: float, version: int, dtype: torch.dtype, spare: Adapter | None = None
) -> Adapter:
    """Called beside the decode loop when a payload has arrived. What is made lies where `spare` does, which nothing computes with.

    Raises EngineError on a name or shape that does not fit.
    """
    if spare and spare.recipe and spare.recipe.fits(tensors):
        room, recipe = spare.room, spare.recipe
    else:
        room = spare.room if spare else Room()
        recipe = _recipe(tensors, shape, scaling, dtype, room)
    if recipe.places:
        recipe.fill(tensors, scaling)
    return Adapter(version, recipe.layers, room, recipe)


def _recipe(tensors: Mapping[str, torch.Tensor], shape: Shape, scaling: float, dtype: torch.dtype, room: Room) -> Recipe:
    """The places of all tensors but those of experts, whose pairs are made here."""
    sizes = [_sizes(shape, layer) for layer in range(shape.layers)]
    found: dict[tuple[int, str], dict[str, str]] = {}
    for name in tensors:
        place = _place(name, sizes)
        if place is None:
            raise EngineError("the payload names a tensor this model has no place for", field="transport.payload", value=name)
        layer, module, half = place
        found.setdefault((layer, module), {})[half] = name
    recipe = Recipe(_kinds(tensors), [{} for _ in sizes])
    for (layer, module), names in found.items():
        pair = {half: tensors[name] for half, name in names.items()}
        inputs, outputs = sizes[layer][module]
        _check(layer, module, pair, inputs, outputs, shape.experts.count if shape.experts and module in EXPERTS else 1)
        if module in EXPERTS and shape.experts:
            recipe.whole = False
            recipe.layers[layer][module] = _by_expert(pair, shape.experts.count, scaling, dtype)
    for fused, modules in FUSED.items():
        alike: dict[tuple[object, ...], list[int]] = {}  # layers whose pairs have the same shapes: they are fused together
        for layer in range(shape.layers):
            given = [found.get((layer, module)) for module in modules]
            if any(given):
                key = tuple(
                    (sizes[layer][module][1], pair and tensors[pair["A"]].shape) for module, pair in zip(modules, given, strict=True)
                )
                alike.setdefault(key, []).append(layer)
        for layers in alike.values():
            widths = [sizes[layers[0]][module][1] for module in modules]
            pairs = [[found.get((layer, module)) for layer in layers] for module in modules]
            made = _fuse(pairs, tensors, widths, dtype, room, f"{fused} of layers {layers}", recipe)
            for layer, fresh in zip(layers, made, strict=True):
                recipe.layers[layer][fused] = fresh
    return recipe


def _kinds(tensors: Mapping[str, torch.Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def _place(name: str, sizes: list[dict[str, tuple[int, int]]]) -> tuple[int, str, str] | None:
    """(layer, module, half) of a tensor's name; None where the model has no such module."""
    if match := _EXPERTS_NAME.fullmatch(name):
        layer, module, half = int(match[1]), EXPERTS[0] if match[2] else EXPERTS[1], match[3]
    elif match := _NAME.fullmatch(name):
        layer, module, half = int(match[1]), match[2], match[3]
    else:
        return None
    return (layer, module, half) if layer < len(sizes) and module in sizes[layer] else None


def _sizes(shape: Shape, layer: int) -> dict[str, tuple[int, int]]:
    """(inputs, outputs) of each module of a layer; of an expert, its own."""
    hidden, wide, experts = shape.hidden, shape.intermediate, shape.experts
    attention = {
        "q": (hidden, shape.query_rows),
        "k": (hidden, shape.kv_rows),
        "v": (hidden, shape.kv_rows),
        "o": (shape.query_rows, hidden),
    }
    if experts is not None and layer in experts.layers:
        return {**attention, EXPERTS[0]: (hidden, 2 * experts.intermediate), EXPERTS[1]: (experts.intermediate, hidden)}
    return {**attention, "gate": (hidden, wide), "up": (hidden, wide), "down": (wide, hidden)}


def _check(layer: int, module: str, pair: dict[str, torch.Tensor], inputs: int, outputs: int, experts: int) -> None:
    fits = set(pair) == {"A", "B"} and pair["A"].shape[1:] == (inputs,) and pair["B"].shape == (outputs, pair["A"].shape[0])
    if not fits or pair["A"].shape[0] % experts:
        given = {f"lora_{half}": tuple(tensor.shape) for half, tensor in sorted(pair.items())}
        rows = "rank" if experts == 1 else f"rank x {experts}"
        raise EngineError(
            f"the adapter of layer {layer}, {module}_proj does not fit",
            field="transport.payload",
            value=given,
            cure=f"lora_A must be [{rows}, {inputs}] and lora_B [{outputs}, {rows}]: trainer and engine need the same model",
        )


def _by_expert(pair: dict[str, torch.Tensor], experts: int, scaling: float, dtype: torch.dtype) -> Pair:
    """PEFT's layout: the rows of A go by expert, then by rank; the columns of B by rank, then by expert."""
    a = pair["A"].float().view(experts, -1, pair["A"].shape[1]).transpose(1, 2) * scaling
    b = pair["B"].float().view(pair["B"].shape[0], -1, experts).permute(2, 1, 0)
    return Pair(a.to(dtype).contiguous(), b.to(dtype, copy=True).contiguous())


def _fuse(
    given: list[list[dict[str, str] | None]],
    tensors: Mapping[str, torch.Tensor],
    outputs: list[int],
    dtype: torch.dtype,
    room: Room,
    place: str,
    recipe: Recipe,
) -> list[Pair]:
    """The pairs of n layers that are alike, still without numbers; given: the tensors' names by module, then by layer. Their halves lie
    in one tensor for all layers, which is packed at once."""
    present = [(column, [pair for pair in layers if pair]) for column, layers in zip(_starts(outputs), given, strict=True) if layers[0]]
    ranks = [tensors[layers[0]["A"]].shape[0] for _, layers in present]
    inputs, count = tensors[present[0][1][0]["A"]].shape[1], len(given[0])
    kernels = tile_kernels(sum(outputs), inputs) if dtype == torch.bfloat16 else None
    wide = filled(sum(ranks)) if kernels else sum(ranks)
    place = f"{place}, ranks {ranks} at {[column for column, _ in present]}"  # everything else in them is zero, and stays so
    lowering = room.zeros(f"lowering {place}", (count, wide, inputs), dtype)
    raising = room.zeros(f"raising {place}", (count, sum(outputs), wide), dtype)
    for row, rank, (column, layers) in zip(_starts(ranks), ranks, present, strict=True):
        for layer, pair in enumerate(layers):
            recipe.places[pair["A"]] = lowering[layer, row : row + rank]
            recipe.places[pair["B"]] = raising[layer, column : column + len(tensors[pair["B"]]), row : row + rank]
    recipe.lowering.append(lowering)
    halves = lowering[:, : sum(ranks)].transpose(1, 2), raising[..., : sum(ranks)].transpose(1, 2)
    if kernels is None:
        return [Pair(*pair) for pair in zip(*halves, strict=True)]
    tiles = []
    for number, half in enumerate((lowering, raising)):
        packed = room.empty(f"tiles {number} {place}", (count, half[0].numel()), dtype)
        recipe.tiled.append((kernels, half, packed))
        tiles.append([Tiled(data, half.shape[1], half.shape[2]) for data in packed.unbind(0)])
    return [Pair(*pair) for pair in zip(*halves, map(TiledPair, *tiles), strict=True)]


def _starts(widths: list[int]) -> list[int]:
    """Where each begins that stands behind the others."""
    return [sum(widths[:number]) for number in range(len(widths))]
