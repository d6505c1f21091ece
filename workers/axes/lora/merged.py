"""merged: an adapter is trained beside the frozen base, and merged into it for the engine; whole weights travel.

W' = W + alpha / rank * B A, computed in float32 and rounded once to the model's type. In bfloat16, which keeps eight bits of a
number, most of a small update is lost in that rounding: an element moves only if its update is over half a unit in its last
place. How much was kept is measured at each publish, for the engine's policy is the rounded one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from workers.axes.lora.adapter_only import ADAPTER, AdapterOnly
from workers.axes.lora.base import Cut, Lazily, Whole, as_it_is, local
from workers.axes.lora.masters import named
from workers.axes.lora.targets import adapter_of, by_expert
from workers.contract.config import Lora

BLOCKS = 64  # a matrix is merged by so many blocks of rows: what that takes in float32 is a small part of the matrix
BLOCK_BYTES = 256 * 1024  # but not by smaller ones


class Merged(AdapterOnly):
    """Trains and saves as adapter_only does; the payload has the names of the unadapted model's state dictionary."""

    def __init__(self, model: Any, options: Lora, seed: int) -> None:
        self._wanted = self._survived = 0.0
        super().__init__(model, options, seed)
        self._weights = self._base_weights()
        self._scale = options.alpha / options.rank

    def lay_out(self, cut: Cut) -> None:
        """Base weights have become pieces, too. They are looked up now: a sharding library shows the whole ones at times."""
        super().lay_out(cut)
        self._weights = self._base_weights()

    def parts(self) -> dict[str, Tensor]:
        """Base weights by their own names, adapters by PEFT's."""
        return {**self._weights, **self.working}

    def payload(self, whole: Whole = as_it_is) -> Mapping[str, Tensor]:
        """Each weight is merged when it is read."""
        weights = self._weights
        self._wanted = self._survived = 0.0

        def read(name: str) -> Tensor:
            weight = whole(name, local(weights[name]).detach())
            first, second = adapter_of(name)
            if first not in self.working:
                return weight
            down, up = (whole(key, local(self.working[key]).detach()) for key in (first, second))
            gathered = weight.data_ptr() != local(weights[name]).data_ptr()
            merged = weight if gathered else torch.empty_like(weight)
            if weight.dim() == 2:
                return self._merge(weight, down, up, merged)
            for expert, pair in enumerate(by_expert(down, up, len(weight))):
                self._merge(weight[expert], *pair, merged[expert])
            return merged

        return Lazily(list(weights), read)

    def note(self) -> dict[str, float]:
        """merge_survived_share = sum min(|round(W + dW) - W|, |dW|) / sum |dW| over all adapted elements: 1 where rounding loses
        nothing, 0 where no weight moved. Rounding up counts as the whole update, never as more. Left out while dW is 0."""
        return {"merge_survived_share": self._survived / self._wanted} if self._wanted else {}

    def _merge(self, weight: Tensor, down: Tensor, up: Tensor, merged: Tensor) -> Tensor:
        """weight (out, in), down (rank, in), up (out, rank). Writes into `merged`, which may be `weight` itself."""
        down = down.float()
        step = max(1, len(weight) // BLOCKS, BLOCK_BYTES // (4 * weight.shape[1]))
        for start in range(0, len(weight), step):
            rows = slice(start, start + step)
            change = (up[rows].float() @ down).mul_(self._scale)
            before = weight[rows].to(torch.float32, copy=True)
            merged[rows] = (before + change).to(weight.dtype)
            moved = (merged[rows].float() - before).abs_()
            self._wanted += float(change.abs_().sum(dtype=torch.float64))
            self._survived += float(torch.minimum(moved, change).sum(dtype=torch.float64))
        return merged

    def _base_weights(self) -> dict[str, Tensor]:
        found = self._base.named_parameters()  # a tied head is named once, as the embedding
        return named({name.replace(".base_layer", ""): weight for name, weight in found if f".{ADAPTER}." not in name})
