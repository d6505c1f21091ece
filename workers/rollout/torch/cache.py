"""Keys and values of running samples, in slots, and of recent prompts, so that a group's prompt is computed once.

The first `n` slots are the running ones: a sample that leaves is replaced by the last one, so a decode step reads one
contiguous view and never gathers.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch

from workers.rollout.torch.shape import Shape

_STEP = 64  # positions and slots grow in steps, so that a slightly longer request does not reallocate


def _rounded(value: int, step: int = _STEP) -> int:
    return -(-value // step) * step


class SlotCache:
    """One tensor a layer: [key or value, slot, kv head, position, dim]. It grows to what the admitted requests need."""

    def __init__(self, shape: Shape, dtype: torch.dtype) -> None:
        self._shape = shape
        self._dtype = dtype
        self.slots = 0
        self.positions = 0
        self.layers: list[torch.Tensor] = [self._empty(0, 0) for _ in range(shape.layers)]

    def _empty(self, slots: int, positions: int) -> torch.Tensor:
        # Zeros, not empty: a masked position weighs 0, and 0 times a stray NaN would be NaN.
        return torch.zeros(2, slots, self._shape.kv_heads, positions, self._shape.head_dim, dtype=self._dtype)

    def reserve(self, slots: int, positions: int) -> None:
        """Called before requests are admitted: `slots` slots of at least `positions` positions each."""
        if slots <= self.slots and positions <= self.positions:
            return
        slots, positions = max(self.slots, _rounded(slots, 16)), max(self.positions, _rounded(positions))
        for number, old in enumerate(self.layers):
            new = self._empty(slots, positions)
            new[:, : self.slots, :, : self.positions] = old
            self.layers[number] = new
        self.slots, self.positions = slots, positions

    def load(self, slot: int, keys_values: torch.Tensor) -> None:
        """Called after a prefill: [layer, key or value, kv head, position, dim] becomes the slot's beginning."""
        length = keys_values.shape[3]
        for layer, source in zip(self.layers, keys_values, strict=True):
            layer[:, slot, :, :length] = source

    def copy(self, slot: int, length: int) -> torch.Tensor:
        """Called when a sample is parked: what `load` takes, of its first `length` positions."""
        return torch.stack([layer[:, slot, :, :length] for layer in self.layers])

    def move(self, source: int, target: int, length: int) -> None:
        """Called when a sample left slot `target` and the last running one, in `source`, takes its place."""
        for layer in self.layers:
            layer[:, target, :, :length] = layer[:, source, :, :length]

    def rows(self, first: int, positions: torch.Tensor) -> torch.Tensor:
        """Where one new key and value a slot go: row numbers of `write`, in the order (slot, key or value, kv head)."""
        heads = self._shape.kv_heads
        slot = torch.arange(first, first + positions.shape[0]).view(-1, 1, 1)
        half = torch.arange(2).view(1, -1, 1)
        head = torch.arange(heads).view(1, 1, -1)
        return (((half * self.slots + slot) * heads + head) * self.positions + positions.view(-1, 1, 1)).reshape(-1)

    def write(self, layer: int, rows: torch.Tensor, keys_values: torch.Tensor) -> None:
        """Called by each layer of a decode step with [slot x 2 x kv head, dim] in the order of `rows`."""
        self.layers[layer].view(-1, self._shape.head_dim).index_copy_(0, rows, keys_values)


class Prefilled(NamedTuple):
    """A prompt computed: [layer, key or value, kv head, position, dim], the last token's hidden state, and its experts, where kept."""

    keys_values: torch.Tensor
    hidden: torch.Tensor
    routing: torch.Tensor | None = None  # (positions, sparse layers, k) uint8


class PromptCache:
    """Keys, values, last hidden state and routing of recently prefilled prompts under the weights that serve, oldest out first."""

    def __init__(self, limit_bytes: int = 256 * 1024 * 1024) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._kept: OrderedDict[tuple[int, ...], Prefilled] = OrderedDict()

    def find(self, prompt: tuple[int, ...]) -> Prefilled | None:
        found = self._kept.get(prompt)
        if found is not None:
            self._kept.move_to_end(prompt)
        return found

    def keep(self, prompt: tuple[int, ...], prefilled: Prefilled) -> None:
        if prompt in self._kept:
            self._bytes -= self._kept[prompt].keys_values.nbytes
        self._kept[prompt] = prefilled
        self._bytes += prefilled.keys_values.nbytes
        while self._bytes > self._limit:
            _, dropped = self._kept.popitem(last=False)
            self._bytes -= dropped.keys_values.nbytes

    def clear(self) -> None:
        """Called at every weight change: a prompt computed under old weights is not handed to a new sample."""
        self._kept.clear()
        self._bytes = 0
