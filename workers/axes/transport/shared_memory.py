"""Weights in POSIX shared memory: written once by the trainer, read by every engine on the same host.

Segments are opened by name under /dev/shm and not through `multiprocessing.shared_memory`: its resource tracker of an
unrelated process would unlink, at that process's end, what it merely read.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch

from workers.axes.transport.base import Link, Transport
from workers.axes.transport.leftovers import SEGMENTS, segment_prefix
from workers.axes.transport.payload import Contents, mismatch
from workers.axes.transport.segment import Segment, Views, still_named, write_segment
from workers.contract.errors import EngineError, EnvironmentMissing
from workers.records import Manifest

GENERATIONS_KEPT = 2  # an engine may still be reading the last but one


class SharedMemoryTransport(Transport):
    """The road through memory. Only the side that sends ever unlinks."""

    def __init__(self, link: Link) -> None:
        self._prefix = segment_prefix(link.run_id)
        self._sent: deque[Segment] = deque()
        self._views = Views(GENERATIONS_KEPT)

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish. The last two publishes stay readable."""
        started = time.perf_counter()
        path = SEGMENTS / f"{self._prefix}{version}-{secrets.token_hex(4)}"
        try:
            segment, contents = self._write(path, tensors)
        except OSError as error:
            raise EnvironmentMissing(
                f"shared memory cannot be written: {error.strerror or error}",
                field="transport.kind",
                value="shared_memory",
                cure=f"give {SEGMENTS} room for two publishes, or set transport.kind to filesystem",
            ) from error
        self._sent.append(segment)
        handle = {"segment": path.name}
        taken = time.perf_counter() - started
        return Manifest(version, contents.digest, segment.used, payload, "shared_memory", handle, export_s=taken)

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine. Raises DigestMismatch on cut or flipped bytes, EngineError where the segment is gone."""
        with self.borrow(manifest) as tensors:
            return {name: tensor.clone() for name, tensor in tensors.items()}

    @contextlib.contextmanager
    def borrow(self, manifest: Manifest) -> Iterator[Mapping[str, torch.Tensor]]:
        """The segment itself, not copied. Raises as `receive` does, and DigestMismatch at the end of the context where the segment
        was taken to be written over meanwhile: that is before its first byte changes, so what passed is what was hashed."""
        name = str(manifest.handle["segment"])
        if not name.startswith(self._prefix) or "/" in name:
            raise EngineError(
                "the segment belongs to another run or attempt", field="transport", value=name, cure=f"it must begin with {self._prefix}"
            )
        with contextlib.ExitStack() as stack:
            try:
                file = os.open(SEGMENTS / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
                stack.callback(os.close, file)
                view = self._views.of(file, manifest)
            except OSError as error:
                raise EngineError(
                    f"the published weights cannot be read: {error.strerror or error}",
                    field="transport.kind",
                    value=name,
                    cure="engines on other hosts need transport.kind filesystem; publish again if it was tidied up",
                    retryable=True,
                ) from error
            yield view.tensors(manifest)
            if not still_named(file, SEGMENTS / name):
                raise mismatch(manifest, "the segment was taken away or written over while it was read")

    def close(self) -> None:
        """Called at the end on both sides; only what this side sent is unlinked."""
        self._views.clear()
        while self._sent:
            self._sent.popleft().remove()

    def _write(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[Segment, Contents]:
        """A segment that is whole, or none at all. The last but one is written over, under the new name: an engine that still reads
        it finds the old name gone, and asks for it no more."""
        segment = self._taken_back(path) or Segment(path)
        try:
            return segment, write_segment(tensors, segment)
        except BaseException:
            segment.remove()
            raise

    def _taken_back(self, path: Path) -> Segment | None:
        """The last but one, under its new name, if it is fit to be written over."""
        if len(self._sent) < GENERATIONS_KEPT:
            return None
        segment = self._sent.popleft()
        with contextlib.suppress(FileNotFoundError):  # somebody swept
            if segment.reusable:
                segment.rename(path)
                return segment
        segment.remove()
        return None
