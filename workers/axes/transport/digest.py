"""The digest of a payload: BLAKE3 over names, types, shapes and bytes, in canonical name order, hashed by several threads at once.

What is hashed at the end is a list of leaves of 32 bytes: the hash of all names, types and shapes, then that of each piece of all
the tensors' bytes, taken as one run: so many small tensors cost no more than a large one. BLAKE3 (O'Connor et al. 2020) is as hard
to forge as sha256 and four times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from blake3 import blake3

from workers.axes.backend.threads import cores

PIECE = 1 << 18  # bytes of a leaf: hashed while it is in the processor's cache
RUN = 4 * PIECE  # what one thread takes at a time
LANES = max(1, min(4, cores()))  # threads: more of them wait for the memory

Leaf = bytes | Future[bytes]  # one or several, side by side


class Pieces:
    """The leaves of bytes that come in parts of any size."""

    def __init__(self) -> None:
        self._piece, self._filled = blake3(), 0

    @property
    def missing(self) -> int:
        """Bytes that the piece begun lacks; 0 between two pieces."""
        return -self._filled % PIECE

    def add(self, data: memoryview) -> bytes:
        """The leaves of the pieces that these bytes complete."""
        found = b""
        while len(data):
            part = data[: PIECE - self._filled]
            self._piece.update(part)
            self._filled += len(part)
            if self._filled == PIECE:
                found += self.end()
            data = data[len(part) :]
        return found

    def end(self) -> bytes:
        """The leaf of what is left, if anything is."""
        last = self._piece.digest() if self._filled else b""
        self._piece, self._filled = blake3(), 0
        return last


class RunningDigest:
    """The digest while the bytes come by. A context: its threads end with it.

    Tensors must be begun in sorted order of their names, each before its bytes.
    """

    def __init__(self) -> None:
        self._heads: list[bytes] = []
        self._leaves: list[Leaf] = []
        self._between = Pieces()  # what of a tensor shares its piece with others
        self._pool = ThreadPoolExecutor(LANES, thread_name_prefix="digest")

    def __enter__(self) -> RunningDigest:
        return self

    def __exit__(self, *raised: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def begin(self, name: str, dtype: torch.dtype, shape: Sequence[int]) -> None:
        self._heads.append(head(name, dtype, shape))

    def update(self, data: memoryview) -> list[Future[bytes]]:
        """All bytes of the tensor begun last. They are read until the futures returned are done, at the latest in `hex`."""
        first = min(len(data), self._between.missing)
        last = len(data) - (len(data) - first) % PIECE
        self._leaves.append(self._between.add(data[:first]))
        under_way = [self._pool.submit(leaves, run) for run in runs(data[first:last])]
        self._leaves += under_way
        self._leaves.append(self._between.add(data[last:]))
        return under_way

    def hex(self) -> str:
        """Called once, when all bytes have come."""
        return joined(self._heads, [*self._leaves, self._between.end()])


def runs(data: memoryview) -> Iterator[memoryview]:
    """What the threads take, one after another."""
    for start in range(0, len(data), RUN):
        yield data[start : start + RUN]


def leaves(*parts: memoryview) -> bytes:
    """The leaves of these bytes, taken as one run; of no bytes, none."""
    pieces = Pieces()
    return b"".join([*map(pieces.add, parts), pieces.end()])


def head(name: str, dtype: torch.dtype, shape: Sequence[int]) -> bytes:
    """What is hashed of a tensor beside its bytes. The length in front keeps one name from reading as another with its type."""
    return f"{len(name)}|{name}|{dtype}|{tuple(shape)}|".encode()


def joined(heads: Iterable[bytes], parts: Iterable[Leaf]) -> str:
    """The digest of the leaves in their order, when all of them are there. Raises what a thread raised."""
    found = b"".join(part if isinstance(part, bytes) else part.result() for part in parts)
    return blake3(blake3(b"".join(heads)).digest() + found).hexdigest()


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The contiguous bytes of a CPU tensor, without a copy where it is contiguous already."""
    flat = tensor.detach().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy().data)


def digest_of(tensors: Mapping[str, torch.Tensor]) -> str:
    """Hex, 64 letters. Equal on both sides if and only if every name, type, shape and byte is."""
    with RunningDigest() as total:
        kept = []
        for name in sorted(tensors):
            tensor = tensors[name].cpu()
            total.begin(name, tensor.dtype, tensor.shape)
            kept.append(tensor_bytes(tensor))
            total.update(kept[-1])
        return total.hex()
