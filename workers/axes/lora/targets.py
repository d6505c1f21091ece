"""Which parameters of a model get an adapter, in PEFT's words, and where PEFT keeps it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from workers.axes.backend.routing import routers
from workers.contract.errors import ConfigError


def adapter_targets(model: Any, moe_experts: bool) -> dict[str, Any]:
    """Called once, when the adapters are made: PEFT's target_modules and target_parameters.

    Dense models: every linear layer but the head. Mixture-of-experts models: attention alone, and with `moe_experts` every
    expert's layers, one low-rank pair an expert. Never the router: an adapter there would change who is chosen. PEFT's own
    "all-linear" would adapt router and experts, and takes the name of a dense layer's gate_proj for the experts'; so the dense
    layers that such a model may have are left alone. Raises ConfigError where there are no experts to adapt.
    """
    if not routers(model):
        if moe_experts:
            raise ConfigError(
                "the model has no experts to adapt",
                field="lora.moe_experts",
                value=True,
                cure="set lora.moe_experts to false, or choose a mixture-of-experts model (Qwen3MoeForCausalLM)",
            )
        return {"target_modules": "all-linear"}
    attention = {
        name.rpartition(".")[2] for name, module in model.named_modules() if isinstance(module, torch.nn.Linear) and ".self_attn." in name
    }
    targets: dict[str, Any] = {"target_modules": sorted(attention)}
    if moe_experts:
        targets["target_parameters"] = ["mlp.experts.gate_up_proj", "mlp.experts.down_proj"]
    return targets


def adapter_of(name: str) -> tuple[str, str]:
    """The names of the adapter's two halves, A and B, for a weight named as in the unadapted model's state dictionary.

    PEFT wraps the experts' stacked tensors one inside the other: down_proj outside, gate_up_proj inside.
    """
    stem = name.removesuffix(".weight")
    if stem.endswith(".experts.down_proj"):
        stem = stem.removesuffix(".down_proj")
    elif stem.endswith(".experts.gate_up_proj"):
        stem = stem.removesuffix("gate_up_proj") + "base_layer"
    return f"base_model.model.{stem}.lora_A.weight", f"base_model.model.{stem}.lora_B.weight"


def by_expert(down: Tensor, up: Tensor, experts: int) -> list[tuple[Tensor, Tensor]]:
    """Each expert's A (rank, in) and B (out, rank). PEFT stacks the rows of A by expert, the columns of B by rank, then expert."""
    firsts = down.view(experts, -1, down.shape[1])
    seconds = up.view(up.shape[0], -1, experts).permute(2, 0, 1)
    return list(zip(firsts, seconds, strict=True))
