"""asyncio: generator and trainer as child processes of the driver, one Unix socket each."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

from workers.axes.orchestration.base import ROLE_ENVIRONMENT, START_PATIENCE_S, Lost, Pools, identity
from workers.axes.orchestration.clients import RemoteGenerator, RemoteTrainer
from workers.axes.orchestration.watch import TRAINER, Member, answered, silence, watch
from workers.axes.orchestration.wire import copy_of, error_from_wire, read_frame, write_frame
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError, HeadraceError

STOP_PATIENCE_S = 3.0
LOG_TAIL_BYTES = 4000


class Child:
    """One process and the calls that are under way in it."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self.process: asyncio.subprocess.Process | None = None
        self._log = log
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next = 1
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None
        self.ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()

    async def start(self, role: str, arguments: dict[str, Any], environment: dict[str, str]) -> None:
        """Returns when the role is built (its model loaded). Raises the error that building it raised."""
        ours, theirs = socket.socketpair()
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
                env={**os.environ, **environment},
            )
        reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[0] = ready
        write_frame(self._writer, {"role": role, "arguments": arguments})
        self._task = asyncio.create_task(self._listen(reader, self.process))
        try:
            await answered(ready, START_PATIENCE_S)
        except TimeoutError:
            raise silence(self.name, self.pid, START_PATIENCE_S) from None

    @property
    def pid(self) -> int | None:
        return self.process.pid if self.process else None

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        if self.ended.done():
            raise copy_of(self.ended.result())
        assert self._writer is not None
        number, self._next = self._next, self._next + 1
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            write_frame(self._writer, {"id": number, "method": method, "args": args})
            with contextlib.suppress(ConnectionError):  # its end is told to every waiting call, with the cause
                await self._writer.drain()
            return await answer
        finally:
            self._waiting.pop(number, None)

    def kill(self) -> None:
        """Its whole process group, also where it is stopped."""
        if self.process is not None and self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    async def stop(self) -> None:
        """Hangs up, then kills what has not gone after three seconds."""
        if self.process is None:
            return
        if self._writer is not None:
            if self.process.returncode is None and not self.ended.done():
                with contextlib.suppress(HeadraceError, TimeoutError, ConnectionError):
                    await asyncio.wait_for(self.call("stop", {}), STOP_PATIENCE_S)
            self._writer.close()
        await self._gone(self.process)
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _gone(self, process: asyncio.subprocess.Process) -> int:
        """Its exit code, after at most a moment's patience."""
        try:
            return await asyncio.wait_for(process.wait(), STOP_PATIENCE_S)
        except TimeoutError:
            self.kill()
            return await process.wait()

    async def _listen(self, reader: asyncio.StreamReader, process: asyncio.subprocess.Process) -> None:
        """Hands answers to their callers until the process hangs up or sends what cannot be read; then every waiting call fails."""
        broken: Exception | None = None
        try:
            while True:
                self._settle(await read_frame(reader))
        except (asyncio.IncompleteReadError, ConnectionError):
            broken = None  # it hung up: its exit code says why
        except Exception as error:  # a bad frame, whatever it is: nothing that follows it can be trusted
            broken = error
            self.kill()
        finally:
            code = await self._gone(process)
            how = f"sent a frame that cannot be read ({type(broken).__name__}: {broken})" if broken else f"ended with {_ending(code)}"
            message = f"the {self.name} process {how}"
            cause = EngineError(message, field=self.name, value=self._tail(), cure="see its log", retryable=True)
            self.ended.set_result(cause)
            for answer in self._waiting.values():
                if not answer.done():
                    answer.set_exception(copy_of(cause))

    def _settle(self, frame: dict[str, Any]) -> None:
        answer = self._waiting.get(frame["id"])
        if answer is None or answer.done():
            return
        if "error" in frame:
            answer.set_exception(error_from_wire(frame["error"]))
        else:
            answer.set_result(frame["result"])

    def _tail(self) -> str | None:
        try:
            return self._log.read_bytes()[-LOG_TAIL_BYTES:].decode("utf-8", "replace").strip() or None
        except OSError:
            return None


class AsyncioChildren:
    """One process for each engine and one for the trainer."""

    def __init__(self, config: RunConfig, run_id: str, scratch: Path) -> None:
        self._config = config
        self._run_id = run_id
        self._scratch = scratch
        self._children: list[Child] = []

    async def start(self) -> Pools:
        common = {"config": self._config.as_json(), "run_id": self._run_id, "scratch": str(self._scratch)}
        engines = {f"generator/{index}": {**common, "name": f"generator/{index}"} for index in range(self._config.rollout.engines)}
        # Both models load at the same time.
        started = await asyncio.gather(
            *(self._child(name, "generator", arguments) for name, arguments in engines.items()), self._child(TRAINER, "trainer", common)
        )
        return Pools(
            generators={name: RemoteGenerator(child.call, child.pid) for name, child in zip(engines, started, strict=False)},
            trainer=RemoteTrainer(started[-1].call),
        )

    async def failure(self, lost: Lost | None = None) -> None:
        await watch([_member(child) for child in self._children], lost)

    async def stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self._children))

    async def _child(self, name: str, role: str, arguments: dict[str, Any]) -> Child:
        child = Child(name, self._scratch.parent / "logs" / f"{name.replace('/', '-')}.log")
        self._children.append(child)
        await child.start(role, arguments, {**identity(self._run_id), **ROLE_ENVIRONMENT})
        return child


def _member(child: Child) -> Member:
    return Member(child.name, child.pid, lambda: child.call("ping", {}), lambda: asyncio.shield(child.ended), child.kill)


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
