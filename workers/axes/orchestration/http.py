"""http: generator and trainer are HTTP services on loopback, each on a port of its own; the driver is their client."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from typing import Any

import httpx

from workers.axes.orchestration.crew import Crew
from workers.axes.orchestration.http_service import LOOPBACK
from workers.axes.orchestration.process import Outbox, RoleProcess, either
from workers.axes.orchestration.wire import pack, unpack

TRIES = 4
CONNECT_PATIENCE_S = 10.0


class HttpRoad:
    """One client of one service: frames go out by POST, results come in by one request that is always held open.

    A request for each call would need a connection for each of a thousand samples under way, and lose a result with its
    connection. Nothing here has a read timeout: silence is the watch's matter.
    """

    kind = "http"

    def __init__(self, token: str) -> None:
        self._token = token
        self._client: httpx.AsyncClient | None = None
        self._outbox = Outbox(self._send)

    async def terms(self) -> dict[str, Any]:
        return {"token": self._token}

    async def open(self, ready: dict[str, Any], reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._client = httpx.AsyncClient(
            base_url=f"http://{LOOPBACK}:{ready['port']}",
            headers={"authorization": f"Bearer {self._token}"},
            timeout=httpx.Timeout(None, connect=CONNECT_PATIENCE_S),
            trust_env=False,
        )

    def post(self, body: bytes) -> None:
        self._outbox.put(body)

    async def run(self, settle: Callable[[dict[str, Any]], None]) -> None:
        await either(self._outbox.run(), self._receive(settle))

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()

    async def _send(self, bodies: list[bytes]) -> None:
        await self._request("POST", "/frames", content=pack(bodies))

    async def _receive(self, settle: Callable[[dict[str, Any]], None]) -> None:
        seen = 0
        while True:
            for number, body in unpack(await self._request("GET", "/results", params={"after": seen})):
                seen = number
                settle(unpack(body))

    async def _request(self, method: str, path: str, **what: Any) -> bytes:
        """Tried again over a cut connection: a frame is known by its number, a result is kept until acknowledged."""
        assert self._client is not None
        for attempt in range(TRIES):
            try:
                reply = await self._client.request(method, path, **what)
            except httpx.TransportError as error:
                if attempt == TRIES - 1:
                    raise ConnectionError(f"the service does not answer: {error}") from error
                await asyncio.sleep(0.05 * 2**attempt)
            else:
                return reply.raise_for_status().content
        raise AssertionError("unreachable")


class HttpServices(Crew):
    """One service for each engine and one for the trainer; a token that is new with every run opens them."""

    _token: str

    async def _open(self) -> None:
        self._token = secrets.token_urlsafe(32)

    def _process(self, name: str) -> RoleProcess:
        return RoleProcess(name, self._log(name), self._environment, HttpRoad(self._token))
