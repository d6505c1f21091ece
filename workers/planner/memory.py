"""Whether it fits: the memory of one GPU of each pool, with the arithmetic shown."""

from __future__ import annotations

from typing import Any

from workers.contract.config import Lora
from workers.planner.lengths import drawn
from workers.planner.scenario import Memory, Scenario
from workers.planner.speeds import Shape

SEEN = 1024  # samples whose mean length stands for the expected one


def memory(scenario: Scenario, lora: Lora) -> dict[str, Any] | None:
    """By pool: parts in bytes of one GPU, their sum, the limit, whether it fits, and lines of arithmetic. None where nobody gave a size.

    The inference pool is judged twice: `fits` with every slot at its longest, `fits_expected` with every slot at half its mean length,
    which is where samples of all ages stand on average. Of an adapter alone there are gradients and optimizer state.
    """
    if scenario.memory is None or scenario.shape is None:
        return None
    return {
        "generators": _generators(scenario, scenario.memory, scenario.shape),
        "trainer": _trainer(scenario, scenario.memory, scenario.shape, lora),
    }


def _generators(scenario: Scenario, given: Memory, shape: Shape) -> dict[str, Any]:
    generation, gpus = scenario.generation, scenario.generation.gpus_per_replica
    weights = shape.weight_bytes / gpus
    longest = scenario.prompt_tokens + scenario.max_new_tokens
    expected = scenario.prompt_tokens + mean_tokens(scenario) / 2
    full, usual = (generation.slots * tokens * shape.position_bytes / gpus for tokens in (longest, expected))
    limit = given.gpu_bytes * given.usable
    return {
        "parts": {"weights": weights, "kv_longest": full, "kv_expected": usual},
        "bytes": weights + full,
        "expected_bytes": weights + usual,
        "limit_bytes": limit,
        "fits": weights + full <= limit,
        "fits_expected": weights + usual <= limit,
        "arithmetic": [
            f"weights: {shape.params:.4g} params x {shape.bytes_per_value:g} bytes / {gpus} GPUs = {_gb(weights)}",
            f"a position: 2 x {shape.layers} layers x {shape.kv_heads} heads x {shape.head_dim} x {shape.bytes_per_value:g} bytes"
            f" = {shape.position_bytes / 1024:.4g} KiB",
            f"keys and values at the longest: {generation.slots} slots x ({scenario.prompt_tokens} + {scenario.max_new_tokens}) positions"
            f" / {gpus} GPUs = {_gb(full)}",
            f"keys and values expected: {generation.slots} slots x {expected:.0f} positions / {gpus} GPUs = {_gb(usual)}",
            f"limit: {_gb(given.gpu_bytes)} x {given.usable:g} = {_gb(limit)}",
        ],
    }


def _trainer(scenario: Scenario, given: Memory, shape: Shape, lora: Lora) -> dict[str, Any]:
    gpus = scenario.training.gpus
    trained = shape.params if lora.kind == "off" else shape.adapter_params(lora.rank)
    each = {
        "weights": (shape.params, shape.bytes_per_value),
        "gradients": (trained, given.gradient_bytes),
        "optimizer": (trained, given.optimizer_bytes),
    }
    parts = {name: params * size / gpus for name, (params, size) in each.items()} | {"activations": given.activation_bytes}
    total, limit = sum(parts.values()), given.gpu_bytes * given.usable
    lines = [f"{name}: {params:.4g} params x {size:g} bytes / {gpus} GPUs = {_gb(parts[name])}" for name, (params, size) in each.items()]
    return {
        "parts": parts,
        "bytes": total,
        "limit_bytes": limit,
        "fits": total <= limit,
        "arithmetic": [*lines, f"activations: {_gb(given.activation_bytes)} as given", f"limit: {_gb(limit)}"],
    }


def mean_tokens(scenario: Scenario) -> float:
    """Of a completion, cut ones as they are cut."""
    lengths = (sum(drawn(scenario.lengths, scenario.seed, "length", key)) for key in range(SEEN))
    return sum(min(tokens, scenario.max_new_tokens) for tokens in lengths) / SEEN


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
