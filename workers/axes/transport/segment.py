"""A segment of shared memory, mapped on both sides, and a payload written into one and looked at in one.

What is mapped stays mapped while the segment is used again: to touch memory for the first time takes longer than to copy into it.
"""

from __future__ import annotations

import contextlib
import mmap
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from workers.axes.transport import payload as layout
from workers.axes.transport.digest import RunningDigest, hashed, tensor_bytes
from workers.records import Manifest

SMALL = 1 << 24  # bytes of a payload whose layout is remembered


@dataclass(frozen=True)
class Laid:
    """How a small payload lies in a segment or a view of one: what the next of the same layout need not be asked again."""

    header: bytes
    contents: layout.Contents
    heads: list[bytes]
    places: dict[str, torch.Tensor]  # tensors in the segment's own memory
    start: int  # of the tensors' bytes

    @property
    def end(self) -> int:
        return self.start + self.contents.bytes


class Segment:
    """The writer's. It may grow and never becomes shorter: a reader that comes too late would die of memory that is gone."""

    def __init__(self, path: Path) -> None:
        """Raises OSError where there is one of this name."""
        self.path = path
        self._file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_RDWR | os.O_CLOEXEC, 0o600)
        self.memory: npt.NDArray[np.uint8] = np.empty(0, np.uint8)  # what is mapped of it
        self.used = 0  # bytes of the last payload
        self.last: Laid | None = None

    @property
    def reusable(self) -> bool:
        """Whether it is worth keeping, and whole."""
        size = os.fstat(self._file).st_size
        return 2 * self.used >= size >= len(self.memory)

    def rename(self, path: Path) -> None:
        """Called before it is written over. Raises FileNotFoundError where somebody swept."""
        os.rename(self.path, path)
        self.path = path

    def put(self, data: bytes | memoryview, offset: int) -> None:
        """Raises OSError where there is no room."""
        end = offset + len(data)
        if end <= len(self.memory):
            self.memory[offset:end] = np.frombuffer(data, np.uint8)
            return
        rest = memoryview(data)
        while len(rest):
            rest = rest[os.pwrite(self._file, rest, end - len(rest)) :]

    def reserve(self, size: int) -> None:
        """At least so many bytes, mapped. Raises OSError where there is no room: memory that is only promised would kill who writes."""
        if os.fstat(self._file).st_size < size:
            os.posix_fallocate(self._file, 0, size)
        self.map()

    def map(self) -> None:
        """All of it."""
        size = os.fstat(self._file).st_size
        if size != len(self.memory):
            self.memory = np.frombuffer(mmap.mmap(self._file, size), np.uint8)

    def remove(self) -> None:
        self.path.unlink(missing_ok=True)
        self.memory, self.last = self.memory[:0].copy(), None
        os.close(self._file)


def write_segment(tensors: Mapping[str, torch.Tensor], segment: Segment) -> layout.Contents:
    """Called by a sender. A dictionary holds its tensors already. Any other mapping may make each when it is read, and that one is let
    go at once.

    Raises OSError where there is no room.
    """
    if not isinstance(tensors, dict) or any(tensor.device.type != "cpu" for tensor in tensors.values()):
        return _write_one_by_one(tensors, segment)
    if segment.last and segment.last.contents.again(tensors):
        return _write_again(tensors, segment, segment.last)
    return _write_held(tensors, segment)


def _write_held(tensors: dict[str, torch.Tensor], segment: Segment) -> layout.Contents:
    """Each run of bytes is hashed while it is in the processor's cache."""
    names, total = layout.in_order(tensors), RunningDigest()
    specs, room = [layout.spec_of(name, tensors[name]) for name in names], layout.room_for(tensors)
    segment.used = room + sum(spec.bytes for spec in specs)
    segment.reserve(segment.used)
    segment.put(header := layout.header_of(specs, room), 0)
    for spec in specs:
        total.begin(spec.name, spec.dtype, spec.shape)
    end = room
    for parts in layout.stretches(tensor_bytes(tensors[name]) for name in names):
        start = end
        for part in parts:
            segment.put(part, end)
            end += len(part)
        total.update(segment.memory[start:end].data)
    contents = layout.Contents(specs, total.hex(), on_gpu=False)
    places = _places(segment.memory, specs, room) if contents.bytes <= SMALL else {}
    segment.last = Laid(header, contents, layout.heads(specs), places, room) if places else None
    return contents


