"""object_store: the payload in Ray's object store, in pieces; engines of the same cluster map them and copy out of them.

References reach the engines through a named actor, the shelf: Ray's own way, so that Ray counts who still needs what. The
other way, writing a reference's id and owner into the manifest, leans on private calls and is unseen by that count.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import ray
import torch
from ray.exceptions import RayError

from workers.axes.transport.base import Link, Transport
from workers.axes.transport.payload import hand_on, header_of, unpack
from workers.cluster.shelf import Shelf
from workers.contract.errors import EngineError, EnvironmentMissing
from workers.records import Manifest

PATIENCE_S = 60.0  # for the shelf to start, and for each piece to come from another node
SMALLEST_PIECE = 1 << 20


class ObjectStoreTransport(Transport):
    """The road through the cluster's shared memory. Both ends must run inside Ray, in the same cluster."""

    def __init__(self, link: Link) -> None:
        if not ray.is_initialized():
            raise EnvironmentMissing(
                "this process is not part of a Ray cluster",
                field="transport.kind",
                value="object_store",
                cure="set orchestration.kind to ray, or choose transport.kind shared_memory",
            )
        self._namespace = f"headrace-{link.run_id}"
        self._piece_bytes = max(SMALLEST_PIECE, int(link.options.bucket_mb * 1e6))
        self._shelf: Any = None
        self._name = ""

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish. The last two publishes stay readable."""
        started = time.perf_counter()
        pieces = _Pieces(self._piece_bytes)
        try:
            contents = hand_on(tensors, pieces.write)
            references = pieces.end(header_of(contents.specs))
            if self._shelf is None:
                self._open_shelf()
            key = f"{version}-{secrets.token_hex(4)}"
            _got(self._shelf.put.remote(key, references))
        except (RayError, TimeoutError) as error:
            raise EnvironmentMissing(
                f"the object store cannot be written: {_first_line(error)}",
                field="transport.kind",
                value="object_store",
                cure="give the cluster's object store room for three publishes, or set transport.kind to filesystem",
                retryable=True,
            ) from error
        handle = {"shelf": self._name, "key": key}
        return Manifest(version, contents.digest, pieces.bytes, payload, "object_store", handle, export_s=time.perf_counter() - started)

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine. Raises DigestMismatch, or EngineError (retryable) where the trainer or its objects are gone."""
        name, key = str(manifest.handle["shelf"]), str(manifest.handle["key"])
        try:
            shelf = ray.get_actor(name, namespace=self._namespace)
            references: list[Any] = _got(shelf.take.remote(key))
            if not references:
                raise _unreadable("it was tidied up", key)
            return unpack(_Reader(references).read, manifest)
        except (RayError, TimeoutError, ValueError) as error:  # ValueError: there is no actor of that name
            raise _unreadable(_first_line(error), key) from error

    def close(self) -> None:
        """Called at the end on both sides; with the sender's shelf go the objects."""
        if self._shelf is not None:
            ray.kill(self._shelf)
            self._shelf = None

    def _open_shelf(self) -> None:
        self._name = f"weights-{secrets.token_hex(8)}"
        remote: Any = ray.remote(Shelf).options(name=self._name, namespace=self._namespace, num_cpus=0, max_restarts=0)
        self._shelf = remote.remote()


class _Pieces:
    """Cuts a stream into objects of equal size as it comes; beside the store, one piece is held."""

    def __init__(self, size: int) -> None:
        self.bytes = 0
        self._buffer = np.empty(size, dtype=np.uint8)
        self._filled = 0
        self._references: list[Any] = []

    def write(self, data: memoryview) -> None:
        while len(data):
            count = min(len(data), len(self._buffer) - self._filled)
            self._buffer[self._filled : self._filled + count] = data[:count]
            self._filled += count
            data = data[count:]
            if self._filled == len(self._buffer):
                self._flush()

    def end(self, header: bytes) -> list[Any]:
        """The references in the order of reading; the header, known last, comes first."""
        self._flush()
        self.bytes += len(header)
        return [ray.put(np.frombuffer(header, dtype=np.uint8)), *self._references]

    def _flush(self) -> None:
        if self._filled:
            self._references.append(ray.put(self._buffer[: self._filled]))  # the store copies
            self.bytes += self._filled
            self._filled = 0


class _Reader:
    """One piece after another, mapped and not copied; each is let go when it has been read."""

    def __init__(self, references: list[Any]) -> None:
        self._references: Iterator[Any] = iter(references)
        self._unread = memoryview(b"")

    def read(self, view: memoryview) -> int:
        while not len(self._unread):
            reference = next(self._references, None)
            if reference is None:
                return 0
            self._unread = memoryview(_got(reference))
        count = min(len(view), len(self._unread))
        view[:count] = self._unread[:count]
        self._unread = self._unread[count:]
        return count


def _got(reference: Any) -> Any:
    """What a reference stands for. Called in a thread of an asynchronous actor, where Ray warns of its own blocking call."""
    return reference.future().result(PATIENCE_S)


def _unreadable(why: str, key: str) -> EngineError:
    return EngineError(
        f"the published weights cannot be read: {why}",
        field="transport.kind",
        value=key,
        cure="trainer and engines must be in one Ray cluster; publish again if it was tidied up",
        retryable=True,
    )


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:300]
