"""A base model and what was trained of it, as transformers and PEFT compute them: log-probs of given tokens, merged weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from workers import registry
from workers.axes.backend import saving
from workers.axes.backend.spread import Alone
from workers.axes.backend.threads import cores
from workers.axes.lora.base import Adapters
from workers.contract.config import RunConfig


def load(config: RunConfig, folder: Path) -> Any:
    """The model of `folder` in the config's number format, ready for forward passes."""
    transformers: Any = import_module("transformers")
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(cores())
    dtype = getattr(torch, config.model.dtype)
    return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa").eval()


def trained(config: RunConfig, model: Any, checkpoint: Path) -> Adapters:
    """The model with the checkpoint's weights in it. Raises EngineError where they do not fit."""
    adapters: Adapters = registry.resolve("lora", config.lora.kind)(model, config.lora, config.seed)
    saving.begin(checkpoint, adapters, Alone())
    return adapters


class Comparison:
    """One copy of the model, that is the base inside `as_("base")` and the trained model inside `as_("trained")`, in this order."""

    def __init__(self, config: RunConfig, folder: Path, checkpoint: Path) -> None:
        self._config = config
        self._checkpoint = checkpoint
        self._model = load(config, folder)
        self._adapters: Adapters | None = None

    @contextmanager
    def as_(self, who: str) -> Iterator[None]:
        if who == "trained" and self._adapters is None:
            self._adapters = trained(self._config, self._model, self._checkpoint)
            self._model = self._adapters.model
        yield

    def logprobs(self, prompt: list[int], completion: list[int], temperature: float) -> list[float]:
        """Natural logs, one a token of the completion. temperature 0, at which nothing is drawn, compares at 1."""
        if not completion:
            return []
        with torch.no_grad():
            ids = torch.tensor([[*prompt, *completion]])
            logits = self._model(ids, logits_to_keep=len(completion) + 1).logits[0, :-1].float() / (temperature or 1.0)
            picked = logits.log_softmax(dim=-1).gather(1, torch.tensor(completion)[:, None])[:, 0]
        return [round(value, 6) for value in picked.tolist()]
