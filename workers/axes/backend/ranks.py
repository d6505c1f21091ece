"""The processes of a training pool of several ranks. Rank 0 is the trainer's own process: it starts the others and leads them.

Two roads join them. Frames over a socket pair carry commands, answers and the news that somebody is gone; tensors travel in a
process group (gloo, NCCL for tensors on GPUs), which meets through a file in the attempt's scratch folder and talks over loopback.
Every wait has an end: a rank that is dead or silent makes rank 0 raise, with the cause, and ends the whole pool.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from workers.axes.orchestration.base import ROLE_ENVIRONMENT, START_PATIENCE_S
from workers.axes.orchestration.wire import MAX_FRAME, copy_of, error_from_wire, pack, unpack
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError, HeadraceError

PATIENCE_S = 600.0  # for a collective operation and for an answer: ranks wait here for the slowest one's share of a batch
STOP_PATIENCE_S = 3.0
LAST_WORDS_S = 2.0  # for what a rank still says when another one is gone
LOG_TAIL_BYTES = 4000
_LENGTH = struct.Struct("<I")
_LOOPBACK = "lo" if sys.platform.startswith("linux") else "lo0"


class Line:
    """One end of a socket pair, for frames. Sending is safe from several threads, receiving is for one."""

    def __init__(self, end: socket.socket) -> None:
        self.socket = end
        self._sending = threading.Lock()

    def send(self, frame: dict[str, Any]) -> None:
        """Raises OSError where the other side is gone."""
        body = pack(frame)
        with self._sending:
            self.socket.sendall(_LENGTH.pack(len(body)) + body)

    def receive(self, patience: float | None = None) -> dict[str, Any]:
        """Raises EOFError or OSError where the other side is gone, TimeoutError after `patience` seconds."""
        deadline = None if patience is None else time.monotonic() + patience
        (length,) = _LENGTH.unpack(self._exactly(_LENGTH.size, deadline))
        if length > MAX_FRAME:
            raise EngineError("a message is too large", field="frame", value=length, cure=f"at most {MAX_FRAME} bytes")
        frame: dict[str, Any] = unpack(self._exactly(length, deadline))
        return frame

    def _exactly(self, count: int, deadline: float | None) -> bytes:
        parts = bytearray()
        while len(parts) < count:
            # A socket's timeout would hold for sending, too, which another thread may be doing.
            rest = None if deadline is None else max(0.0, deadline - time.monotonic())
            _wait_readable(self.socket, rest)
            piece = self.socket.recv(min(count - len(parts), 1 << 20))
            if not piece:
                raise EOFError("the other side has hung up")
            parts += piece
        return bytes(parts)


@dataclass(frozen=True)
class Seat:
    """One rank's place. store: the file through which the process group meets; patience_s: for each of its operations."""

    rank: int
    count: int
    store: str
    patience_s: float

    def join(self) -> None:
        """Called by every rank, once all have loaded their models."""
        os.environ.setdefault("GLOO_SOCKET_IFNAME", _LOOPBACK)
        roads = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() and dist.is_nccl_available() else "gloo"
        store = dist.FileStore(self.store, self.count)  # type: ignore[attr-defined]
        dist.init_process_group(roads, store=store, rank=self.rank, world_size=self.count, timeout=timedelta(seconds=self.patience_s))

    def leave(self) -> None:
        if dist.is_initialized():
            dist.destroy_process_group()
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.store)


@dataclass
class Peer:
    """A rank above 0, as rank 0 sees it. said: an error that it has sent."""

    rank: int
    process: subprocess.Popen[bytes]
    line: Line
    log: Path
    said: HeadraceError | None = None
    foreign: bool = field(default=False)  # what it said is no error of ours: mostly that another rank has gone

    @property
    def name(self) -> str:
        return f"trainer/{self.rank}"

    def ending(self) -> str:
        code = self.process.returncode
        return (
            "still runs"
            if code is None
            else f"ended with signal {signal.Signals(-code).name}"
            if code < 0
            else f"ended with exit code {code}"
        )

    def tail(self) -> str | None:
        try:
            return self.log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip() or None
        except OSError:
            return None


