"""collective: trainer and engines form one process group, and each tensor is broadcast from the trainer's private copy.

A group lives as long as its engines do: when the set of receivers changes, or a broadcast has failed or was never finished,
the next publish makes a new generation. Names, types and shapes travel in the manifest, so that every member knows the
length of every message before it comes.
"""

from __future__ import annotations

import logging
import mmap
import queue
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from workers.axes.transport import payload as layout
from workers.axes.transport.base import Link, Transport
from workers.axes.transport.group import Group, Meeting, Presence, broken
from workers.contract.errors import EngineError
from workers.records import Manifest

logger = logging.getLogger(__name__)
GRACE_S = 0.2  # the engines may have their last bytes a moment before the trainer knows
STOP_PATIENCE_S = 3.0  # a broadcast that hangs in gloo ends by its own deadline


class Image:
    """A private copy of one payload, in the safetensors layout, in nameless memory."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        with layout.private_file() as file:
            self.start, self.contents = layout.write_file(tensors, file)
            self.bytes = self.start + self.contents.bytes
            self.view = memoryview(mmap.mmap(file.fileno(), self.bytes))

    def tensors(self) -> Iterator[memoryview]:
        """The bytes of each tensor, in order."""
        offset = self.start
        for spec in self.contents.specs:
            yield self.view[offset : offset + spec.bytes]
            offset += spec.bytes

    def buckets(self, size: int) -> Iterator[memoryview]:
        """The whole image, in pieces of `size` bytes; the last one is what is left."""
        for start in range(0, self.bytes, size):
            yield self.view[start : start + size]


class Sending:
    """The trainer's end of one generation: a thread that broadcasts while training goes on."""

    def __init__(self, path: Path, members: list[str], backend: str) -> None:
        self.members = members
        self.backend = backend
        self.path = path
        self._meeting = Meeting(path, members)
        self._jobs: queue.SimpleQueue[Iterator[memoryview] | None] = queue.SimpleQueue()
        self._idle = threading.Event()
        self._idle.set()
        self._failed = self._given_up = False
        self.publishes = 0  # of this group
        self._thread = threading.Thread(target=self._run, name=f"broadcast-{path.name}", daemon=True)
        self._thread.start()

    def fits(self, members: list[str], backend: str) -> bool:
        """Whether another publish may go this way: same members, nothing left unfinished, nobody gone."""
        same = members == self.members and backend == self.backend
        return same and self._idle.wait(GRACE_S) and not self._failed and not self._meeting.over

    def put(self, pieces: Iterator[memoryview]) -> None:
        self._idle.clear()
        self.publishes += 1
        self._jobs.put(pieces)

    def end(self) -> None:
        """What was not broadcast yet never will be. A thread that hangs in gloo ends by the deadline of its message."""
        self._given_up = not self._idle.is_set()
        self._jobs.put(None)

    def join(self) -> None:
        self._thread.join(STOP_PATIENCE_S)

    def _run(self) -> None:
        group = None
        try:
            self._meeting.gather(lambda: self._given_up)
            group = Group(self._meeting, 0, self.backend)
            publish = 0
            while (pieces := self._jobs.get()) is not None:
                publish += 1
                self._meeting.all_at(publish, lambda: self._given_up)
                for piece in pieces:
                    if self._given_up:
                        raise broken("the publish was given up")
                    group.broadcast(piece)
                self._idle.set()
        except (EngineError, RuntimeError, OSError) as error:
            self._failed = True
            if not self._given_up:
                logger.warning("group %s of %d engines: %s", self.path.name, len(self.members) - 1, str(error))
        finally:
            if group is not None:
                group.close()
            self._meeting.leave()


