"""A rank above 0 of the training pool: does what rank 0 does, with its own share of the rows or of the model.

Started by rank 0 as `python -m workers.axes.backend.rank FD`; the first frame on that socket names the run's config and the seat.
It dies with rank 0: the kernel signals it, and the end of the socket ends it too.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import signal
import socket
import sys
import threading
from pathlib import Path
from typing import Any

from workers import registry
from workers.axes.backend.ranks import Line, Seat
from workers.axes.orchestration.child import PR_SET_PDEATHSIG
from workers.axes.orchestration.wire import error_to_wire
from workers.contract.config import RunConfig
from workers.contract.errors import HeadraceError
from workers.records import Batch, from_wire


class Follower:
    """The peer's end: a thread listens, so that a cancel and the end of rank 0 are heard while a batch is trained."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._inbox: queue.Queue[dict[str, Any]] = queue.Queue()
        self.trainer: Any = None

    def listen(self) -> None:
        try:
            while True:
                frame = self._line.receive()
                if frame.get("method") == "interrupt":
                    if self.trainer is not None:
                        self.trainer.interrupt()
                else:
                    self._inbox.put(frame)
        finally:
            os._exit(0)  # rank 0 is gone or has hung up: nothing may hold this process, a collective operation least of all

    def next(self) -> dict[str, Any]:
        """The next command, or whatever rank 0 sends within one."""
        return self._inbox.get()

    def send(self, frame: dict[str, Any]) -> None:
        self._line.send(frame)

    def fail(self, error: BaseException) -> None:
        """After what rank 0 did not expect nothing here can be trusted."""
        self.send({"error": error_to_wire(error), "foreign": not isinstance(error, HeadraceError)})
        os._exit(1)


def obey(follower: Follower) -> None:
    """Commands one after the other. An error of ours is one that rank 0 meets as well; any other ends this rank."""
    trainer = follower.trainer
    while True:
        frame = follower.next()
        method, args = frame["method"], frame["args"]
        try:
            if method == "piece":  # the tensor is the answer
                trainer.send_piece(args["kind"], args["name"])
                continue
            if method == "pieces":
                trainer.send_pieces(args["kind"], args["names"])
                continue
            if method == "train":
                trainer.train(from_wire(Batch, args["batch"]))
            elif method == "restore":
                trainer.checkpoint(Path(args["folder"]), restore=True)
            else:
                raise RuntimeError(f"a rank has no command {method}")
            follower.send({"result": None})
        except HeadraceError as error:
            follower.send({"error": error_to_wire(error)})


def main(descriptor: int) -> None:
    line = Line(socket.socket(fileno=descriptor))
    first = line.receive()
    follower = Follower(line)
    threading.Thread(target=follower.listen, name="rank-0", daemon=True).start()
    try:
        config = RunConfig.model_validate(first["config"])
        backend = registry.resolve("backend", config.backend.kind)
        follower.trainer = backend(config, Path(first["scratch"]), None, Seat(**first["seat"]), follower)
        follower.send({"result": os.getpid()})
        obey(follower)
    except Exception as error:
        follower.fail(error)


def die_with_rank_0() -> None:
    """Unlike a role of the driver it keeps the priority it was started with: that of rank 0, which waits for it."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux: the end of the socket remains
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


if __name__ == "__main__":
    die_with_rank_0()
    main(int(sys.argv[1]))
