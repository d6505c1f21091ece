"""The driver's end of the message protocol: calls under way by number, whatever road their frames take.

Five words, alike on every carrier. dispatch: `{"id", "method", "args"}`, with `{"cancel": id}` to take it back; result:
`{"id", "result" | "error"}`; publish: a dispatch of that name, to the trainer; acknowledge: the road's own way of saying that a
frame has arrived and need not be kept; heartbeat: a dispatch named `ping`, on the same road as the work, so that it proves it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from workers.axes.orchestration.wire import copy_of, error_from_wire, pack
from workers.contract.errors import EngineError


class Calls:
    """The calls that one process has not answered yet. `post` takes a packed frame and never blocks."""

    def __init__(self, post: Callable[[bytes], None]) -> None:
        self._post = post
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next = 1
        self._over: EngineError | None = None

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        """Raises what the role raised, or why its process is gone. When the caller is cancelled, so is the call over there."""
        if self._over is not None:
            raise copy_of(self._over)
        number, self._next = self._next, self._next + 1
        body = pack({"id": number, "method": method, "args": args})
        answer = self._waiting[number] = asyncio.get_running_loop().create_future()
        try:
            self._post(body)
            return await answer
        except asyncio.CancelledError:
            if self._over is None:
                self._post(pack({"cancel": number}))
            raise
        finally:
            del self._waiting[number]

    def settle(self, frame: dict[str, Any]) -> None:
        """Called with every result; one that nobody waits for any more is passed over."""
        answer = self._waiting.get(frame["id"])
        if answer is None or answer.done():
            return
        if "error" in frame:
            answer.set_exception(error_from_wire(frame["error"]))
        else:
            answer.set_result(frame["result"])

    def fail(self, cause: EngineError) -> None:
        """Called once, when the process is gone: every waiting call and every later one raises the cause."""
        self._over = cause
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(copy_of(cause))
