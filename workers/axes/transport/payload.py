"""One payload as one run of bytes, in the safetensors layout, and back with its digest checked.

A sender reads each tensor once, in sorted order of names, and writes it straight to where it goes: a value may be gathered
from other ranks when it is read, and is let go before the next one is. So beyond the destination at most one tensor is held.
Room for the header is left in front, reckoned from the names, and filled in at the end: shapes are not known before.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import IO, Any

import torch

from workers.axes.transport.digest import THREADS, RunningDigest, head, tensor_bytes
from workers.contract.errors import DigestMismatch, EngineError
from workers.records import Manifest

TYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
DTYPES = {word: dtype for dtype, word in TYPES.items()}
LENGTH_BYTES = 8  # of the little-endian number in front: the header's length
ROOM_A_TENSOR = 256  # for type, shape and offsets in the header; unused room is filled with spaces, as the format allows

RUN = 1 << 22  # bytes that are moved and hashed in one go: they are in the processor's cache by then

Read = Callable[[memoryview], int]  # fills the view as far as there are bytes; returns how many it filled


@dataclass(frozen=True)
class Spec:
    """What the header says of one tensor."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


@dataclass(frozen=True)
class Contents:
    """What was handed on: the tensors in their order, the digest, and whether any of them lay on a GPU."""

    specs: list[Spec]
    digest: str
    on_gpu: bool

    @property
    def bytes(self) -> int:
        return sum(spec.bytes for spec in self.specs)

    def again(self, tensors: Mapping[str, torch.Tensor]) -> bool:
        """Whether these tensors, which are all in memory, are laid out in the same way."""
        return len(tensors) == len(self.specs) and all(
            (tensor := tensors.get(spec.name)) is not None and tensor.dtype == spec.dtype and tensor.shape == spec.shape
            for spec in self.specs
        )


def in_order(tensors: Mapping[str, torch.Tensor]) -> list[str]:
    """The names in the order of a payload. Raises EngineError where there are none."""
    if not tensors:
        raise EngineError("a publish without tensors", field="transport.payload", value=0, cure="publish at least one tensor")
    return sorted(tensors)


def spec_of(name: str, tensor: torch.Tensor) -> Spec:
    """Raises EngineError where there is no word for the tensor's type."""
    if tensor.dtype not in TYPES:
        raise EngineError(f"{name} has a type that cannot travel", field="transport.payload", value=str(tensor.dtype))
    return Spec(name, tensor.dtype, tuple(tensor.shape))


def hand_on(tensors: Mapping[str, torch.Tensor], write: Callable[[memoryview], object]) -> Contents:
    """Called by a sender: gives every tensor's bytes to `write`, in order and without gaps, and hashes them."""
    specs, on_gpu, total = [], False, RunningDigest()

    def one(name: str, tensor: torch.Tensor) -> bool:  # a function of its own, so that the tensor is let go before the next is read
        specs.append(spec_of(name, tensor))
        total.begin(name, tensor.dtype, tensor.shape)
        data = tensor_bytes(tensor.detach().cpu())
        write(data)
        total.update(data)
        return tensor.is_cuda

    for name in in_order(tensors):
        on_gpu = one(name, tensors[name]) or on_gpu
    return Contents(specs, total.hex(), on_gpu)


def header_of(specs: Iterable[Spec], room: int = 0) -> bytes:
    """Length and header of the safetensors layout; with `room`, exactly as many bytes."""
    table, offset = {}, 0
    for spec in specs:
        table[spec.name] = {"dtype": TYPES[spec.dtype], "shape": list(spec.shape), "data_offsets": [offset, offset + spec.bytes]}
        offset += spec.bytes
    text = json.dumps(table, separators=(",", ":")).encode().ljust(room - LENGTH_BYTES)
    if room and len(text) + LENGTH_BYTES != room:
        raise EngineError("a tensor has too many dimensions for the header", field="transport.payload", value=len(text), cure="reshape it")
    return len(text).to_bytes(LENGTH_BYTES, "little") + text


