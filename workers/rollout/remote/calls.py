"""HTTP calls to one server: bounded answers, retries with growing waits, and a count of what failed by its cause."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import Any

import httpx

from workers.contract.errors import EngineError

MOST_BYTES = 32 << 20  # of one answer: a hundred thousand tokens with log-probs are a quarter of it
FIRST_WAIT_S = 0.25
LONGEST_WAIT_S = 30.0
CONNECT_S = 10.0
PASSING = {408, 425, 429, 500, 502, 503, 504}


@dataclass(eq=False)
class Failure(Exception):
    """One try that failed. cause: a short word to count by; passing: whether another try may succeed; after: seconds asked for."""

    cause: str
    message: str
    passing: bool
    after: float | None = None


class Calls:
    """One client of one server, used from one event loop. `failures` counts tries that failed, those that were made good included."""

    def __init__(self, url: str, token: str | None, timeout_s: float, retries: int) -> None:
        self.url = url.rstrip("/")
        self.failures: Counter[str] = Counter()
        self._token = token
        self._retries = retries
        self._timeout = httpx.Timeout(timeout_s, connect=min(CONNECT_S, timeout_s), pool=None)
        self._client: httpx.AsyncClient | None = None

    async def __call__(self, method: str, path: str, body: Any = None, *, query: dict[str, str] | None = None, words: bool = False) -> Any:
        """The JSON value answered, None for an empty answer; with `words` whatever text. Raises EngineError once all tries have failed.

        Every call that is made here may be made twice: a sample's request carries its seed, the others set a state.
        """
        tries = 1 + self._retries
        for count in range(1, tries + 1):
            try:
                # httpx's patience is for each read; a server that drips bytes would never exceed it.
                async with asyncio.timeout(self._timeout.read):
                    text, kind = await self._once(method, path, body, query)
                return text.decode("utf-8", "replace") if words else _parsed(text, kind)
            except TimeoutError:
                failure = Failure("timeout", f"no answer within {self._timeout.read:g} s", True)
            except httpx.HTTPError as error:
                kind = "timeout" if isinstance(error, httpx.TimeoutException) else "connection"
                failure = Failure(kind, f"{type(error).__name__}: {error}".rstrip(": "), True)
            except Failure as error:
                failure = error
            self.failed(failure.cause, f"{path}: {failure.message} (try {count} of {tries})")
            if not failure.passing or count == tries:
                break
            await asyncio.sleep(_wait(count, failure.after))
        raise EngineError(
            f"the server failed {path} ({failure.cause}) after {count} tries: {self._without_token(failure.message)}",
            field="rollout.remote.urls",
            value=self.url,
            cure="see the server's log; rollout.remote.timeout_s and .retries say how long it is waited for",
            retryable=failure.passing,
        )

    def failed(self, cause: str, message: str) -> None:
        """Counts a failure and says it in this process' log."""
        self.failures[cause] += 1
        sys.stderr.write(f"remote engine {self.url}: {cause}: {self._without_token(message)}\n")

    def refused(self, failure: Failure, cure: str = "see that the server runs this run's model, for this run alone") -> EngineError:
        """The error to raise for an answer that cannot be believed. Counts it: it never becomes a sample."""
        self.failed(failure.cause, failure.message)
        return EngineError(
            f"{failure.message} ({failure.cause})", field="rollout.remote.urls", value=self.url, cure=cure, retryable=failure.passing
        )

    @contextlib.contextmanager
    def believing(self) -> Iterator[None]:
        """Around calls whose answers are looked into: a Failure goes on as EngineError."""
        try:
            yield
        except Failure as failure:
            raise self.refused(failure) from None

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def _once(self, method: str, path: str, body: Any, query: dict[str, str] | None) -> tuple[bytes, str]:
        """The answer's bytes and their type. Raises Failure, httpx.HTTPError."""
        if self._client is None:
            headers = {"accept": "application/json"} | ({"authorization": f"Bearer {self._token}"} if self._token else {})
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            # No redirect is followed and no proxy asked: the token goes to the address that was given, and nowhere else.
            self._client = httpx.AsyncClient(headers=headers, timeout=self._timeout, limits=limits, trust_env=False)
        async with self._client.stream(method, self.url + path, json=body, params=query) as answer:
            text = bytearray()
            async for piece in answer.aiter_bytes():
                text += piece
                if len(text) > MOST_BYTES:
                    raise Failure("too_long", f"an answer of more than {MOST_BYTES >> 20} MiB", False)
        if answer.status_code >= HTTPStatus.MULTIPLE_CHOICES:
            shown = bytes(text[:300]).decode("utf-8", "replace")
            raise Failure(
                f"http_{answer.status_code}",
                f"status {answer.status_code}: {shown!r}",
                answer.status_code in PASSING,
                _asked_wait(answer.headers.get("retry-after")),
            )
        return bytes(text), answer.headers.get("content-type", "unknown type")[:60]

    def _without_token(self, text: str) -> str:
        return text.replace(self._token, "(token)") if self._token else text


def _parsed(text: bytes, kind: str) -> Any:
    if not text:
        return None
    try:
        return json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise Failure("no_json", f"an answer that is no JSON ({kind}, {len(text)} bytes)", False) from None


def _wait(count: int, asked: float | None) -> float:
    """Seconds before the next try: what the server asked for, else twice the last wait with some chance in it."""
    if asked is not None:
        return asked
    return min(LONGEST_WAIT_S, FIRST_WAIT_S * 2.0 ** (count - 1)) * random.uniform(0.5, 1.0)


def _asked_wait(header: str | None) -> float | None:
    """Seconds of a Retry-After header, given as a number or a date (RFC 9110, 10.2.3); at most the longest wait."""
    if header is None:
        return None
    try:
        seconds = float(header) if header.strip().isdigit() else (parsedate_to_datetime(header) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return None
    return min(LONGEST_WAIT_S, max(0.0, seconds))


def _no_constant(word: str) -> float:
    raise ValueError(f"{word} is no JSON")
