"""Tensors by Hugging Face's names, from a model folder or a publish, as the weights of a decoder: q, k, v and gate, up are fused
by rows."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from safetensors import SafetensorError, safe_open

from workers import models
from workers.contract.errors import EngineError, EnvironmentMissing
from workers.rollout.torch.experts import Experts, read_experts
from workers.rollout.torch.linear import Linear
from workers.rollout.torch.room import Room
from workers.rollout.torch.shape import Shape


@dataclass(slots=True)
class LayerWeights:
    """One transformer block, with an ordinary MLP (gate_up, down) or, in a sparse layer, experts."""

    input_norm: torch.Tensor
    qkv: Linear
    query_norm: torch.Tensor | None  # Qwen3 only
    key_norm: torch.Tensor | None
    output: Linear
    mlp_norm: torch.Tensor
    gate_up: Linear | None
    down: Linear | None
    experts: Experts | None = None


@dataclass(slots=True)
class Weights:
    """Everything frozen. `head` has the same numbers as `embedding` where the model ties them."""

    embedding: torch.Tensor
    layers: list[LayerWeights]
    norm: torch.Tensor
    head: Linear
    room: Room  # holds all of them


class Source(Protocol):
    """Where tensors come from, in the engine's number format."""

    def take(self, name: str) -> torch.Tensor:
        """Raises EngineError where there is no tensor of that name."""
        ...

    def maybe(self, name: str) -> torch.Tensor | None: ...


class _Files:
    """Tensors by name over one or several safetensors files; each is read when asked for."""

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._folder = folder
        try:
            self._open: list[Any] = [safe_open(file, framework="pt") for file in models.weight_files(folder)]
        except (OSError, SafetensorError) as error:
            raise EnvironmentMissing(
                f"the model's weights cannot be read: {error}",
                field="model.path",
                value=str(folder),
                cure="the folder needs model.safetensors; convert other formats with transformers' save_pretrained",
            ) from error
        self._by_name = {key: file for file in self._open for key in _names(file)}

    def take(self, name: str) -> torch.Tensor:
        if name not in self._by_name:
            raise EngineError(
                f"the model's files hold no tensor {name}", field="model.path", value=str(self._folder), cure="fetch the model again"
            )
        tensor: torch.Tensor = self._by_name[name].get_tensor(name)
        return tensor.to(self._dtype)

    def maybe(self, name: str) -> torch.Tensor | None:
        return self.take(name) if name in self._by_name else None


def _names(file: Any) -> list[str]:
    return list(file.keys())


def load_weights(folder: Path, shape: Shape, dtype: torch.dtype) -> Weights:
    """Called once at start. Raises EnvironmentMissing or EngineError naming model.path."""
    room = Room()
    room.borrows = True
    weights = assemble(_Files(folder, dtype), shape, room)
    room.borrows = False
    return weights


def assemble(source: Source, shape: Shape, room: Room, threads: int = 1) -> Weights:
    """What is made lies in `room`, over what stood there. A source may hand out its own tensors: nothing made of them refers to them.
    With several threads parts are made side by side, each by one thread, and the source must bear it."""
    with ThreadPoolExecutor(threads, thread_name_prefix="layers", initializer=torch.set_num_threads, initargs=(1,)) as pool:
        head = pool.submit(_head, source, shape, room)
        layers = [pool.submit(_layer, source, shape, number, room) for number in range(shape.layers)]
        embedding = pool.submit(_copied, source, "model.embed_tokens", room)
    norm = _copied(source, "model.norm", room)
    return Weights(embedding.result(), [layer.result() for layer in layers], norm, head.result(), room)


@torch.inference_mode()
def _copied(source: Source, name: str, room: Room) -> torch.Tensor:
    return room.copy(name, source.take(f"{name}.weight"))


@torch.inference_mode()
def _head(source: Source, shape: Shape, room: Room) -> Linear:
    own = None if shape.tied else source.maybe("lm_head.weight")
    return Linear([source.take("model.embed_tokens.weight") if own is None else own], (), room, "lm_head")


@torch.inference_mode()
def _layer(source: Source, shape: Shape, number: int, room: Room) -> LayerWeights:
    block = f"model.layers.{number}"
    attention, mlp = f"{block}.self_attn", f"{block}.mlp"
    sparse = shape.experts is not None and number in shape.experts.layers
    return LayerWeights(
        input_norm=_copied(source, f"{block}.input_layernorm", room),
        qkv=_linear(source, room, f"{attention}.q_proj", f"{attention}.k_proj", f"{attention}.v_proj"),
        query_norm=_copied(source, f"{attention}.q_norm", room) if shape.query_key_norm else None,
        key_norm=_copied(source, f"{attention}.k_norm", room) if shape.query_key_norm else None,
        output=_linear(source, room, f"{attention}.o_proj"),
        mlp_norm=_copied(source, f"{block}.post_attention_layernorm", room),
        gate_up=None if sparse else _linear(source, room, f"{mlp}.gate_proj", f"{mlp}.up_proj"),
        down=None if sparse else _linear(source, room, f"{mlp}.down_proj"),
        experts=read_experts(source.take, source.maybe, mlp, shape.experts, room) if sparse and shape.experts else None,
    )


def _linear(source: Source, room: Room, *names: str) -> Linear:
    """The named modules' rows, one under the other, with their biases where they have any."""
    weights = [source.take(f"{name}.weight") for name in names]
    biases = [bias for name in names if (bias := source.maybe(f"{name}.bias")) is not None]
    return Linear(weights, biases if len(biases) == len(names) else (), room, names[0])