def room_for(names: Iterable[str]) -> int:
    """Bytes in front of the tensors that hold the length and any header of these names."""
    quoted = [*names]
    return LENGTH_BYTES + -(-(len(json.dumps(quoted)) + ROOM_A_TENSOR * len(quoted)) // 8) * 8


def write_file(tensors: Mapping[str, torch.Tensor], file: IO[bytes]) -> tuple[int, Contents]:
    """Called by a sender with an empty file. Returns where the tensors' bytes begin, and what was written. Raises OSError."""
    room = room_for(tensors)
    file.seek(room)
    contents = hand_on(tensors, file.write)
    file.seek(0)
    file.write(header_of(contents.specs, room))
    file.flush()
    return room, contents


def private_file() -> IO[bytes]:
    """A file without a name, in memory where the system can: it ends with its last reader."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("headrace-weights", os.MFD_CLOEXEC), "w+b")
    return tempfile.TemporaryFile()


def read_file(file: IO[bytes], manifest: Manifest) -> dict[str, torch.Tensor]:
    """Called by a receiver with a file opened unbuffered: threads read it, each a piece. Raises DigestMismatch where it is not what
    was published."""
    size = os.fstat(file.fileno()).st_size
    if size != manifest.bytes:
        raise mismatch(manifest, f"{size} bytes arrived where {manifest.bytes} were published")

    def read(view: memoryview) -> int:
        count: int = file.readinto(view) or 0  # type: ignore[attr-defined]
        return count

    specs = header(read, manifest)
    tensors = {spec.name: torch.empty(spec.shape, dtype=spec.dtype) for spec in specs}
    offset = manifest.bytes - sum(spec.bytes for spec in specs)

    def take(offset: int, parts: list[memoryview]) -> list[memoryview]:
        for part in parts:
            end = offset = offset + len(part)
            _fill(lambda rest, end=end: os.preadv(file.fileno(), [rest], end - len(rest)), part, manifest)  # type: ignore[misc]
        return parts

    total = RunningDigest()
    for spec in specs:
        total.begin(spec.name, spec.dtype, spec.shape)
    under_way = []
    with ThreadPoolExecutor(THREADS, thread_name_prefix="weights") as pool:
        for parts in stretches(tensor_bytes(tensors[spec.name]) for spec in specs):
            under_way.append(pool.submit(take, offset, parts))
            offset += RUN
        for taken in under_way:
            for part in taken.result():
                total.update(part)
    check(total.hex(), manifest)
    return tensors


def heads(specs: Iterable[Spec]) -> list[bytes]:
    """What is hashed of the tensors beside their bytes."""
    return [head(spec.name, spec.dtype, spec.shape) for spec in specs]


def stretches(tensors: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """What the threads take, one after another: as many parts of tensors as make up a run; the last one is what is left."""
    parts: list[memoryview] = []
    missing = RUN
    for data in tensors:
        while len(data):
            parts.append(data[:missing])
            data = data[missing:]
            missing -= len(parts[-1])
            if not missing:
                yield parts
                parts, missing = [], RUN
    if parts:
        yield parts


def unpack(read: Read, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Called by a receiver: private tensors, each read straight into its memory. Raises DigestMismatch."""
    return take_in(header(read, manifest), read, manifest)


def header(read: Read, manifest: Manifest) -> list[Spec]:
    """Called by a receiver: what is to come, from the bytes in front. Raises DigestMismatch."""
    front = bytearray(LENGTH_BYTES)
    _fill(read, memoryview(front), manifest)
    length = int.from_bytes(front, "little")
    if not 2 <= length <= manifest.bytes - LENGTH_BYTES:
        raise mismatch(manifest, f"the header claims {length} bytes of {manifest.bytes}")
    text = bytearray(length)
    _fill(read, memoryview(text), manifest)
    try:
        specs = _specs(json.loads(text))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise mismatch(manifest, f"the payload's header cannot be read: {error}") from error
    if LENGTH_BYTES + length + sum(spec.bytes for spec in specs) != manifest.bytes:
        raise mismatch(manifest, "the header does not speak of all bytes and no others")
    return specs


def take_in(specs: list[Spec], read: Read, manifest: Manifest) -> dict[str, torch.Tensor]:
    """Called by a receiver that knows what comes, in sorted order of names. Raises DigestMismatch."""
    tensors, total = {}, RunningDigest()
    for spec in specs:
        tensor = tensors[spec.name] = torch.empty(spec.shape, dtype=spec.dtype)
        data = tensor_bytes(tensor)
        _fill(read, data, manifest)
        total.begin(spec.name, spec.dtype, spec.shape)
        total.update(data)
    check(total.hex(), manifest)
    return tensors


def specs_to_wire(specs: Iterable[Spec]) -> list[Any]:
    """For the manifest's handle, where the header does not travel with the bytes."""
    return [[spec.name, TYPES[spec.dtype], list(spec.shape)] for spec in specs]


def specs_from_wire(manifest: Manifest) -> list[Spec]:
    """Back from the manifest's handle. Raises DigestMismatch where they do not speak of exactly the payload's bytes."""
    try:
        specs = [Spec(name, DTYPES[word], tuple(shape)) for name, word, shape in manifest.handle["specs"]]
    except (KeyError, TypeError, ValueError) as error:
        raise mismatch(manifest, f"the manifest does not describe its tensors: {error}") from error
    if sum(spec.bytes for spec in specs) != manifest.bytes:
        raise mismatch(manifest, "the manifest's tensors are not as long as its payload")
    return specs


def check(digest: str, manifest: Manifest) -> None:
    """Raises DigestMismatch where the digest of what was received is not the published one."""
    if digest != manifest.digest:
        raise mismatch(manifest, f"the digest of the bytes received is {digest[:16]}, published was {manifest.digest[:16]}")


def mismatch(manifest: Manifest, message: str) -> DigestMismatch:
    return DigestMismatch(
        message, field="transport", value=f"version {manifest.version}", cure="publish again; the old version keeps serving", retryable=True
    )


def _fill(read: Read, view: memoryview, manifest: Manifest) -> None:
    while len(view):
        count = read(view)
        if not count:
            raise mismatch(manifest, f"the bytes end {len(view)} short of a whole tensor or header")
        view = view[count:]


def _specs(table: Any) -> list[Spec]:
    """The header's tensors. Raises where their bytes do not lie side by side in sorted order of names, as they were written."""
    specs: list[Spec] = []
    offset = 0
    for name, entry in table.items():
        spec = Spec(name, DTYPES[entry["dtype"]], tuple(int(size) for size in entry["shape"]))
        if (specs and name <= specs[-1].name) or min(spec.shape, default=0) < 0:
            raise ValueError(f"{name!r} is out of place")
        if entry["data_offsets"] != [offset, offset + spec.bytes]:
            raise ValueError(f"{name!r} has another place than its size says")
        specs.append(spec)
        offset += spec.bytes
    return specs
