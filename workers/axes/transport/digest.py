"""The digest of a payload: sha256 over names, types, shapes and bytes, in canonical name order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch


class RunningDigest:
    """The digest while the bytes come by. Tensors must be begun in sorted order of their names, each before its bytes."""

    def __init__(self) -> None:
        self._total = hashlib.sha256()

    def begin(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        self._total.update(f"{name}|{dtype}|{tuple(shape)}|".encode())

    def update(self, data: memoryview) -> None:
        self._total.update(data)

    def hex(self) -> str:
        return self._total.hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The contiguous bytes of a CPU tensor, without a copy where it is contiguous already."""
    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data)


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hex sha256. Equal on both sides if and only if every name, type, shape and byte is."""
    total = RunningDigest()
    for name in sorted(tensors):
        tensor = tensors[name].cpu()
        total.begin(name, tensor.dtype, tensor.shape)
        total.update(tensor_bytes(tensor))
    return total.hex()
