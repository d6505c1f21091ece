"""asyncio: generator and trainer as child processes of the driver, one Unix socket each."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from workers.axes.orchestration.crew import Crew
from workers.axes.orchestration.process import RoleProcess
from workers.axes.orchestration.wire import read_frame, write_body


class SocketRoad:
    """The cord between driver and process carries the calls, too."""

    kind = "socket"

    def __init__(self) -> None:
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def terms(self) -> dict[str, Any]:
        return {}

    async def open(self, ready: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    def post(self, body: bytes) -> None:
        assert self._writer is not None
        write_body(self._writer, body)

    async def run(self, settle: Callable[[dict[str, Any]], None]) -> None:
        assert self._reader is not None
        while True:
            settle(await read_frame(self._reader))

    async def close(self) -> None:
        """The cord is its process' own."""


class AsyncioChildren(Crew):
    """One process for each engine and one for the trainer."""

    def _process(self, name: str) -> RoleProcess:
        return RoleProcess(name, self._log(name), self._environment, SocketRoad())
