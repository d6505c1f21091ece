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
from collections.abc import Mapping
from pathlib import Path

import torch

from workers.axes.transport.base import Link
from workers.axes.transport.payload import Contents, read_file, write_file
from workers.contract.errors import EngineError, EnvironmentMissing
from workers.records import Manifest

SEGMENTS = Path("/dev/shm")
GENERATIONS_KEPT = 2  # an engine may still be reading the last but one


def segment_prefix(run_id: str) -> str:
    """What every segment of this attempt begins with: an attempt that was fenced and wakes later must not touch the next one's."""
    attempt = "".join(letter for letter in os.environ.get("HEADRACE_ATTEMPT", "") if letter.isalnum()) or "0"
    return f"{run_prefix(run_id)}{attempt}-"


def run_prefix(run_id: str) -> str:
    """What every segment of a run begins with, of whichever attempt."""
    return f"hr-{run_id[:12]}-"


def sweep(run_id: str, *, whole_run: bool = False) -> list[str]:
    """Called when an attempt has ended, however it ended: unlinks what a killed sender left. Returns the names removed.

    `whole_run`: those of every attempt; for a run of which nothing may live any more.
    """
    prefix = run_prefix(run_id) if whole_run else segment_prefix(run_id)
    names = [path.name for path in SEGMENTS.iterdir() if path.name.startswith(prefix)] if SEGMENTS.is_dir() else []
    for name in names:
        (SEGMENTS / name).unlink(missing_ok=True)
    return names


class SharedMemoryTransport:
    """The road through memory. Only the side that sends ever unlinks."""

    def __init__(self, link: Link) -> None:
        self._prefix = segment_prefix(link.run_id)
        self._sent: deque[Path] = deque()

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish. The last two publishes stay readable."""
        started = time.perf_counter()
        path = SEGMENTS / f"{self._prefix}{version}-{secrets.token_hex(4)}"
        try:
            start, contents = self._write(path, tensors)
        except OSError as error:
            raise EnvironmentMissing(
                f"shared memory cannot be written: {error.strerror or error}",
                field="transport.kind",
                value="shared_memory",
                cure=f"give {SEGMENTS} room for two publishes, or set transport.kind to filesystem",
            ) from error
        self._sent.append(path)
        handle = {"segment": path.name}
        size = start + contents.bytes
        return Manifest(version, contents.digest, size, payload, "shared_memory", handle, export_s=time.perf_counter() - started)

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine. Raises DigestMismatch on cut or flipped bytes, EngineError where the segment is gone."""
        name = str(manifest.handle["segment"])
        if not name.startswith(self._prefix) or "/" in name:
            raise EngineError(
                "the segment belongs to another run or attempt", field="transport", value=name, cure=f"it must begin with {self._prefix}"
            )
        try:
            with open(SEGMENTS / name, "rb", buffering=0) as segment:
                return read_file(segment, manifest)
        except OSError as error:
            raise EngineError(
                f"the published weights cannot be read: {error.strerror or error}",
                field="transport.kind",
                value=name,
                cure="engines on other hosts need transport.kind filesystem; publish again if it was tidied up",
                retryable=True,
            ) from error

    def close(self) -> None:
        """Called at the end on both sides; only what this side sent is unlinked."""
        while self._sent:
            self._sent.popleft().unlink(missing_ok=True)

    def _write(self, path: Path, tensors: Mapping[str, torch.Tensor]) -> tuple[int, Contents]:
        """A segment that is whole, or none at all. The last but one is written over, under the new name: to ask the system for fresh
        memory takes about as long as to fill it. An engine that still reads it finds another digest, and asks for it no more."""
        if len(self._sent) == GENERATIONS_KEPT:
            with contextlib.suppress(FileNotFoundError):  # somebody swept
                os.rename(self._sent.popleft(), path)
        descriptor = os.open(path, os.O_CREAT | os.O_NOFOLLOW | os.O_WRONLY | os.O_CLOEXEC, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as segment:
                start, contents = write_file(tensors, segment)
                segment.truncate(start + contents.bytes)
                return start, contents
        except BaseException:
            path.unlink(missing_ok=True)
            raise
