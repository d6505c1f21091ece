"""adapter_only: the engine keeps the frozen base and applies the adapter un-merged; only the adapter travels.

Masters are float32. Forward and backward passes use copies in the model's type, the very values that are published, so that
trainer and engine speak of the same policy. Where the model is float32 itself, masters and copies are one.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from torch import Tensor

from workers.axes.lora.base import child_generator
from workers.contract.config import Lora
from workers.contract.errors import EngineError

ADAPTER = "default"


class AdapterOnly:
    """LoRA (Hu et al. 2021, arXiv:2106.09685) on every linear layer but the head, by PEFT. Scaled by alpha / rank."""

    def __init__(self, model: Any, options: Lora, seed: int) -> None:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        alpha: Any = options.alpha  # PEFT declares an int, and computes with what it is given
        adapter = LoraConfig(
            r=options.rank, lora_alpha=alpha, lora_dropout=0.0, target_modules="all-linear", bias="none", task_type="CAUSAL_LM"
        )
        # PEFT would make float32 adapters inside a bfloat16 model and cast every activation to and fro.
        self.model: PeftModel = get_peft_model(model, adapter, autocast_adapter_dtype=False)
        self.working: dict[str, Tensor] = {
            name.replace(f".{ADAPTER}.", "."): parameter
            for name, parameter in sorted(self.model.named_parameters())
            if parameter.requires_grad
        }
        if not self.working:
            raise EngineError("the model has no linear layer to adapt", field="model.path", cure="use a transformer language model")
        self.masters: dict[str, Tensor] = {
            name: parameter if parameter.dtype in (torch.float32, torch.float64) else parameter.detach().float()
            for name, parameter in self.working.items()
        }
        self._initialise(seed)

    def gather(self) -> None:
        """Adds the copies' gradients to the masters', in float32."""
        for name, master in self.masters.items():
            copy = self.working[name]
            if copy is master or copy.grad is None:
                continue
            if master.grad is None:
                master.grad = copy.grad.to(master.dtype)
            else:
                master.grad.add_(copy.grad)
            copy.grad = None

    def refresh(self) -> None:
        """Rounds the masters into the copies."""
        with torch.no_grad():
            for name, master in self.masters.items():
                if self.working[name] is not master:
                    self.working[name].copy_(master)

    def payload(self) -> dict[str, Tensor]:
        """The copies, in the model's type: `base_model.model.<module>.lora_A.weight` (rank, in), `.lora_B.weight` (out, rank)."""
        return {name: parameter.detach() for name, parameter in self.working.items()}

    def save_config(self, folder: Path, base: str) -> None:
        """adapter_config.json, with which PEFT loads the folder on its own."""
        config = self.model.peft_config[ADAPTER]
        config.inference_mode = True
        config.base_model_name_or_path = base
        config.save_pretrained(str(folder))
        config.inference_mode = False

    def _initialise(self, seed: int) -> None:
        """A uniform within +-1/sqrt(in), as PEFT's kaiming_uniform(a=sqrt(5)); B zero: the first policy is the base model."""
        stream = child_generator(seed, "initialisation")
        with torch.no_grad():
            for name, master in self.masters.items():
                if ".lora_A." in name:
                    bound = 1 / math.sqrt(master.shape[1])
                    values = torch.rand(master.shape, generator=stream, dtype=torch.float32)
                    master.copy_((values * 2 - 1) * bound)
                else:
                    master.zero_()
        self.refresh()
