"""Frames on Valkey streams: what both ends of the road do alike, and the end inside a role's process.

Each process has two streams, work and results, each with a consumer group at its reading end. An entry is acknowledged and deleted
once it is done with: a dispatch together with its result, in one transaction. So a stream holds what is under way and nothing
else, and what a cut connection swallowed is still pending for its consumer, who reads it again.
"""

from __future__ import annotations

import asyncio
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff, NoBackoff
from redis.exceptions import ConnectionError as BusConnectionError
from redis.exceptions import TimeoutError as BusTimeoutError

from workers.axes.orchestration.child import Ready
from workers.axes.orchestration.host import Host
from workers.axes.orchestration.process import Outbox, either
from workers.axes.orchestration.wire import unpack

GROUP = "readers"
BODY = b"frame"
BLOCK_MS = 1000
READ_AT_ONCE = 256
CONNECT_PATIENCE_S = 5.0
READ_RETRIES = 5  # over about three seconds
BUS_ERRORS = (BusConnectionError, BusTimeoutError)


def connect(url: str, *, retry: bool = True) -> Redis:
    """A client whose answers may take their time: silence is the watch's matter. A repeated write is known by its call's number."""
    attempts = Retry(ExponentialBackoff(cap=1.0, base=0.05), READ_RETRIES) if retry else Retry(NoBackoff(), 0)
    return Redis.from_url(
        url, protocol=2, socket_timeout=None, socket_connect_timeout=CONNECT_PATIENCE_S, retry=attempts, retry_on_error=list(BUS_ERRORS)
    )


class Inbox:
    """One consumer of one stream."""

    def __init__(self, url: str, stream: str, consumer: str) -> None:
        self.stream = stream
        self._consumer = consumer
        # Its own connection, which blocks; and no blind repetition: an answer lost on its way is pending, not new.
        self._client: Any = connect(url, retry=False)
        self._from = b">"
        self._open: set[bytes] = set()  # delivered and not yet done with
        self._failures = 0

    async def read(self) -> list[tuple[bytes, dict[str, Any]]]:
        """The next entries, each once: (entry id, frame). Raises the connection's error when it stays cut."""
        while True:
            try:
                replies = await self._client.xreadgroup(
                    GROUP, self._consumer, {self.stream: self._from}, count=READ_AT_ONCE, block=BLOCK_MS if self._from == b">" else None
                )
            except BUS_ERRORS:
                self._failures += 1
                if self._failures > READ_RETRIES:
                    raise
                self._from = b"0"
                await asyncio.sleep(0.05 * 2**self._failures)
                continue
            self._failures = 0
            entries: list[tuple[bytes, dict[bytes, bytes]]] = replies[0][1] if replies else []
            if self._from != b">":
                self._from = entries[-1][0] if entries else b">"
            fresh = [(entry, unpack(fields[BODY])) for entry, fields in entries if entry not in self._open and fields]
            self._open.update(entry for entry, _ in fresh)
            if fresh or self._from == b">":
                return fresh

    def done(self, pipeline: Any, entry: bytes) -> None:
        """Queues the entry's acknowledgement and deletion."""
        self._open.discard(entry)
        pipeline.xack(self.stream, GROUP, entry)
        pipeline.xdel(self.stream, entry)

    async def close(self) -> None:
        await self._client.aclose()


async def serve(host: Host, terms: dict[str, Any], ready: Ready, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Called in a role's process; runs until the cord ends. Raises where the bus stays away."""
    client = connect(terms["url"])
    inbox = Inbox(terms["url"], terms["work"], "role")

    async def flush(answers: list[tuple[bytes, bytes | None]]) -> None:
        async with client.pipeline(transaction=True) as pipeline:
            for entry, body in answers:
                if body is not None:
                    pipeline.xadd(terms["results"], {BODY: body})
                inbox.done(pipeline, entry)
            await pipeline.execute()

    outbox = Outbox(flush)

    async def work() -> None:
        while True:
            for entry, frame in await inbox.read():

                async def answer(body: bytes | None, entry: bytes = entry) -> None:
                    outbox.put((entry, body))

                await host.take_once(frame, answer)

    async def cord() -> None:
        await reader.read()

    await ready({})
    await either(work(), outbox.run(), cord())
