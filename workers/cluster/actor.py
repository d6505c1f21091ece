"""A Ray actor that hosts one role. Frames are msgpack, as in every carrier; Ray only moves the bytes."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from workers.axes.orchestration.child import NICENESS, build_role
from workers.axes.orchestration.host import Host
from workers.axes.orchestration.wire import error_to_wire, pack, unpack


class RoleActor:
    """Made by `RayActors` with `ray.remote`; asynchronous, so that many requests are under way at once."""

    def __init__(self, log: str) -> None:
        os.nice(NICENESS)
        _log_to(Path(log))
        self._host: Host | None = None

    async def build(self, role: str, body: bytes) -> bytes:
        """Loads the model. Returns the frame {"result": pid} or {"error": ...}: errors never travel pickled."""
        try:
            self._host = Host(await asyncio.to_thread(build_role, role, unpack(body)))
        except Exception as error:  # the driver is told, whatever it was
            return pack({"error": error_to_wire(error)})
        return pack({"result": os.getpid()})

    async def take(self, body: bytes) -> bytes | None:
        """Called with every frame. Returns the result's frame; None where the driver waits for none."""
        assert self._host is not None
        answered: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()

        async def answer(result: bytes | None) -> None:
            answered.set_result(result)

        await self._host.take(unpack(body), answer)
        return await answered

    async def watch(self) -> None:
        """Never returns: the driver learns of the actor's death by this call's failure."""
        await asyncio.Event().wait()


def _log_to(path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.close(handle)
