"""off: no adapter. Every weight learns and travels."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers import models
from workers.axes.lora.base import Whole, as_it_is, gathered
from workers.axes.lora.masters import Masters, named
from workers.contract.config import Lora

TOKENIZER_FILES = ("tokenizer*", "vocab*", "merges.txt", "special_tokens_map.json", "added_tokens.json", "chat_template*")


class WholeModel(Masters):
    """Names are those of the state dictionary of transformers; a head tied to the embedding is the embedding, and named once."""

    file = "model.safetensors"

    def __init__(self, model: Any, options: Lora, seed: int) -> None:
        self.model = model
        for parameter in model.parameters():
            parameter.requires_grad_(True)
        super().__init__(lambda: named(dict(model.named_parameters())))

    def parts(self) -> dict[str, Tensor]:
        """Every weight, in the model's type."""
        return self.working

    def payload(self, whole: Whole = as_it_is) -> Mapping[str, Tensor]:
        """Every weight, in the model's type."""
        return gathered(self.working, whole)

    def note(self) -> dict[str, float]:
        """Nothing: what travels is what learned."""
        return {}

    def reference(self) -> None:
        """There is no switch that brings the untrained model back."""
        return None

    def save_config(self, folder: Path, base: str) -> None:
        """config.json, generation_config.json and the tokenizer: with `model.safetensors`, a model that transformers loads."""
        config = self.model.config.to_dict()
        type(self.model.config)(**{**config, "dtype": torch.float32, "architectures": [_plain_name(self.model)]}).save_pretrained(folder)
        if getattr(self.model, "generation_config", None) is not None:
            self.model.generation_config.save_pretrained(folder)
        source = models.locate(base)
        for pattern in TOKENIZER_FILES:
            for item in source.glob(pattern):
                shutil.copyfile(item, folder / item.name)


def _plain_name(model: Any) -> str:
    """The class of the model's own library, also where a sharding library has put its own class in front."""
    return next(kind.__name__ for kind in type(model).__mro__ if kind.__module__.startswith("transformers."))
