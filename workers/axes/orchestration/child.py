"""A pool's process under the asyncio orchestration: hosts one role and answers the driver over an inherited socket.

Called as `python -m workers.axes.orchestration.child FD`; the first frame names the role and its arguments.
It dies with its driver: the kernel signals it, and an end of file on the socket ends it too.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import socket
import sys
from typing import Any

from workers.axes.orchestration.wire import error_to_wire, read_frame, write_frame

PR_SET_PDEATHSIG = 1
NICENESS = 10  # web and database come first on a shared machine


def settle_in() -> None:
    """Dies with the parent, yields to the control plane, leaves Ctrl-C to the driver."""
    with contextlib.suppress(OSError, AttributeError):  # not on Linux: the end of file on the socket remains
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(NICENESS)


def build_role(role: str, arguments: dict[str, Any]) -> Any:
    from workers.axes.orchestration.roles import GeneratorRole, TrainerRole

    return {"generator": GeneratorRole, "trainer": TrainerRole}[role](**arguments)


async def serve(file_descriptor: int) -> None:
    reader, writer = await asyncio.open_unix_connection(sock=socket.socket(fileno=file_descriptor))
    first = await read_frame(reader)
    tasks: set[asyncio.Task[None]] = set()
    try:
        role = build_role(first["role"], first["arguments"])
    except Exception as error:  # the driver is told, whatever it was
        write_frame(writer, {"id": 0, "error": error_to_wire(error)})
        await writer.drain()
        raise
    write_frame(writer, {"id": 0, "result": os.getpid()})

    async def answer(frame: dict[str, Any]) -> None:
        try:
            write_frame(writer, {"id": frame["id"], "result": await role.call(frame["method"], frame["args"])})
        except Exception as error:  # every failure of a call belongs to its caller, a reply that cannot be packed included
            write_frame(writer, {"id": frame["id"], "error": error_to_wire(error)})
        with contextlib.suppress(ConnectionError):  # the driver has gone: the reader sees it too, and ends
            await writer.drain()

    with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
        while True:
            task = asyncio.create_task(answer(await read_frame(reader)))
            tasks.add(task)
            task.add_done_callback(tasks.discard)
    os._exit(0)  # the driver is gone or has hung up: threads of the engine must not hold the process


if __name__ == "__main__":
    settle_in()
    asyncio.run(serve(int(sys.argv[1])))
