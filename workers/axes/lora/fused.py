"""A linear layer and its adapter as one step of the graph: no product of the layer's size but the two that must be.

PEFT's own forward pass scales and adds tensors as large as the layer's output, its backward pass again. Here, with s = alpha / rank,
    y = x W^T + (x A^T)(s B)^T + bias;    dx = g W + (g (s B)) A;    dA = (g (s B))^T x;    dB = s g^T (x A^T),
where each second product is added by the matrix product itself.
"""

from __future__ import annotations

from typing import Any

import torch
from peft.tuners.lora import Linear
from torch import Tensor
from torch.nn import functional


class _Adapted(torch.autograd.Function):
    """x (N, in), weight (out, in) frozen, bias (out) frozen or None, down (rank, in), up (out, rank) -> (N, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, down: Tensor, up: Tensor, scale: float) -> Tensor:
        low = x @ down.t()
        ctx.scale = scale
        ctx.save_for_backward(x, weight, down, up, low)
        return functional.linear(x, weight, bias).addmm_(low, up.t(), alpha=scale)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        x, weight, down, up, low = ctx.saved_tensors
        above = upstream[0]
        raised = (above @ up).mul_(ctx.scale)
        before = (above @ weight).addmm_(raised, down) if ctx.needs_input_grad[0] else None
        return before, None, None, raised.t() @ x, (above.t() @ low).mul_(ctx.scale), None


def fuse(model: Any, adapter: str) -> None:
    """Called once, when PEFT has put its layers in: every plain one computes as above. Switched off, it computes as PEFT does."""
    for module in model.modules():
        if isinstance(module, Linear) and type(module.base_layer) is torch.nn.Linear and adapter in module.lora_A:
            module.forward = _Forward(module, adapter)


class _Forward:
    """A layer's forward pass. Parameters spread over ranks (DTensor) go PEFT's way."""

    def __init__(self, module: Any, adapter: str) -> None:
        self._module = module
        self._adapter = adapter
        self._plain = module.forward

    def __call__(self, x: Tensor, *given: Any, **named: Any) -> Tensor:
        module, adapter = self._module, self._adapter
        base = module.base_layer
        down, up = module.lora_A[adapter].weight, module.lora_B[adapter].weight
        if module.disable_adapters or any(hasattr(part, "to_local") for part in (base.weight, down, up)):
            out: Tensor = self._plain(x, *given, **named)
            return out
        made: Tensor = _Adapted.apply(  # type: ignore[no-untyped-call]
            x.reshape(-1, x.shape[-1]), base.weight, base.bias, down, up, module.scaling[adapter]
        )
        return made.view(*x.shape[:-1], made.shape[-1])
