"""The door of LoRA: which parameters learn, and what of them travels to the engines."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor


class Adapters(Protocol):
    """Constructed as `Kind(model, config.lora, seed)`, which adds the adapters to a loaded model; nothing else of it learns.

    model: the model with adapters inside, for forward passes; masters: by PEFT's name, the parameters that the optimizer steps.
    """

    model: Any
    masters: dict[str, Tensor]

    def gather(self) -> None:
        """Called after each micro-batch's backward pass: adds its gradients to the masters'."""
        ...

    def refresh(self) -> None:
        """Called after each optimizer step and each restore: the next forward pass uses the masters' values."""
        ...

    def payload(self) -> dict[str, Tensor]:
        """Called at each publish: what travels, by PEFT's name. Valid until the next refresh."""
        ...

    def save_config(self, folder: Path, base: str) -> None:
        """Called with each checkpoint: writes PEFT's adapter_config.json, naming the base model."""
        ...


def child_generator(seed: int, name: str) -> torch.Generator:
    """The random stream `name` of a run: independent of every other stream and of torch's global one."""
    number = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(number)
