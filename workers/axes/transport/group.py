"""Process groups of the trainer and the engines, made directly: the default group belongs to a sharded trainer.

Members find each other through a file in the attempt's folder (no store port), and gloo listens on loopback only. Nobody
enters gloo before everybody is known to be here, so that an engine that never comes is waited for by looking at a file,
which can be given up at any time. Gloo itself cannot be interrupted; its calls carry deadlines.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable
from datetime import timedelta
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from workers.contract.errors import EngineError

COMING_S = 60.0  # for every member to come: one may be finishing its requests first
PATIENCE_S = 30.0  # for those that are here to connect, and for each message beside its bytes
SLOWEST_BYTES_A_S = 20e6
LOOK_S = 0.005
MESSAGE_BYTES = 1 << 28  # a longer piece goes in several
GO, GONE = "go", "gone"


class Meeting:
    """Where members of one group find each other, before there is a group and when there is none any more."""

    def __init__(self, path: Path, size: int) -> None:
        distributed = import_module("torch.distributed")
        self.size = size
        self.store: Any = distributed.FileStore(str(path), size)
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
        """Called by rank 0: returns when every other member is here."""
        _await(lambda: bool(self.store.check([f"here/{rank}" for rank in range(1, self.size)])), lambda: self.over or given_up())
        self.store.set(GO, "")

    def enter(self, rank: int) -> None:
        """Called by the others: returns when everybody is here."""
        if self.begun:
            self.leave()
            raise broken("the group met without this process")
        self.store.set(f"here/{rank}", "")
        _await(lambda: self.begun, lambda: self.over)


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


def _await(arrived: Callable[[], bool], given_up: Callable[[], bool]) -> None:
    end = time.monotonic() + COMING_S
    while not arrived():
        if given_up():
            raise broken("the group was given up before everybody had come")
        if time.monotonic() > end:
            raise broken(f"not everybody came to the group within {COMING_S:.0f} s")
        time.sleep(LOOK_S)


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0].split(" This is typically")[0][:300]