class CollectiveTransport(Transport):
    """The road through a process group: tensor by tensor."""

    kind = "collective"

    def __init__(self, link: Link) -> None:
        self._link = link
        self._folder = link.folder / "groups"
        self._generation = 0
        self._sending: Sending | None = None
        self._joined: tuple[str, Meeting, Group] | None = None
        self._presence = Presence(self._folder, link.name)

    def send(self, tensors: Mapping[str, torch.Tensor], version: int, payload: str, receivers: list[str]) -> Manifest:
        """Called by the trainer at each publish; returns when the private copy is made. Each receiver can take it once."""
        started = time.perf_counter()
        if not receivers:
            raise EngineError("there is no engine to broadcast to", field="rollout.engines", value=0, cure="restart the engines")
        image = Image(tensors)
        backend = "nccl" if image.contents.on_gpu else "gloo"
        sending = self._sending_to([self._link.name, *sorted(receivers)], backend)
        handle = {"group": sending.path.name, "members": sending.members, "backend": backend, **self._describe(image)}
        sending.put(self._pieces(image))
        handle["publish"] = sending.publishes
        size, taken = self._size(image), time.perf_counter() - started
        return Manifest(version, image.contents.digest, size, payload, self.kind, handle, export_s=taken)

    def receive(self, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Called by each engine, once a publish. Raises DigestMismatch, or EngineError (retryable) where a member is gone."""
        name, members = str(manifest.handle["group"]), list(manifest.handle["members"])
        if self._link.name not in members:
            raise broken(f"{self._link.name} is not among the members of the group")
        meeting, group = self._join(name, members, str(manifest.handle["backend"]))
        left = Left(self._lengths(manifest), group)
        try:
            meeting.come_to(int(manifest.handle["publish"]), members.index(self._link.name))
            return self._take_in(left, manifest)
        finally:
            if left:  # the others must not wait for somebody who listens no more
                self._drop()

    def close(self) -> None:
        """Called at the end on both sides; the sender removes what the members met through."""
        self._drop()
        self._presence.end()
        if self._sending is not None:
            self._sending.end()
            self._sending.join()
            self._sending = None
            shutil.rmtree(self._folder, ignore_errors=True)

    # -- what the bucketed road does otherwise ---------------------------------------------------------

    def _describe(self, image: Image) -> dict[str, Any]:
        return {"specs": layout.specs_to_wire(image.contents.specs)}

    def _size(self, image: Image) -> int:
        return image.contents.bytes

    def _pieces(self, image: Image) -> Iterator[memoryview]:
        return image.tensors()

    def _lengths(self, manifest: Manifest) -> list[int]:
        return [spec.bytes for spec in layout.specs_from_wire(manifest)]

    def _take_in(self, left: Left, manifest: Manifest) -> dict[str, torch.Tensor]:
        """Broadcast straight into each tensor's memory."""

        def read(view: memoryview) -> int:
            left.take(view)
            return len(view)

        return layout.take_in(layout.specs_from_wire(manifest), read, manifest)

    # -- groups ------------------------------------------------------------------------------------------

    def _sending_to(self, members: list[str], backend: str) -> Sending:
        if self._sending is None or not self._sending.fits(members, backend):
            if self._sending is not None:
                self._sending.end()
            self._folder.mkdir(parents=True, exist_ok=True)
            self._generation += 1
            self._sending = Sending(self._folder / f"{self._generation}-{time.time_ns():x}", members, backend)
        return self._sending

    def _join(self, name: str, members: list[str], backend: str) -> tuple[Meeting, Group]:
        if self._joined is not None and self._joined[0] == name:
            return self._joined[1:]
        self._drop()
        path = self._folder / Path(name).name
        if not path.exists():
            raise broken("the group was given up before this engine came")
        meeting = Meeting(path, members)
        rank = members.index(self._link.name)
        meeting.enter(rank)
        try:
            group = Group(meeting, rank, backend)
        except EngineError:
            meeting.leave()
            raise
        self._joined = (name, meeting, group)
        return meeting, group

    def _drop(self) -> None:
        if self._joined is not None:
            name, meeting, group = self._joined
            self._joined = None
            group.close()
            if (self._folder / name).exists():
                meeting.leave()


class Left:
    """The messages of one publish that have not come yet. True while there are any."""

    def __init__(self, lengths: list[int], group: Group) -> None:
        self._lengths = [length for length in reversed(lengths) if length]
        self._group = group

    def __bool__(self) -> bool:
        return bool(self._lengths)

    @property
    def next(self) -> int:
        return self._lengths[-1]

    def take(self, view: memoryview) -> None:
        """Fills a view that is as long as the next message."""
        if len(view) != self.next:
            raise broken(f"a message of {self.next} bytes was taken for one of {len(view)}")
        self._group.broadcast(view)
        self._lengths.pop()
