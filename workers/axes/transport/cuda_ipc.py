"""cuda_ipc: engines on the trainer's GPU map its private copy through CUDA IPC handles, and copy out of it there.

The private copy lies in pieces of `bucket_mb` in two slots that take turns and are used again: PyTorch keeps memory that it has
shared until every receiver has let it go, so fresh memory for each publish would be lost with each engine that dies.
A handle is counted once for each process that opens it, therefore each receiver gets its own.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from typing import Any

import torch

from workers.axes.transport.base import Link, Transport
from workers.axes.transport.digest import RunningDigest, tensor_bytes
from workers.axes.transport.payload import check, hand_on, mismatch, specs_from_wire, specs_to_wire
from workers.contract.errors import EngineError, EnvironmentMissing
from workers.records import Manifest

SLOTS = 2  # an engine may still be reading the last but one


class CudaIpcTransport(Transport):
    """The road through one GPU's memory: trainer and engines on the same GPU, in different processes."""

    def __init__(self, link: Link) -> None:
        if not torch.cuda.is_available():
            raise EnvironmentMissing(
                "CUDA IPC needs a GPU, and this process sees none",
                field="transport.kind",
                value="cuda_ipc",
                cure="run on a machine with an NVIDIA GPU and a CUDA build of torch, or choose transport.kind shared_memory",
            )
        self._name = link.name
        self._piece_bytes = max(1, int(link.options.bucket_mb * 1e6))
        self._slots: list[list[torch.Tensor]] = [[] for _ in range(SLOTS)]
        self._turn = 0

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish; returns when the private copy is complete on the GPU."""
        started = time.perf_counter()
        self._turn = (self._turn + 1) % SLOTS
        writer = _Writer(self._slots[self._turn], self._piece_bytes)
        try:
            contents = hand_on(tensors, writer.write)
            pieces = writer.end()
            torch.cuda.synchronize()
            shares = {name: [_shared(piece) for piece in pieces] for name in receivers}
        except torch.cuda.OutOfMemoryError as error:
            raise EnvironmentMissing(
                "the GPU has no room for the published weights",
                field="transport.kind",
                value="cuda_ipc",
                cure="leave room for two publishes on the GPU, or set transport.kind to shared_memory",
            ) from error
        handle = {"specs": specs_to_wire(contents.specs), "piece_bytes": self._piece_bytes, "shares": shares}
        taken = time.perf_counter() - started
        return Manifest(version, contents.digest, contents.bytes, payload, "cuda_ipc", handle, export_s=taken)

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine: private tensors on the GPU. Raises DigestMismatch, or EngineError where the trainer is gone."""
        shares = manifest.handle["shares"].get(self._name)
        if shares is None:
            raise _unreadable("it was not shared with this engine", self._name)
        try:
            pieces = [_opened(share) for share in shares]
            reader = _Reader(pieces, int(manifest.handle["piece_bytes"]))
            return self._take_in(reader, manifest)
        except EngineError:
            raise
        except RuntimeError as error:  # of CUDA: the handle does not open here, or there is no memory left
            raise _unreadable(str(error).splitlines()[0], self._name) from error

    def close(self) -> None:
        """Called at the end on both sides; memory that an engine still maps is freed with the trainer's process."""
        if any(self._slots):
            self._slots = [[] for _ in range(SLOTS)]
            torch.cuda.ipc_collect()  # type: ignore[no-untyped-call]
            torch.cuda.empty_cache()

    def _take_in(self, reader: _Reader, manifest: Manifest) -> dict[str, torch.Tensor]:
        tensors = {}
        total = RunningDigest()
        for spec in specs_from_wire(manifest):
            tensor = tensors[spec.name] = torch.empty(spec.shape, dtype=spec.dtype, device=reader.device)
            if not reader.fill(tensor.reshape(-1).view(torch.uint8)):
                raise mismatch(manifest, f"the memory shared ends before {spec.name} does")
            total.begin(spec.name, spec.dtype, spec.shape)
            total.update(tensor_bytes(tensor.cpu()))
        torch.cuda.synchronize()  # every copy is made before the trainer's memory is let go
        check(total.hex(), manifest)
        return tensors


class _Writer:
    """Fills the pieces of a slot as bytes come; beside the GPU's memory, one piece is held on the host."""

    def __init__(self, pieces: list[torch.Tensor], size: int) -> None:
        self._pieces = pieces
        self._host = torch.empty(size, dtype=torch.uint8)
        self._view = tensor_bytes(self._host)
        self._filled = self._used = 0

    def write(self, data: memoryview) -> None:
        while len(data):
            count = min(len(data), len(self._view) - self._filled)
            self._view[self._filled : self._filled + count] = data[:count]
            self._filled += count
            data = data[count:]
            if self._filled == len(self._view):
                self._flush()

    def end(self) -> list[torch.Tensor]:
        self._flush()
        del self._pieces[self._used :]
        return self._pieces

    def _flush(self) -> None:
        if not self._filled:
            return
        if self._used == len(self._pieces):
            self._pieces.append(torch.empty(len(self._view), dtype=torch.uint8, device="cuda"))
        self._pieces[self._used][: self._filled].copy_(self._host[: self._filled])
        self._used += 1
        self._filled = 0


class _Reader:
    """The bytes of all pieces, one after another, copied from GPU memory to GPU memory."""

    def __init__(self, pieces: list[torch.Tensor], size: int) -> None:
        self._pieces = pieces
        self._size = size
        self._offset = 0

    @property
    def device(self) -> torch.device:
        return self._pieces[0].device if self._pieces else torch.device("cuda")

    def fill(self, target: torch.Tensor) -> bool:
        """False where there are not that many bytes left."""
        if self._offset + target.numel() > self._size * len(self._pieces):
            return False
        done = 0
        while done < target.numel():
            piece, start = self._pieces[self._offset // self._size], self._offset % self._size
            count = min(target.numel() - done, self._size - start)
            target[done : done + count].copy_(piece[start : start + count])
            done += count
            self._offset += count
        return True


def _shared(piece: torch.Tensor) -> list[Any]:
    """What another process needs to open the memory: PyTorch's eight values, byte strings in base64."""
    values = piece.untyped_storage()._share_cuda_()  # type: ignore[no-untyped-call]
    return [{"base64": base64.b64encode(value).decode()} if isinstance(value, bytes) else value for value in values]


def _opened(share: list[Any]) -> torch.Tensor:
    """The trainer's piece, mapped here. The current stream waits for the trainer's event; letting go of it counts it down."""
    torch.cuda.init()  # type: ignore[no-untyped-call]
    values = [base64.b64decode(value["base64"]) if isinstance(value, dict) else value for value in share]
    storage = torch.UntypedStorage._new_shared_cuda(*values)
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)


def _unreadable(why: str, name: str) -> EngineError:
    return EngineError(
        f"the published weights cannot be read: {why}",
        field="transport.kind",
        value=name,
        cure="trainer and engines must run on the same GPU, in different processes; publish again",
        retryable=True,
    )
