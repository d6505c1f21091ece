"""The digest of a payload: BLAKE3 over names, types, shapes and bytes, in canonical name order.

What is hashed at the end is two hashes of 32 bytes: that of all names, types and shapes, and that of all tensors' bytes, taken as one
run. BLAKE3 (O'Connor et al. 2020) is a tree that its own threads hash side by side; it is as hard to forge as sha256 and four times
as fast on one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from blake3 import blake3

from workers.axes.backend.threads import cores

THREADS = max(1, min(4, cores()))  # more of them wait for the memory
FEW = 1 << 20  # bytes: to start threads for them would take longer


class RunningDigest:
    """The digest while the bytes come by. Tensors must be begun in sorted order of their names, each before its bytes."""

    def __init__(self) -> None:
        self._heads = blake3()
        self._bytes = blake3(max_threads=THREADS)

    def begin(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        self._heads.update(head(name, dtype, shape))

    def update(self, data: memoryview) -> None:
        """Bytes that follow the last ones, of one tensor or of several."""
        self._bytes.update(data)

    def hex(self) -> str:
        return _joined(self._heads.digest(), self._bytes.digest())


def head(name: str, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """What is hashed of a tensor beside its bytes. The length in front keeps one name from reading as another with its type."""
    return f"{len(name)}|{name}|{dtype}|{tuple(shape)}|".encode()


def hashed(heads: Iterable[bytes], data: memoryview) -> str:
    """The digest of a payload whose bytes lie side by side."""
    return _joined(blake3(b"".join(heads)).digest(), hash_of(data))


def hash_of(data: memoryview) -> bytes:
    return blake3(data, max_threads=THREADS if len(data) > FEW else 1).digest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The contiguous bytes of a CPU tensor, without a copy where it is contiguous already."""
    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data)


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hex, 64 letters. Equal on both sides if and only if every name, type, shape and byte is."""
    total = RunningDigest()
    for name in sorted(tensors):
        tensor = tensors[name].cpu()
        total.begin(name, tensor.dtype, tensor.shape)
        total.update(tensor_bytes(tensor))
    return total.hex()


def _joined(heads: bytes, data: bytes) -> str:
    return blake3(heads + data).hexdigest()
