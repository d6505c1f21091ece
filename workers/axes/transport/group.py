"""Process groups of the trainer and the engines, made directly: the default group belongs to a sharded trainer.

Members find each other through a file in the attempt's folder (no store port), and gloo listens on loopback only. Nobody
enters gloo before everybody is known to be here: until then they look at a file, which can be given up at any time, and at
locks that end with their processes. An engine may come late (it drains first); a dead one is not waited for. Gloo itself
cannot be interrupted; its calls carry deadlines.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from workers.contract.errors import EngineError

COMING_S = 3600.0  # for every member to come: one may be finishing long samples first; who is dead is not waited for
PATIENCE_S = 30.0  # for those that are here to connect, and for each message beside its bytes
SLOWEST_BYTES_A_S = 20e6
LOOK_S = 0.005
LOOK_AFTER_S = 0.2  # between two looks whether those that have not come are alive
MESSAGE_BYTES = 1 << 28  # a longer piece goes in several
GO, GONE = "go", "gone"


class Presence:
    """A lock that the operating system lets go when its process ends, however it ends."""

    def __init__(self, folder: Path, name: str) -> None:
        path = _lock_of(folder, name)
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor: int | None = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_SH)

    def end(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def present(folder: Path, name: str) -> bool:
    """Whether a process that has this name is alive."""
    try:
        descriptor = os.open(_lock_of(folder, name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


class Meeting:
    """Where members of one group find each other, before there is a group and when there is none any more. Ranks: their order."""

    def __init__(self, path: Path, members: list[str]) -> None:
        self.size = len(members)
        self._members = members
        self._folder = path.parent
        self.store: Any = import_module("torch.distributed").FileStore(str(path), self.size)
        self.store.set_timeout(timedelta(seconds=PATIENCE_S))

    @property
    def begun(self) -> bool:
        return bool(self.store.check([GO]))

    @property
    def over(self) -> bool:
        return bool(self.store.check([GONE]))

    def leave(self) -> None:
        """Whoever waits here stops waiting; no message of this group can arrive any more."""
        with contextlib.suppress(RuntimeError):  # the sender has closed, and nobody can wait here any more
            self.store.set(GONE, "")

    def gather(self, given_up: Callable[[], bool]) -> None:
        """Called by rank 0: returns when every other member is here. Raises EngineError where one is dead."""
        awaited = range(1, self.size)
        self._await(lambda: [rank for rank in awaited if not self.store.check([f"here/{rank}"])], given_up)
        self.store.set(GO, "")

    def enter(self, rank: int) -> None:
        """Called by the others: returns when everybody is here."""
        if self.begun:
            self.leave()
            raise broken("the group met without this process")
        self.store.set(f"here/{rank}", "")
        self._await(lambda: [] if self.begun else [0], lambda: False)

    def all_at(self, publish: int, given_up: Callable[[], bool]) -> None:
        """Called by rank 0 before the first message of each publish of the group: gloo's deadlines do not suit those who come late."""
        awaited = range(1, self.size)
        self._await(lambda: [rank for rank in awaited if not self.store.check([f"at/{publish}/{rank}"])], given_up)
        self.store.set(f"{GO}/{publish}", "")

    def come_to(self, publish: int, rank: int) -> None:
        """Called by the others; returns when everybody wants this publish."""
        self.store.set(f"at/{publish}/{rank}", "")
        self._await(lambda: [] if self.store.check([f"{GO}/{publish}"]) else [0], lambda: False)

    def _await(self, missing: Callable[[], list[int]], given_up: Callable[[], bool]) -> None:
        begun = looked = time.monotonic()
        while ranks := missing():
            if self.over or given_up():
                raise broken("the group was given up before everybody had come")
            now = time.monotonic()
            if now - looked > LOOK_AFTER_S:
                looked = now
                dead = [self._members[rank] for rank in ranks if not present(self._folder, self._members[rank])]
                if dead:
                    raise broken(f"{', '.join(dead)} did not come to the group and is not alive")
            if now - begun > COMING_S:
                raise broken(f"not everybody came to the group within {COMING_S:.0f} s")
            time.sleep(LOOK_S)


class Group:
    """The group itself. Constructed by all members at about the same time; raises EngineError, retryable, where one is gone."""

    def __init__(self, meeting: Meeting, rank: int, backend: str) -> None:
        self._distributed = import_module("torch.distributed")
        self._rank = rank
        self._device = torch.device("cpu")
        try:
            self._group: Any = self._gloo(meeting, rank) if backend == "gloo" else self._nccl(meeting, rank)
        except RuntimeError as error:
            raise broken(f"the group of {meeting.size} could not connect: {_first_line(error)}") from error

    def broadcast(self, piece: memoryview) -> None:
        """Rank 0's bytes fill everybody's `piece`, which must be equally long everywhere: gloo ends a process that gets more."""
        options = self._distributed.BroadcastOptions()
        options.rootRank = options.rootTensor = 0
        for start in range(0, len(piece), MESSAGE_BYTES):
            part = torch.frombuffer(piece[start : start + MESSAGE_BYTES], dtype=torch.uint8)
            options.timeout = timedelta(seconds=PATIENCE_S + len(part) / SLOWEST_BYTES_A_S)
            staged = part.to(self._device)  # the very same tensor on the CPU
            try:
                self._group.broadcast([staged], options).wait()
            except RuntimeError as error:
                raise broken(f"the broadcast was cut: {_first_line(error)}") from error
            if staged is not part and self._rank:
                part.copy_(staged)

    def close(self) -> None:
        """Closes its connections and its port, whoever still holds this object (the traceback of an error does)."""
        self._group = None

    def _gloo(self, meeting: Meeting, rank: int) -> Any:
        gloo = self._distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1", lazy_init=False)]
        options._timeout = timedelta(seconds=PATIENCE_S)
        options._threads = 1
        return gloo(self._distributed.PrefixStore("gloo", meeting.store), rank, meeting.size, options)

    def _nccl(self, meeting: Meeting, rank: int) -> Any:
        """Needs a GPU of its own for each member. Pieces are staged there; its connections stay on loopback, too."""
        if not torch.cuda.is_available():
            raise broken("the trainer broadcasts from a GPU and this process has none", retryable=False)
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        self._device = torch.device("cuda", torch.cuda.current_device())
        nccl = self._distributed.ProcessGroupNCCL
        options = nccl.Options()
        options._timeout = timedelta(seconds=PATIENCE_S)
        return nccl(self._distributed.PrefixStore("nccl", meeting.store), rank, meeting.size, options)


def broken(message: str, retryable: bool = True) -> EngineError:
    cure = "publish again: a new group is made of the engines that live" if retryable else "choose transport.kind shared_memory"
    return EngineError(message, field="transport.kind", value="collective", cure=cure, retryable=retryable)


def _lock_of(folder: Path, name: str) -> Path:
    return folder / "members" / name.replace("/", "-")


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0].split(" This is typically")[0][:300]
