"""The door of LoRA: which parameters learn, and what of them travels to the engines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

# The whole of a tensor, given its name and the piece of it that this process holds.
Whole = Callable[[str, Tensor], Tensor]
# This process's piece of a whole tensor, given the parameter that lies as the piece is to lie.
Cut = Callable[[Tensor, Tensor], Tensor]


def as_it_is(name: str, piece: Tensor) -> Tensor:
    """Where one process holds the model, every piece is the whole."""
    return piece


class Adapters(Protocol):
    """Constructed as `Kind(model, config.lora, seed)`, which settles what of a loaded model learns; nothing else of it does.

    model: the model for forward passes, adapters inside; masters: by name, the float32 tensors that the optimizer steps;
    file: what a checkpoint calls the file of masters.
    """

    model: Any
    masters: dict[str, Tensor]
    file: str

    def gather(self) -> None:
        """Called after each micro-batch's backward pass: adds its gradients to the masters'."""
        ...

    def refresh(self) -> None:
        """Called after each optimizer step and each restore: the next forward pass uses the masters' values."""
        ...

    def lay_out(self, cut: Cut) -> None:
        """Called once where a backend has spread the model's parameters over ranks: from then on masters are this rank's pieces."""
        ...

    def parts(self) -> dict[str, Tensor]:
        """Every tensor that `payload` may ask for, by name, as this process holds it."""
        ...

    def payload(self, whole: Whole = as_it_is) -> Mapping[str, Tensor]:
        """Called at each publish: what travels, in the model's type. Values are made when they are read; valid until the next refresh.

        adapter_only names them as PEFT does, the others by the state dictionary of transformers, a tied head left out.
        """
        ...

    def note(self) -> dict[str, float]:
        """Called when a payload has been read: what it says of itself, see Manifest.note."""
        ...

    def reference(self) -> AbstractContextManager[None] | None:
        """Inside it, forward passes are those of the model before training. None where the model itself learns: load a frozen copy."""
        ...

    def save_config(self, folder: Path, base: str) -> None:
        """Called with each checkpoint: writes what the library that can load `file` needs beside it. base: `model.path`."""
        ...


class Lazily(Mapping[str, Tensor]):
    """Tensors made when they are read, one after the other, in sorted order of names. Nothing is kept."""

    def __init__(self, names: list[str], read: Callable[[str], Tensor]) -> None:
        self._names = sorted(names)
        self._known = frozenset(names)
        self._read = read

    def __getitem__(self, name: str) -> Tensor:
        if name not in self._known:
            raise KeyError(name)
        return self._read(name)

    def __contains__(self, name: object) -> bool:
        return name in self._known

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def gathered(working: Mapping[str, Tensor], whole: Whole) -> Mapping[str, Tensor]:
    """What learns, detached: a dictionary where this process has all of it, else each when it is read."""

    def read(name: str) -> Tensor:
        return whole(name, local(working[name]).detach())

    return {name: read(name) for name in sorted(working)} if whole is as_it_is else Lazily(list(working), read)


def local(tensor: Tensor) -> Tensor:
    """The memory behind a parameter: of a distributed tensor this rank's piece, else itself."""
    with torch.no_grad():
        return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def child_generator(seed: int, name: str) -> torch.Generator:
    """The random stream `name` of a run: independent of every other stream and of torch's global one."""
    number = int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
    return torch.Generator().manual_seed(number)
