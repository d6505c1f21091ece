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

from workers.axes.orchestration.base import ROLE_ENVIRONMENT, Pools
from workers.axes.orchestration.clients import RemoteGenerator, RemoteTrainer
from workers.axes.orchestration.wire import error_from_wire, read_frame, write_frame
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError

STOP_PATIENCE_S = 3.0
LOG_TAIL_BYTES = 4000


class Child:
    """One process and the calls that are under way in it."""

    def __init__(self, name: str, log: Path) -> None:
        self.name = name
        self._log = log
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next = 1
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
        self._reader, self._writer = await asyncio.open_unix_connection(sock=ours)
        ready: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[0] = ready
        write_frame(self._writer, {"role": role, "arguments": arguments})
        self._task = asyncio.create_task(self._listen())
        await ready

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        if self.ended.done():
            raise self.ended.result()
        number, self._next = self._next, self._next + 1
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        write_frame(self._writer, {"id": number, "method": method, "args": args})
        await self._writer.drain()
        return await answer

    async def stop(self) -> None:
        """Hangs up, then kills what has not gone after three seconds."""
        if not hasattr(self, "process"):
            return
        if self.process.returncode is None and not self.ended.done():
            with contextlib.suppress(EngineError, TimeoutError, ConnectionError):
                await asyncio.wait_for(self.call("stop", {}), STOP_PATIENCE_S)
        if hasattr(self, "_writer"):
            self._writer.close()
        try:
            await asyncio.wait_for(self.process.wait(), STOP_PATIENCE_S)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
            await self.process.wait()
        if hasattr(self, "_task"):
            await asyncio.wait([self._task])

    async def _listen(self) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                frame = await read_frame(self._reader)
                answer = self._waiting.pop(frame["id"], None)
                if answer is None or answer.done():
                    continue
                if "error" in frame:
                    answer.set_exception(error_from_wire(frame["error"]))
                else:
                    answer.set_result(frame["result"])
        code = await self.process.wait()
        error = EngineError(
            f"the {self.name} process ended with {_ending(code)}", field=self.name, value=self._tail(), cure="see its log", retryable=True
        )
        self.ended.set_result(error)
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(error)

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
            *(self._child(name, "generator", arguments) for name, arguments in engines.items()), self._child("trainer", "trainer", common)
        )
        return Pools(
            generators={name: RemoteGenerator(child.call) for name, child in zip(engines, started, strict=False)},
            trainer=RemoteTrainer(started[-1].call),
        )

    async def failure(self) -> None:
        done, _ = await asyncio.wait([child.ended for child in self._children], return_when=asyncio.FIRST_COMPLETED)
        raise next(iter(done)).result()

    async def stop(self) -> None:
        await asyncio.gather(*(child.stop() for child in self._children))

    async def _child(self, name: str, role: str, arguments: dict[str, Any]) -> Child:
        child = Child(name, self._scratch.parent / "logs" / f"{name.replace('/', '-')}.log")
        self._children.append(child)
        await child.start(role, arguments, {"HEADRACE_RUN_ID": self._run_id, **ROLE_ENVIRONMENT})
        return child


def _ending(code: int) -> str:
    return f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
