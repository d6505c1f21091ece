"""A pool's process: hosts one role for the driver that started it, on the road that the driver names.

Called as `python -m workers.axes.orchestration.child FD`; the first frame on that socket, the cord, names role, arguments and
road. It dies with its driver: the kernel signals it, and the end of the cord ends it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from importlib import import_module
from typing import Any

from workers.axes.orchestration.host import Host
from workers.axes.orchestration.wire import error_to_wire, pack, read_frame, write_body

PR_SET_PDEATHSIG = 1
NICENESS = 10  # web and database come first on a shared machine

# Who answers at this end of each road: `serve(host, terms, ready, reader, writer)`, which tells `ready` once, then runs until the
# driver is gone.
ROADS = {
    "socket": "workers.axes.orchestration.child:serve_socket",
    "streams": "workers.axes.orchestration.bus:serve",
    "http": "workers.axes.orchestration.http_service:serve",
}
Ready = Callable[[dict[str, Any]], Awaitable[None]]


def settle_in() -> None:
    """Dies with the parent, yields to the control plane, leaves Ctrl-C to the driver."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux: the end of the cord remains
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)


def build_role(role: str, arguments: dict[str, Any]) -> Any:
    from workers.axes.orchestration.roles import GeneratorRole, TrainerRole

    return {"generator": GeneratorRole, "trainer": TrainerRole}[role](**arguments)


async def serve_socket(host: Host, terms: dict[str, Any], ready: Ready, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The cord itself is the road: what a socket has delivered needs no acknowledgement."""
    await ready({})

    async def answer(body: bytes | None) -> None:
        if body is not None:
            write_body(writer, body)
            with contextlib.suppress(ConnectionError):  # the driver has gone: the reader sees it too, and ends
                await writer.drain()

    while True:
        await host.take(await read_frame(reader), answer)


async def main(file_descriptor: int) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=file_descriptor))
    first = await read_frame(reader)

    async def tell(frame: dict[str, Any]) -> None:
        write_body(writer, pack(frame))
        await writer.drain()

    try:
        host = Host(build_role(first["role"], first["arguments"]))
        module_name, function_name = ROADS[first["road"]].split(":")
        serve = getattr(import_module(module_name), function_name)
    except Exception as error:  # the driver is told, whatever it was
        await tell({"error": error_to_wire(error)})
        raise
    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        await serve(host, first["terms"], lambda facts: tell({"result": {"pid": os.getpid(), **facts}}), reader, writer)
    os._exit(0)  # the driver is gone or has hung up: threads of the engine must not hold the process


if __name__ == "__main__":
    settle_in()
    asyncio.run(main(int(sys.argv[1])))
