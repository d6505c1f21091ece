"""A Ray actor that hosts one role. Frames are msgpack, as in every carrier; Ray only moves the bytes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import Any

import msgpack

from workers.axes.orchestration.child import NICENESS, build_role
from workers.axes.orchestration.wire import error_to_wire


class RoleActor:
    """Made by `RayActors` with `ray.remote`; asynchronous, so that many requests are under way at once."""

    def __init__(self, name: str, log: str) -> None:
        os.nice(NICENESS)
        _log_to(Path(log))
        self._name = name
        self._role: Any = None

    async def build(self, role: str, body: bytes) -> bytes:
        """Loads the model. Returns the frame {"result": pid} or {"error": ...}: errors never travel pickled."""
        try:
            self._role = await asyncio.to_thread(build_role, role, msgpack.unpackb(body, strict_map_key=False))
        except Exception as error:  # the driver is told, whatever it was
            return bytes(msgpack.packb({"error": error_to_wire(error)}))
        return bytes(msgpack.packb({"result": os.getpid()}))

    async def call(self, method: str, body: bytes) -> bytes:
        try:
            return bytes(msgpack.packb({"result": await self._role.call(method, msgpack.unpackb(body, strict_map_key=False))}))
        except Exception as error:  # every failure of a call belongs to its caller
            return bytes(msgpack.packb({"error": error_to_wire(error)}))

    async def watch(self) -> None:
        """Never returns: the driver learns of the actor's death by this call's failure."""
        await asyncio.Event().wait()


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
