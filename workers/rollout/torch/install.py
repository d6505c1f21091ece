"""What a publish carried, made ready to serve beside the decode thread: an adapter, or whole weights.

Whole weights are built while the old ones serve; the decode thread only exchanges a pointer. So an engine that has been given whole
weights holds two copies: the one that served before is kept, and written over at the next publish. So it is with adapters.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch

from workers.axes.backend.threads import cores
from workers.contract.config import Lora
from workers.contract.errors import EngineError
from workers.rollout.torch.adapter import build_adapter, no_adapter
from workers.rollout.torch.linear import Linear
from workers.rollout.torch.room import Room
from workers.rollout.torch.shape import Shape
from workers.rollout.torch.update import Served
from workers.rollout.torch.weights import Weights, assemble

_LAYER = re.compile(r"model\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight")


class Installer:
    """Constructed once an engine. Knows what learns, and so what a payload holds."""

    def __init__(self, options: Lora, shape: Shape, dtype: torch.dtype) -> None:
        self._adapter_only = options.kind == "adapter_only"
        self._scaling = options.alpha / options.rank
        self._shape = shape
        self._dtype = dtype
        self._spare: Served | None = None

    def build(self, tensors: Mapping[str, torch.Tensor], version: int, serving: Weights) -> Served:
        """Called by one thread at a time, beside the decode thread, with an unpacked payload; nothing that is built refers to it.

        Raises EngineError naming the tensor that does not fit.
        """
        with torch.inference_mode():
            spare, self._spare = self._spare, None
            if self._adapter_only:
                return Served(build_adapter(tensors, self._shape, self._scaling, version, self._dtype, spare.adapter if spare else None))
            _check(tensors, self._shape)
            room = spare.weights.room if spare and spare.weights else Room()
            weights = assemble(_Given(tensors, self._dtype), self._shape, room, cores())
            _same_biases(weights, serving)
            return Served(no_adapter(self._shape, version), weights)

    def take_back(self, replaced: Served) -> None:
        """Called after a flip with what served before, when nothing computes with it any more: it will be written over."""
        self._spare = replaced


class _Given:
    """A payload as a source. Tensors that are in the engine's format already are handed out as they are."""

    def __init__(self, tensors: Mapping[str, torch.Tensor], dtype: torch.dtype) -> None:
        self._tensors = tensors
        self._dtype = dtype

    def take(self, name: str) -> torch.Tensor:
        found = self.maybe(name)
        if found is None:
            raise _refused("the payload lacks a tensor of the model", name)
        return found

    def maybe(self, name: str) -> torch.Tensor | None:
        found = self._tensors.get(name)
        return None if found is None else found.to(self._dtype).contiguous()


def _check(tensors: Mapping[str, torch.Tensor], shape: Shape) -> None:
    """Every name has a place, every tensor its size."""
    for name, tensor in tensors.items():
        wanted = _size_of(name, shape)
        if wanted is None:
            raise _refused("the payload names a tensor this model has no place for", name)
        if tuple(tensor.shape) != wanted:
            raise _refused(f"a tensor does not fit: it has the shape {tuple(tensor.shape)}, the engine's {wanted}", name)


def _size_of(name: str, shape: Shape) -> tuple[int, ...] | None:
    """The shape of the tensor of this name; None: the model has none."""
    hidden = shape.hidden
    whole = {"model.embed_tokens.weight": (shape.vocab, hidden), "model.norm.weight": (hidden,)}
    if not shape.tied:
        whole["lm_head.weight"] = (shape.vocab, hidden)
    match = _LAYER.fullmatch(name)
    if match is None or int(match[1]) >= shape.layers:
        return whole.get(name)
    sparse = shape.experts is not None and int(match[1]) in shape.experts.layers
    return _attention(match[2], shape) or (_experts(match[2], shape) if sparse else _mlp(match[2], shape))


def _attention(part: str, shape: Shape) -> tuple[int, ...] | None:
    hidden, queries, keys = shape.hidden, shape.query_rows, shape.kv_rows
    if part in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        return (hidden,)
    if shape.query_key_norm and part in ("self_attn.q_norm.weight", "self_attn.k_norm.weight"):
        return (shape.head_dim,)
    rows = {"q": (queries, hidden), "k": (keys, hidden), "v": (keys, hidden), "o": (hidden, queries)}
    return next((_part(part, f"self_attn.{name}_proj", size) for name, size in rows.items() if part.startswith(f"self_attn.{name}_")), None)


def _mlp(part: str, shape: Shape) -> tuple[int, ...] | None:
    hidden, wide = shape.hidden, shape.intermediate
    rows = {"gate": (wide, hidden), "up": (wide, hidden), "down": (hidden, wide)}
    return next((_part(part, f"mlp.{name}_proj", size) for name, size in rows.items() if part.startswith(f"mlp.{name}_")), None)


def _part(part: str, module: str, size: tuple[int, int]) -> tuple[int, ...] | None:
    return {f"{module}.weight": size, f"{module}.bias": size[:1]}.get(part)


def _experts(part: str, shape: Shape) -> tuple[int, ...] | None:
    assert shape.experts is not None
    hidden, count, wide = shape.hidden, shape.experts.count, shape.experts.intermediate
    stacked = {
        "mlp.gate.weight": (count, hidden),
        "mlp.experts.gate_up_proj": (count, 2 * wide, hidden),
        "mlp.experts.down_proj": (count, hidden, wide),
    }
    match = _EXPERT.fullmatch(part)
    if match is None or int(match[1]) >= count:
        return stacked.get(part)
    return (hidden, wide) if match[2] == "down" else (wide, hidden)


def _same_biases(fresh: Weights, serving: Weights) -> None:
    """A bias that went missing would not be noticed otherwise: without one, a module computes just as well."""
    for number, (new, old) in enumerate(zip(fresh.layers, serving.layers, strict=True)):
        pairs: dict[str, tuple[Linear | None, Linear | None]] = {
            "self_attn.q_proj, k_proj, v_proj": (new.qkv, old.qkv),
            "self_attn.o_proj": (new.output, old.output),
            "mlp.gate_proj, up_proj": (new.gate_up, old.gate_up),
            "mlp.down_proj": (new.down, old.down),
        }
        for module, (ours, theirs) in pairs.items():
            if ours is not None and theirs is not None and ours.biased != theirs.biased:
                raise _refused("payload and engine disagree about biases", f"model.layers.{number}.{module}.bias")


def _refused(message: str, name: str) -> EngineError:
    return EngineError(
        message, field="transport.payload", value=name, cure="trainer and engines need the same model and the same lora.kind"
    )
