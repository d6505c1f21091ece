"""What a publish carried, made ready for vLLM to load: a file in shared memory of checked tensors, an adapter merged in.

vLLM would apply an adapter beside its weights, too; on CPU that makes each decode step several times slower, and a merge costs one
load of the weights a publish (figures: deploy/decisions). So adapters are merged here, whatever lora.kind is.
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

from workers import models
from workers.axes.transport.leftovers import SEGMENTS, segment_prefix
from workers.contract.config import Lora
from workers.contract.errors import EngineError

_HALF = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


class Staging:
    """Constructed once an engine, of the model's folder. Knows every tensor that the model has a place for."""

    def __init__(self, folder: Path, options: Lora, dtype: torch.dtype) -> None:
        self._adapter_only = options.kind == "adapter_only"
        self._scaling = options.alpha / options.rank
        self._dtype = dtype
        opened: list[Any] = [safe_open(file, framework="pt") for file in models.weight_files(folder)]
        self._files = {name: file for file in opened for name in file.keys()}  # noqa: SIM118 -- no dictionary
        self._prefix = segment_prefix(os.environ.get("HEADRACE_RUN_ID", "") or secrets.token_hex(6))

    def write(self, tensors: Mapping[str, torch.Tensor], version: int) -> Path:
        """Called with an unpacked payload; the caller unlinks the file. Raises EngineError naming the tensor that does not fit."""
        whole = self._merged(tensors) if self._adapter_only else self._checked(tensors)
        path = SEGMENTS / f"{self._prefix}vllm-{version}-{secrets.token_hex(4)}"
        try:
            save_file(whole, path)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return path

    def _checked(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        for name, tensor in tensors.items():
            self._place(name, tensor.shape)
        for name in self._files:
            if name not in tensors and name != "lm_head.weight":  # which a model that ties it stores or not
                raise _refused("the payload lacks a tensor of the model", name)
        return {name: tensor.to("cpu", self._dtype).contiguous() for name, tensor in tensors.items()}

    def _place(self, name: str, shape: torch.Size) -> None:
        if name not in self._files:
            raise _refused("the payload names a tensor this model has no place for", name)
        wanted = tuple(self._files[name].get_slice(name).get_shape())
        if tuple(shape) != wanted:
            raise _refused(f"a tensor does not fit: it has the shape {tuple(shape)}, the engine's {wanted}", name)

    def _merged(self, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Every tensor, with W + alpha / rank * B A for the adapted ones, computed in float32 and rounded once, as lora.kind merged
        does. The others go along: vLLM's reload would lose them."""
        halves: dict[str, dict[str, torch.Tensor]] = {}
        for name, tensor in tensors.items():
            match = _HALF.fullmatch(name)
            if match is None or f"{match[1]}.weight" not in self._files:
                raise _refused("the payload names a tensor this model has no place for", name)
            halves.setdefault(f"{match[1]}.weight", {})[match[2]] = tensor
        return {name: self._merge(name, halves[name]) if name in halves else self._base(name) for name in self._files}

    def _base(self, name: str) -> torch.Tensor:
        tensor: torch.Tensor = self._files[name].get_tensor(name)
        return tensor.to(self._dtype)

    def _merge(self, name: str, pair: Mapping[str, torch.Tensor]) -> torch.Tensor:
        if pair.keys() != {"A", "B"} or pair["B"].shape[1] != pair["A"].shape[0]:
            raise _refused("an adapter's halves do not fit each other", name)
        self._place(name, torch.Size((pair["B"].shape[0], pair["A"].shape[1])))
        base = self._base(name).float()
        change = pair["B"].to("cpu", torch.float32) @ pair["A"].to("cpu", torch.float32)
        return base.add(change, alpha=self._scaling).to(self._dtype)  # never in place: `base` may be the file itself


def _refused(message: str, name: str) -> EngineError:
    return EngineError(
        message, field="transport.payload", value=name, cure="trainer and engines need the same model and the same lora.kind"
    )