def _write_again(tensors: Mapping[str, torch.Tensor], segment: Segment, last: Laid) -> layout.Contents:
    with torch.no_grad():
        torch._foreach_copy_(list(last.places.values()), [tensors[name] for name in last.places])
    digest = hashed(last.heads, segment.memory[last.start : segment.used].data)
    return replace(last.contents, digest=digest, on_gpu=False)


def _write_one_by_one(tensors: Mapping[str, torch.Tensor], segment: Segment) -> layout.Contents:
    room = segment.used = layout.room_for(tensors)

    def write(data: memoryview) -> None:
        segment.put(data, segment.used)
        segment.used += len(data)

    contents = layout.hand_on(tensors, write)
    segment.put(layout.header_of(contents.specs, room), 0)
    segment.map()
    segment.last = None
    return contents


def _places(memory: npt.NDArray[np.uint8], specs: list[layout.Spec], start: int) -> dict[str, torch.Tensor]:
    """Tensors that lie in the memory, side by side; none where one of them would not lie at a multiple of its width."""
    found: dict[str, torch.Tensor] = {}
    for spec in specs:
        if start % spec.dtype.itemsize or not spec.bytes:
            return {}
        found[spec.name] = torch.from_numpy(memory[start : start + spec.bytes]).view(spec.dtype).view(spec.shape)
        start += spec.bytes
    return found


class View:
    """A reader's. Mapped so that writing into it would change nothing but this mapping, which nobody may."""

    def __init__(self, file: int) -> None:
        self._bytes = mmap.mmap(file, 0, access=mmap.ACCESS_COPY)
        self._last: Laid | None = None

    def __len__(self) -> int:
        return len(self._bytes)

    def tensors(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Tensors that lie in the segment, those apart whose type does not fit the place. Raises DigestMismatch."""
        unread = memoryview(self._bytes)[: manifest.bytes]
        if (last := self._last) and last.end == manifest.bytes and bytes(unread[: len(last.header)]) == last.header:
            layout.check(hashed(last.heads, unread[last.start :]), manifest)
            return last.places

        def read(view: memoryview) -> int:
            nonlocal unread
            count = min(len(view), len(unread))
            view[:count] = unread[:count]
            unread = unread[count:]
            return count

        specs = layout.header(read, manifest)
        heads, start = layout.heads(specs), manifest.bytes - len(unread)
        digest = hashed(heads, unread)
        layout.check(digest, manifest)
        found, at, whole = {}, start, len(unread) <= SMALL
        for spec in specs:
            found[spec.name] = self._tensor(spec, at)
            whole = whole and at % spec.dtype.itemsize == 0
            at += spec.bytes
        if whole:
            header = bytes(memoryview(self._bytes)[:start])
            self._last = Laid(header, layout.Contents(specs, digest, False), heads, found, start)
        return found

    def _tensor(self, spec: layout.Spec, start: int) -> torch.Tensor:
        if not spec.bytes:
            return torch.empty(spec.shape, dtype=spec.dtype)
        width = spec.dtype.itemsize
        if start % width:
            flat = torch.frombuffer(self._bytes, dtype=torch.uint8, count=spec.bytes, offset=start)
            return flat.clone().view(spec.dtype).view(spec.shape)
        return torch.frombuffer(self._bytes, dtype=spec.dtype, count=spec.bytes // width, offset=start).view(spec.shape)


class Views:
    """The segments that a reader has mapped last: as many as the sender writes over in turn."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._views: dict[tuple[int, int], View] = {}  # by device and inode, which cannot be another's while it is mapped

    def of(self, file: int, manifest: Manifest) -> View:
        """Raises OSError, and DigestMismatch where the segment is too short."""
        status = os.fstat(file)
        if status.st_size < max(manifest.bytes, 1):
            raise layout.mismatch(manifest, f"{status.st_size} bytes arrived where {manifest.bytes} were published")
        key = (status.st_dev, status.st_ino)
        view = self._views.pop(key, None)
        if view is None or len(view) < manifest.bytes:
            view = View(file)
        self._views[key] = view
        for old in list(self._views)[: -self._kept]:
            self._views.pop(old, None)
        return view

    def clear(self) -> None:
        self._views.clear()


def still_named(file: int, path: Path) -> bool:
    """Whether the open file has this name: its sender takes it away before it writes the file over."""
    with contextlib.suppress(OSError):
        return os.path.samestat(os.fstat(file), os.stat(path, follow_symlinks=False))
    return False
