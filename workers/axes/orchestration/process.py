"""A role as a child process of the driver: started, listened to, ended; its log and how it ended in words.

A socket pair, the cord, joins the two. It carries the role and its arguments one way and "ready" the other, and a process whose
driver is gone sees it end. What carries the calls themselves is the carrier's road.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Protocol

from workers.axes.orchestration.base import START_PATIENCE_S
from workers.axes.orchestration.calls import Calls
from workers.axes.orchestration.watch import answered, silence
from workers.axes.orchestration.wire import error_from_wire, pack, read_frame, write_body
from workers.contract.errors import EngineError, HeadraceError

STOP_PATIENCE_S = 3.0
LAST_WORDS_S = 0.2  # for answers that a process sent before it ended
LOG_TAIL_BYTES = 4000


class RoadBroken(EngineError):
    """Raised by a road whose process may live and cannot be reached."""


class Road(Protocol):
    """The way of frames between the driver and one process. `kind` names the module at its other end; see `child.ROADS`."""

    kind: str

    async def terms(self) -> dict[str, Any]:
        """Called first: what the process must know to find the road; told to it over the cord, where nobody else can read."""
        ...

    async def open(self, ready: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Called once, when the process is ready, with what it said of itself and the cord's two ends."""
        ...

    def post(self, body: bytes) -> None:
        """Sends a packed frame, in order, without waiting."""
        ...

    async def run(self, settle: Callable[[dict[str, Any]], None]) -> None:
        """Hands every result to `settle` until the road ends. Raises EOFError or ConnectionError where the process has hung up,
        RoadBroken where nobody can be reached on it, anything else for what cannot be read."""
        ...

    async def close(self) -> None:
        """Called once, whatever happened; removes what the road has left anywhere."""
        ...


class RoleProcess:
    """One process and the calls that are under way in it. `ended` is done when it is gone, with the cause."""

    def __init__(self, name: str, log: Path, environment: dict[str, str], road: Road) -> None:
        self.name = name
        self.process: asyncio.subprocess.Process | None = None
        self.ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        self._log = log
        self._environment = environment
        self._road = road
        self._calls = Calls(road.post)
        self._cord: asyncio.StreamWriter | None = None
        self._living: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self, role: str, arguments: dict[str, Any]) -> None:
        """Returns when the role is built (its model loaded). Raises the error that building it raised."""
        terms = await self._road.terms()
        ours, theirs = socket.socketpair()
        reader, self._cord = await asyncio.open_unix_connection(sock=ours)
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log, theirs:
            self.process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "workers.axes.orchestration.child",
                str(theirs.fileno()),
                pass_fds=[theirs.fileno()],
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        if self._stopping:
            self.kill()
        write_body(self._cord, pack({"role": role, "arguments": arguments, "road": self._road.kind, "terms": terms}))
        try:
            ready = await answered(read_frame(reader), START_PATIENCE_S)
        except TimeoutError:
            raise silence(self.name, self.pid, START_PATIENCE_S) from None
        except (EOFError, ConnectionError):
            raise self._end_of(await self._gone(self.process)) from None
        if "error" in ready:
            raise error_from_wire(ready["error"])
        await self._road.open(ready["result"], reader, self._cord)
        self._living = asyncio.create_task(self._live(self.process))

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        return await self._calls.call(method, args)

    def kill(self) -> None:
        """Its whole process group, also where it is stopped."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Says "stop", hangs up, then kills what has not gone after three seconds."""
        self._stopping = True
        if self._living is not None and not self.ended.done():
            with contextlib.suppress(HeadraceError, TimeoutError):
                await asyncio.wait_for(self.call("stop", {}), STOP_PATIENCE_S)
        if self._cord is not None:
            self._cord.close()
        if self.process is not None:
            await self._gone(self.process)
        if self._living is not None:
            await asyncio.wait([self._living])
        await self._road.close()

    async def _live(self, process: asyncio.subprocess.Process) -> None:
        """Runs the road until the process hangs up, ends, or sends what cannot be read; then every waiting call fails."""
        road = asyncio.create_task(self._road.run(self._calls.settle))
        exited = asyncio.create_task(process.wait())
        await asyncio.wait({road, exited}, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait({road}, timeout=LAST_WORDS_S)
        broken = None if not road.done() or isinstance(road.exception(), EOFError | ConnectionError) else road.exception()
        road.cancel()
        if broken is not None:  # nothing that comes after it can be trusted
            self.kill()
        cause = self._end_of(await self._gone(process), broken)
        self.ended.set_result(cause)
        self._calls.fail(cause)

    async def _gone(self, process: asyncio.subprocess.Process) -> int:
        """Its exit code, after at most a moment's patience."""
        try:
            return await asyncio.wait_for(process.wait(), STOP_PATIENCE_S)
        except TimeoutError:
            self.kill()
            return await process.wait()

    def _end_of(self, code: int, broken: BaseException | None = None) -> EngineError:
        how = f"ended with {_ending(code)}"
        if broken is not None:
            how = f"sent a frame that cannot be read ({type(broken).__name__}: {broken})"
            if isinstance(broken, RoadBroken):
                how = f"cannot be reached: {broken.message}"
        message = f"the {self.name} process {how}"
        return EngineError(message, field=self.name, value=self._tail(), cure="see its log", retryable=True)

    def _tail(self) -> str | None:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, log.seek(0, os.SEEK_END) - LOG_TAIL_BYTES))
                return log.read().decode("utf-8", "replace").strip() or None
        except OSError:
            return None


async def either(*ways: Coroutine[Any, Any, None]) -> None:
    """Ends as the first of them does; the others are cancelled. For a road's two directions, of which none is any use alone."""
    tasks = [asyncio.create_task(way) for way in ways]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class Outbox:
    """Frames that wait for a road: `flush` is given all that have gathered, one batch at a time, in order."""

    def __init__(self, flush: Callable[[list[Any]], Coroutine[Any, Any, None]]) -> None:
        self._flush = flush
        self._gathered: list[Any] = []
        self._any = asyncio.Event()

    def put(self, item: Any) -> None:
        self._gathered.append(item)
        self._any.set()

    async def run(self) -> None:
        """Until cancelled. Raises what `flush` raises: then nothing is sent any more."""
        while True:
            await self._any.wait()
            self._any.clear()
            batch, self._gathered = self._gathered, []
            await self._flush(batch)


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