class Leader:
    """Rank 0's view of the pool. Constructed before the model is loaded, so that every rank loads at the same time."""

    def __init__(self, config: RunConfig, scratch: Path, patience_s: float = PATIENCE_S) -> None:
        scratch.mkdir(parents=True, exist_ok=True)
        store = str(scratch / f"ranks-{os.getpid()}-{secrets.token_hex(4)}")
        self.seat = Seat(0, config.backend.ranks, store, patience_s)
        self.broken: EngineError | None = None
        self._busy = False  # between a command and its answers: the process group is in use
        self._peers: list[Peer] = []
        try:
            for rank in range(1, config.backend.ranks):
                peer = _start(rank, scratch.parent / "logs" / f"trainer-{rank}.log")
                self._peers.append(peer)
                seat = {"rank": rank, "count": self.seat.count, "store": store, "patience_s": patience_s}
                peer.line.send({"config": config.as_json(), "scratch": str(scratch), "seat": seat})
        except BaseException:
            self.close()
            raise

    @property
    def pids(self) -> list[int]:
        return [peer.process.pid for peer in self._peers]

    def ready(self) -> None:
        """Returns when every rank has loaded its model. Raises the error that loading raised."""
        self.answers(START_PATIENCE_S)

    def tell(self, method: str, args: dict[str, Any], rank: int | None = None) -> None:
        """A command to one rank, or to all. Raises EngineError where the pool is broken."""
        if self.broken is not None:
            raise copy_of(self.broken)
        self._busy = True
        for peer in self._peers:
            if rank is None or rank == peer.rank:
                try:
                    peer.line.send({"method": method, "args": args})
                except OSError as error:
                    raise self.failed(error) from error

    def hear(self, patience: float | None = None) -> list[dict[str, Any]]:
        """The next frame of every rank, in order of ranks. Raises EngineError where one is gone or silent."""
        patience = self.seat.patience_s if patience is None else patience
        frames: list[dict[str, Any]] = []
        for peer in self._peers:
            try:
                frames.append(peer.line.receive(patience))
            except TimeoutError as error:
                peer.said = EngineError(f"has not answered for {patience:g} s", cure="see its log")
                raise self.failed(error) from error
            except (EOFError, OSError) as error:
                raise self.failed(error) from error
        return frames

    def answers(self, patience: float | None = None) -> None:
        """Every rank's answer to the last command. Raises EngineError where one of them is an error, and ends the pool."""
        for peer, frame in zip(self._peers, self.hear(patience), strict=True):
            if "error" in frame:
                peer.said, peer.foreign = error_from_wire(frame["error"]), bool(frame.get("foreign"))
        for peer in self._peers:
            if peer.said is not None:
                raise self.failed(peer.said)
        self.done()

    def agreed(self) -> None:
        """Called where the last command raised on this rank what it raises on all: an answer is awaited, an error expected."""
        self.hear()
        self.done()

    def done(self) -> None:
        """The last command has been answered."""
        self._busy = False

    def interrupt(self) -> None:
        """Called from another thread."""
        for peer in self._peers:
            with contextlib.suppress(OSError):  # it is gone: whoever waits for it is told
                peer.line.send({"method": "interrupt", "args": {}})

    def failed(self, error: BaseException) -> EngineError:
        """Called with what rank 0 noticed. Ends every rank and returns the cause, which is also what any later call raises."""
        if self.broken is None:
            deadline = time.monotonic() + LAST_WORDS_S
            for peer in self._peers:
                self._last_words(peer, deadline)
            self.broken = self._cause(error)
            self.done()
            self.close()
        return copy_of(self.broken)

    def close(self) -> None:
        """Hangs up, waits a moment, kills what has not gone. Safe to call again, and beside a command that is under way: it fails."""
        for peer in self._peers:
            with contextlib.suppress(OSError):
                peer.line.socket.shutdown(socket.SHUT_RDWR)
        deadline = time.monotonic() + STOP_PATIENCE_S
        for peer in self._peers:
            try:
                peer.process.wait(0.0 if self.broken is not None else max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                peer.process.kill()
                peer.process.wait()
        if not self._busy:
            for peer in self._peers:
                peer.line.socket.close()
            self.seat.leave()

    def _last_words(self, peer: Peer, deadline: float) -> None:
        """Hears errors until the peer's end, at most until the deadline."""
        while peer.said is None:
            try:
                frame = peer.line.receive(max(0.0, deadline - time.monotonic()))
            except (TimeoutError, EOFError, OSError):
                break
            if "error" in frame:
                peer.said, peer.foreign = error_from_wire(frame["error"]), bool(frame.get("foreign"))
        with contextlib.suppress(subprocess.TimeoutExpired):
            peer.process.wait(max(0.0, deadline - time.monotonic()))

    def _cause(self, error: BaseException) -> EngineError:
        """A rank that died without a word comes first, then one that named an error of ours, then any other error."""
        dead = [peer for peer in self._peers if peer.said is None and peer.process.returncode is not None]
        own = [peer for peer in self._peers if peer.said is not None and not peer.foreign]
        foreign = [peer for peer in self._peers if peer.said is not None and peer.foreign]
        if dead:
            peer = dead[0]
            return EngineError(
                f"rank {peer.rank} of the trainer {peer.ending()}", field=peer.name, value=peer.tail(), cure="see its log", retryable=True
            )
        for peer in own or foreign:
            assert peer.said is not None
            message = f"rank {peer.rank} of the trainer: {peer.said.message}"
            return EngineError(message, field=peer.said.field or peer.name, value=peer.said.value, cure=peer.said.cure or "see its log")
        silent = [peer.rank for peer in self._peers if peer.process.returncode is None]
        return EngineError(
            f"the trainer's ranks lost one another: {type(error).__name__}: {error}",
            field="backend.ranks",
            value=f"ranks still alive: 0 {' '.join(map(str, silent))}",
            cure="see the logs of the trainer's ranks",
            retryable=True,
        )


def _start(rank: int, log: Path) -> Peer:
    ours, theirs = socket.socketpair()
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as output, theirs:
        # In rank 0's own process group: who kills that group kills them all.
        process = subprocess.Popen(
            [sys.executable, "-m", "workers.axes.backend.rank", str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env={**os.environ, **ROLE_ENVIRONMENT},
        )
    return Peer(rank, process, Line(ours), log)


def _wait_readable(end: socket.socket, patience: float | None) -> None:
    """select() knows no descriptor above 1023; poll does."""
    import select

    waiting = select.poll()
    waiting.register(end, select.POLLIN | select.POLLHUP | select.POLLERR)
    if not waiting.poll(None if patience is None else int(patience * 1000)):
        raise TimeoutError("no answer")
