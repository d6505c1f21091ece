"""A role as an HTTP service on loopback: the end of the `http` road inside a role's process.

`POST /frames` takes a msgpack list of frames and answers at once. `GET /results?after=N` is held open until there are results
numbered above N and answers with them; asking acknowledges everything up to N, which is kept until then. So one waiting request
and one busy one carry any number of calls, and a cut connection loses nothing. Both want the run's bearer token.
"""

from __future__ import annotations

import asyncio
import hmac
import socket
from collections import deque
from collections.abc import Awaitable, Callable
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qs

import uvicorn

from workers.axes.orchestration.child import Ready
from workers.axes.orchestration.host import Host
from workers.axes.orchestration.process import either
from workers.axes.orchestration.wire import MAX_FRAME, pack, unpack

LOOPBACK = "127.0.0.1"
POLL_S = 20.0  # an answer without results goes out after this, so that no connection waits for ever
KEEP_ALIVE_S = 75

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[dict[str, Any]]]
Send = Callable[[dict[str, Any]], Awaitable[None]]


class Results:
    """Packed results by rising number, kept until they are acknowledged."""

    def __init__(self) -> None:
        self._kept: deque[tuple[int, bytes]] = deque()
        self._newest = 0
        self._more = asyncio.Event()

    def add(self, body: bytes) -> None:
        self._newest += 1
        self._kept.append((self._newest, body))
        self._more.set()

    async def after(self, number: int, patience_s: float) -> list[tuple[int, bytes]]:
        """Forgets results up to `number`; returns the others, empty where none came within `patience_s`."""
        while self._kept and self._kept[0][0] <= number:
            self._kept.popleft()
        if not self._kept:
            self._more.clear()
            try:
                await asyncio.wait_for(self._more.wait(), patience_s)
            except TimeoutError:
                return []
        return [(kept, body) for kept, body in self._kept if kept > number]


class Service:
    """The ASGI application around one role."""

    def __init__(self, host: Host, token: str) -> None:
        self._host = host
        self._expected = f"Bearer {token}".encode()
        self._results = Results()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self._let_in(scope):
            await _reply(send, HTTPStatus.UNAUTHORIZED, headers=[(b"www-authenticate", b"Bearer")])
        elif (scope["method"], scope["path"]) == ("POST", "/frames"):
            await self._frames(receive, send)
        elif (scope["method"], scope["path"]) == ("GET", "/results"):
            await self._answer(scope, send)
        else:
            await _reply(send, HTTPStatus.NOT_FOUND)

    def _let_in(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)

    async def _frames(self, receive: Receive, send: Send) -> None:
        parts: list[bytes] = []
        more, size = True, 0
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":  # half a body: it is sent again, or its sender is gone
                return
            parts.append(message.get("body", b""))
            more, size = message.get("more_body", False), size + len(parts[-1])
            if size > MAX_FRAME:
                return await _reply(send, HTTPStatus.REQUEST_ENTITY_TOO_LARGE)
        try:
            frames = [unpack(frame) for frame in unpack(b"".join(parts))]
        except (ValueError, TypeError):
            return await _reply(send, HTTPStatus.BAD_REQUEST)
        for frame in frames:
            await self._host.take_once(frame, self._keep)
        await _reply(send, HTTPStatus.ACCEPTED)

    async def _keep(self, body: bytes | None) -> None:
        if body is not None:
            self._results.add(body)

    async def _answer(self, scope: Scope, send: Send) -> None:
        try:
            (after,) = parse_qs(scope["query_string"].decode("ascii"))["after"]
            number = int(after)
        except (KeyError, ValueError):
            return await _reply(send, HTTPStatus.BAD_REQUEST)
        await _reply(send, HTTPStatus.OK, pack(await self._results.after(number, POLL_S)))


async def _reply(send: Send, status: HTTPStatus, body: bytes = b"", headers: list[tuple[bytes, bytes]] | None = None) -> None:
    length = (b"content-length", str(len(body)).encode())
    await send({"type": "http.response.start", "status": int(status), "headers": [length, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})


async def serve(host: Host, terms: dict[str, Any], ready: Ready, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Called in a role's process; runs until the cord ends. The port is any that is free, told over the cord alone."""
    # Named as TCP, or asyncio would not switch off Nagle's delay: an answer's head and body are two writes, 40 ms apart.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind((LOOPBACK, 0))
    listening.listen(128)
    config = uvicorn.Config(
        Service(host, terms["token"]),
        log_level="warning",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=1,
    )

    async def cord() -> None:
        await reader.read()

    await ready({"port": listening.getsockname()[1]})
    await either(uvicorn.Server(config).serve(sockets=[listening]), cord())
