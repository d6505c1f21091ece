"""Weights as a safetensors file in the attempt's folder: written aside, synced, renamed, read by path."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Mapping
from pathlib import Path

import torch

from workers.axes.transport.base import Link, Transport
from workers.axes.transport.payload import read_file, write_file
from workers.contract.errors import EngineError, EnvironmentMissing
from workers.records import Manifest

GENERATIONS_KEPT = 2  # an engine may still be reading the last but one


class FilesystemTransport(Transport):
    """The road over a folder that both sides see. Only the side that sends ever deletes."""

    def __init__(self, link: Link) -> None:
        self._folder = link.folder / "weights"
        self._sent: deque[Path] = deque()

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish; the file is whole and on disk before its name exists."""
        started = time.perf_counter()
        path = self._folder / f"version-{version}.safetensors"
        aside = path.with_name(f".{path.name}.{os.getpid()}")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with open(aside, "wb") as file:
                start, contents = write_file(tensors, file)
                os.fsync(file.fileno())
            os.replace(aside, path)
        except OSError as error:
            raise EnvironmentMissing(
                f"the weights cannot be written: {error.strerror or error}",
                field="transport.kind",
                value=str(path),
                cure="free disk space or choose a writable output folder",
            ) from error
        finally:
            aside.unlink(missing_ok=True)  # whatever went wrong, a gather on another rank included
        if path not in self._sent:
            self._sent.append(path)
        while len(self._sent) > GENERATIONS_KEPT:
            self._sent.popleft().unlink(missing_ok=True)
        handle = {"path": str(path)}
        size = start + contents.bytes
        return Manifest(version, contents.digest, size, payload, "filesystem", handle, export_s=time.perf_counter() - started)

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine. Raises DigestMismatch on cut or flipped bytes, EngineError where the file is gone."""
        path = Path(manifest.handle["path"])
        try:
            with open(path, "rb", buffering=0) as file:
                return read_file(file, manifest)
        except OSError as error:
            raise EngineError(
                f"the published weights cannot be read: {error.strerror or error}",
                field="transport.kind",
                value=str(path),
                cure="trainer and engines need the same folder; publish again if it was tidied up",
                retryable=True,
            ) from error

    def close(self) -> None:
        """Called at the end on both sides; only what this side sent is removed."""
        while self._sent:
            self._sent.popleft().unlink(missing_ok=True)
