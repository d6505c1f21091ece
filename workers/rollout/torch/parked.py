"""Keys and values of aborted samples, kept for the moment when they are taken up again."""

from __future__ import annotations

from collections import OrderedDict
from typing import NamedTuple

import torch


class ParkedSample(NamedTuple):
    """tokens: those whose keys and values [layer, key or value, kv head, position, dim] are kept: all but the last one drawn."""

    tokens: list[int]
    keys_values: torch.Tensor


class ParkedCaches:
    """By request id; the one parked longest ago goes first when there is too much. Touched by the decode thread alone."""

    def __init__(self, limit_bytes: int = 512 * 1024 * 1024) -> None:
        self._limit = limit_bytes
        self._bytes = 0
        self._kept: OrderedDict[str, ParkedSample] = OrderedDict()

    def park(self, request_id: str, tokens: list[int], keys_values: torch.Tensor) -> None:
        """Called at an abort, for every running sample."""
        self.drop(request_id)
        self._kept[request_id] = ParkedSample(tokens, keys_values)
        self._bytes += keys_values.nbytes
        while self._bytes > self._limit:
            self.drop(next(iter(self._kept)))

    def take(self, request_id: str, tokens: list[int]) -> torch.Tensor | None:
        """Called when the sample is admitted again: its keys and values, if they belong to exactly these tokens. Nothing stays."""
        parked = self._kept.get(request_id)
        self.drop(request_id)
        return parked.keys_values if parked is not None and parked.tokens == tokens else None

    def drop(self, request_id: str) -> None:
        """Called when the sample will not come back."""
        parked = self._kept.pop(request_id, None)
        if parked is not None:
            self._bytes -= parked.keys_values.nbytes

    def __len__(self) -> int:
        return len(self._kept)
