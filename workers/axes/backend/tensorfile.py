"""safetensors files written tensor by tensor: the largest one in memory, never all of them. Read with the library itself.

Format: 8 bytes of length (little endian), a JSON header {name: {dtype, shape, data_offsets}} padded with spaces to a multiple of
8, then the tensors' bytes (https://huggingface.co/docs/safetensors).
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

DTYPES = {torch.float64: "F64", torch.float32: "F32", torch.bfloat16: "BF16", torch.float16: "F16", torch.int64: "I64"}


@dataclass(frozen=True)
class Entry:
    """One tensor of a file before its values are known."""

    dtype: torch.dtype
    shape: tuple[int, ...]

    @property
    def bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def write(path: Path, entries: Mapping[str, Entry], read: Callable[[str], Tensor]) -> None:
    """`read` is called once a name, in sorted order. Raises OSError where the disk refuses."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, entry in sorted(entries.items()):
        header[name] = {
            "dtype": DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [offset, offset + entry.bytes],
        }
        offset += entry.bytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for name, entry in sorted(entries.items()):
            tensor = read(name).detach().cpu().contiguous()
            if tensor.dtype != entry.dtype or tuple(tensor.shape) != entry.shape:
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)} where {entry} was promised")
            file.write(memoryview(tensor.reshape(-1).view(torch.uint8).numpy().data))
