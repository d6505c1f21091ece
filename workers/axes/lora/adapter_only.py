"""adapter_only: the engine keeps the frozen base and applies the adapter un-merged; only the adapter travels."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor

from workers.axes.lora.base import Whole, as_it_is, child_generator, gathered
from workers.axes.lora.experts import apply_beside
from workers.axes.lora.fused import fuse
from workers.axes.lora.masters import Masters, named
from workers.axes.lora.targets import adapter_targets
from workers.contract.config import Lora
from workers.contract.errors import EngineError

ADAPTER = "default"


class AdapterOnly(Masters):
    """LoRA (Hu et al. 2021, arXiv:2106.09685) by PEFT, on what `adapter_targets` names. Scaled by alpha / rank."""

    file = "adapter_model.safetensors"

    def __init__(self, model: Any, options: Lora, seed: int) -> None:
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self._base = model
        alpha: Any = options.alpha  # PEFT declares an int, and computes with what it is given
        targets = adapter_targets(model, options.moe_experts)
        adapter = LoraConfig(r=options.rank, lora_alpha=alpha, lora_dropout=0.0, bias="none", task_type="CAUSAL_LM", **targets)
        # PEFT would make float32 adapters inside a bfloat16 model and cast every activation to and fro.
        self.model: PeftModel = get_peft_model(model, adapter, autocast_adapter_dtype=False)
        apply_beside(self.model, ADAPTER)
        fuse(self.model, ADAPTER)
        super().__init__(self._adapters)
        if not self.working:
            raise EngineError("the model has no linear layer to adapt", field="model.path", cure="use a transformer language model")
        self._initialise(seed)

    def parts(self) -> dict[str, Tensor]:
        """The adapters' copies."""
        return self.working

    def payload(self, whole: Whole = as_it_is) -> Mapping[str, Tensor]:
        """The copies: `base_model.model.<module>.lora_A.weight` (rank, in), `.lora_B.weight` (out, rank)."""
        return gathered(self.working, whole)

    def note(self) -> dict[str, float]:
        """An adapter says nothing of itself: what travels is what learned."""
        return {}

    def reference(self) -> AbstractContextManager[None]:
        """The model with its adapters switched off. Which parameters learn is left alone, unlike by PEFT's own switch: a sharded
        model remembers that from its first forward pass."""
        return _switched_off(self.model)

    def save_config(self, folder: Path, base: str) -> None:
        """adapter_config.json, with which PEFT loads the folder on its own."""
        config = self.model.peft_config[ADAPTER]
        config.inference_mode = True
        config.base_model_name_or_path = base
        config.save_pretrained(str(folder))
        config.inference_mode = False

    def _adapters(self) -> dict[str, Tensor]:
        found = {name.replace(f".{ADAPTER}.", "."): parameter for name, parameter in self.model.named_parameters() if ".lora_" in name}
        return named(found)

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


@contextmanager
def _switched_off(model: Any) -> Iterator[None]:
    layers: list[Any] = [module for module in model.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer._disable_adapters = True
    try:
        yield
    finally:
        for layer in layers:
            layer._disable_adapters = False
