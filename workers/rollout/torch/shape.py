"""What a model folder's config.json says, reduced to what a decoder needs. Refuses what this engine would get wrong."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from workers.contract.errors import EngineError, EnvironmentMissing

ARCHITECTURES = {"LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM"}
MOST_EXPERTS = 256  # recorded routing has one byte an expert id
ROPE_TYPES = {"default", "linear", "llama3"}


@dataclass(frozen=True, slots=True)
class ExpertShape:
    """The sparse layers of a mixture-of-experts model. gates_sum_to_one: the chosen experts' probabilities are renormalised."""

    layers: tuple[int, ...]  # which layers are sparse, counted from 0; the others have an ordinary MLP
    count: int
    chosen: int  # experts a token
    intermediate: int
    gates_sum_to_one: bool


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes and constants of one causal language model."""

    architecture: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    norm_eps: float
    max_positions: int
    tied: bool
    query_key_norm: bool
    rope: dict[str, Any]  # rope_type, rope_theta and, by type, its factors
    experts: ExpertShape | None = None

    @property
    def query_rows(self) -> int:
        return self.heads * self.head_dim

    @property
    def kv_rows(self) -> int:
        return self.kv_heads * self.head_dim


def read_shape(folder: Path) -> Shape:
    """Called once at start. Raises EnvironmentMissing without a config.json, EngineError on a model this engine cannot run."""
    path = folder / "config.json"
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise EnvironmentMissing(
            "the model folder holds no config.json", field="model.path", value=str(folder), cure="name a Hugging Face model folder"
        ) from None
    except ValueError as error:
        raise EngineError(f"config.json is not JSON: {error}", field="model.path", value=str(path), cure="fetch the model again") from error
    architecture = str((raw.get("architectures") or ["none named"])[0])
    if architecture not in ARCHITECTURES:
        raise _refused(f"the torch engine does not know the architecture {architecture}", folder)
    if raw.get("hidden_act", "silu") != "silu":
        raise _refused(f"the torch engine does not know the activation {raw['hidden_act']}", folder)
    if raw.get("use_sliding_window"):
        raise _refused(f"{architecture} with a sliding window is not supported", folder)
    hidden, heads = int(raw["hidden_size"]), int(raw["num_attention_heads"])
    return Shape(
        architecture=architecture,
        layers=int(raw["num_hidden_layers"]),
        hidden=hidden,
        heads=heads,
        kv_heads=int(raw.get("num_key_value_heads") or heads),
        head_dim=int(raw.get("head_dim") or hidden // heads),
        intermediate=int(raw["intermediate_size"]),
        vocab=int(raw["vocab_size"]),
        norm_eps=float(raw.get("rms_norm_eps", 1e-6)),
        max_positions=int(raw.get("max_position_embeddings", 2048)),
        tied=bool(raw.get("tie_word_embeddings", False)),
        query_key_norm=architecture in {"Qwen3ForCausalLM", "Qwen3MoeForCausalLM"},
        rope=_rope(raw, folder),
        experts=_experts(raw, folder) if architecture == "Qwen3MoeForCausalLM" else None,
    )


def _experts(raw: dict[str, Any], folder: Path) -> ExpertShape | None:
    """By Qwen3-MoE's rule: every `decoder_sparse_step`-th layer is sparse, but for `mlp_only_layers`."""
    count = int(raw.get("num_local_experts") or raw.get("num_experts") or 0)  # transformers 5 writes the first, before it the second
    if count > MOST_EXPERTS:
        raise _refused(f"{count} experts a layer are more than the {MOST_EXPERTS} that the torch engine numbers", folder)
    step, dense = int(raw.get("decoder_sparse_step", 1)), set(raw.get("mlp_only_layers") or [])
    sparse = tuple(layer for layer in range(int(raw["num_hidden_layers"])) if layer not in dense and (layer + 1) % step == 0)
    if not (count and sparse):
        return None
    return ExpertShape(
        layers=sparse,
        count=count,
        chosen=int(raw["num_experts_per_tok"]),
        intermediate=int(raw["moe_intermediate_size"]),
        gates_sum_to_one=bool(raw.get("norm_topk_prob", False)),
    )


def _rope(raw: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Rotary settings, from `rope_parameters` (transformers 5) or from `rope_theta` beside `rope_scaling` (before)."""
    settings = dict(raw.get("rope_parameters") or raw.get("rope_scaling") or {})
    settings.setdefault("rope_theta", raw.get("rope_theta", 10000.0))
    settings.setdefault("rope_type", settings.pop("type", "default"))
    if settings["rope_type"] not in ROPE_TYPES:
        raise _refused(f"the torch engine does not know the rotary embedding {settings['rope_type']}", folder)
    if float(settings.get("partial_rotary_factor", raw.get("partial_rotary_factor", 1.0))) != 1.0:
        raise _refused("partial rotary embeddings are not supported", folder)
    return settings


def _refused(message: str, folder: Path) -> EngineError:
    known = ", ".join(sorted(ARCHITECTURES))
    return EngineError(message, field="model.path", value=str(folder), cure=f"choose a model of one of: {known}")


def rotary_tables(shape: Shape, positions: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """cos and signed sin, both [positions, head_dim]; x * cos + roll(x, head_dim / 2) * sin rotates x."""
    half = torch.arange(0, shape.head_dim, 2, dtype=torch.float32) / shape.head_dim
    inverse = 1.0 / (float(shape.rope["rope_theta"]) ** half)
    if shape.rope["rope_type"] == "linear":
        inverse = inverse / float(shape.rope["factor"])
    elif shape.rope["rope_type"] == "llama3":
        inverse = _llama3(inverse, shape.rope)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), inverse)
    cosine = torch.cat((angles.cos(), angles.cos()), dim=-1)
    sine = torch.cat((-angles.sin(), angles.sin()), dim=-1)
    return cosine.to(dtype), sine.to(dtype)


def _llama3(inverse: torch.Tensor, rope: dict[str, Any]) -> torch.Tensor:
    """Llama 3's rule: long waves are stretched by `factor`, short ones stay, those between are mixed."""
    factor, low, high = float(rope["factor"]), float(rope["low_freq_factor"]), float(rope["high_freq_factor"])
    original = float(rope["original_max_position_embeddings"])
    waves = 2 * math.pi / inverse
    mix = (original / waves - low) / (high - low)
    mixed = (1 - mix) * inverse / factor + mix * inverse
    stretched = torch.where(waves > original / low, inverse / factor, mixed)
    return torch.where(waves < original / high, inverse, stretched)
