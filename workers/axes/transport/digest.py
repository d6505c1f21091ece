"""The digest of a payload: sha256 over names, types, shapes and bytes, in canonical name order."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import torch


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The contiguous bytes of a CPU tensor, without a copy where it is contiguous already."""
    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data)


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hex sha256. Equal on both sides if and only if every name, type, shape and byte is."""
    total = hashlib.sha256()
    for name in sorted(tensors):
        tensor = tensors[name]
        total.update(f"{name}|{tensor.dtype}|{tuple(tensor.shape)}|".encode())
        total.update(tensor_bytes(tensor))
    return total.hexdigest()
