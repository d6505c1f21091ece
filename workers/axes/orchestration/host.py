"""The role's end of the message protocol: one task a call, cancelled by number. Every carrier hosts a role through this."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from workers.axes.orchestration.wire import error_to_wire, pack

# Takes the packed result to the driver and tells the road that the dispatch is done with. None: there is nothing to take.
Answer = Callable[[bytes | None], Awaitable[None]]


class Role(Protocol):
    """An engine or a trainer, called by name; see `roles`."""

    async def call(self, method: str, args: dict[str, Any]) -> Any: ...


class Host:
    """A role and the calls that are under way in it."""

    def __init__(self, role: Role) -> None:
        self._role = role
        self._calls: dict[int, asyncio.Task[Any]] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._newest = 0

    async def take(self, frame: dict[str, Any], answer: Answer) -> None:
        """Called with every frame that arrives; returns without waiting for the call."""
        if "cancel" in frame:
            call = self._calls.get(frame["cancel"])
            if call is not None:
                call.cancel()
            await answer(None)
            return
        call = self._calls[frame["id"]] = asyncio.create_task(self._role.call(frame["method"], frame["args"]))
        answering = asyncio.create_task(self._answer(frame["id"], call, answer))  # apart: a cancelled call is done with, too
        self._answering.add(answering)
        answering.add_done_callback(self._answering.discard)

    async def take_once(self, frame: dict[str, Any], answer: Answer) -> None:
        """`take` for roads that keep order and, cut and mended, may deliver a frame twice: a number is never run again."""
        number = frame.get("id")
        if number is not None and number <= self._newest:
            await answer(None)
            return
        self._newest = number or self._newest
        await self.take(frame, answer)

    async def _answer(self, number: int, call: asyncio.Task[Any], answer: Answer) -> None:
        await asyncio.wait({call})
        del self._calls[number]
        if call.cancelled():  # the driver took it back and waits for nothing
            await answer(None)
            return
        try:
            body = pack({"id": number, "result": call.result()})
        except Exception as error:  # every failure of a call belongs to its caller, a reply that cannot be packed included
            body = pack({"id": number, "error": error_to_wire(error)})
        await answer(body)
