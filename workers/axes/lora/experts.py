"""Experts' adapters beside the frozen weights in the trainer's forward pass, as the engine applies them.

PEFT adapts a stacked tensor by adding B A to it before each forward pass. In bfloat16 most of a small update is lost in that sum,
and the engine, which keeps the two apart, would be of another policy than the trainer. Here they are kept apart, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from peft.tuners.lora.layer import ParamWrapper
from torch import Tensor
from torch.nn import functional

from workers.axes.lora.targets import by_expert


def apply_beside(model: Any, adapter: str) -> None:
    """Called once, after PEFT has wrapped the experts of the sparse layers; a model without wrapped experts stays as it is."""
    for outer, inner in _wrapped(model):
        outer.forward = partial(_forward, outer, inner, adapter)


def _wrapped(model: Any) -> Iterator[tuple[Any, Any]]:
    """The two wrappers of each sparse layer's experts: of down_proj outside, of gate_up_proj inside."""
    for module in model.modules():
        if isinstance(module, ParamWrapper) and module.parameter_name == "down_proj" and isinstance(module.base_layer, ParamWrapper):
            yield module, module.base_layer


def _forward(outer: Any, inner: Any, adapter: str, rows: Tensor, ids: Tensor, gates: Tensor) -> Tensor:
    """rows (n, hidden), ids and gates (n, k) -> (n, hidden): gate-weighed sum over the chosen experts of down(silu(gate) x up)."""
    experts = inner.base_layer
    if outer.disable_adapters:
        plain: Tensor = experts(rows, ids, gates)
        return plain
    first = by_expert(inner.lora_A[adapter].weight, inner.lora_B[adapter].weight, len(experts.gate_up_proj))
    second = by_expert(outer.lora_A[adapter].weight, outer.lora_B[adapter].weight, len(experts.down_proj))
    result = torch.zeros_like(rows)
    for expert in torch.unique(ids).tolist():
        tokens, rank = torch.where(ids == expert)
        gate_up = _adapted(rows[tokens], experts.gate_up_proj[expert], first[expert], inner.scaling[adapter])
        gate, up = gate_up.chunk(2, dim=-1)
        out = _adapted(experts.act_fn(gate) * up, experts.down_proj[expert], second[expert], outer.scaling[adapter])
        result = result.index_add(0, tokens, (out * gates[tokens, rank, None]).to(result.dtype))
    return result


def _adapted(rows: Tensor, weight: Tensor, pair: tuple[Tensor, Tensor], scaling: float) -> Tensor:
    return functional.linear(rows, weight) + functional.linear(functional.linear(rows, pair[0]), pair[1]) * scaling
