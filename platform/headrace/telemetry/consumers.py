"""The live socket of a run page. It forwards pre-encoded hints; the page takes what is missing from events.json.

Each socket holds at most QUEUE_FRAMES messages. A browser that reads slower than that gets one gap frame and refetches. Access is
asked again while the socket is open, so that a removed member stops seeing the run within RECHECK_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from channels.db import database_sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user_model

from headrace.telemetry.access import session_holds, visible_run
from headrace.telemetry.frames import LARGEST_FRAME, events_frame, gap_frame, group_name, run_message
from headrace.telemetry.selectors import current_attempt, run_state

log = logging.getLogger(__name__)

QUEUE_FRAMES = 64
COALESCE_S = 0.05
RECHECK_S = 4.0
JOIN_TIMEOUT_S = 2.0

NOT_LOGGED_IN, REVOKED, NOT_FOUND = 4401, 4403, 4404


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a run is: its newest attempt, that attempt's last stored seq, the run's own state."""

    attempt: int = 0
    seq: int = 0
    state: dict[str, Any] = field(default_factory=dict)

    def behind(self, other: Standing) -> bool:
        """Whether the other is further on in events."""
        return (self.attempt, self.seq) < (other.attempt, other.seq)


class RunConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One socket: joins the run's group after login and policy have said yes."""

    async def connect(self) -> None:
        """Called once. A refusal accepts first, so that the browser sees the close code instead of a bare 403.

        The group is joined before the socket opens: what a page fetches after that and what it is sent leave no hole between them.
        """
        self.queue: deque[dict[str, Any]] = deque()
        self.skipped: dict[int, int] = {}  # attempt -> last seq dropped from the queue
        self.told = Standing()
        self.waiting = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.group = ""
        user = self.scope.get("user")
        self.user_id = user.pk if user is not None and user.is_authenticated else None
        session = self.scope.get("session")
        self.session_key: str | None = session.session_key if session is not None else None
        self.run_id = self.scope["url_route"]["kwargs"]["public_id"]
        standing = await self._standing()
        if standing is None:
            await self.accept()
            await self.close(NOT_FOUND if self.user_id else NOT_LOGGED_IN)
            return
        self.told = standing
        self.group = group_name(self.run_id)
        try:
            await asyncio.wait_for(self.channel_layer.group_add(self.group, self.channel_name), JOIN_TIMEOUT_S)
        except Exception as error:  # whatever the channel layer's client raises: the regular look still finds what is new
            log.warning("a page watches without live updates: %s: %s", type(error).__name__, error)
        await self.accept()
        self.tasks = [asyncio.create_task(self._send_loop()), asyncio.create_task(self._look_loop())]

    async def disconnect(self, code: int) -> None:
        """Called once when the socket is gone, whoever closed it."""
        current = asyncio.current_task()
        for task in self.tasks:
            if task is not current:
                task.cancel()
        if self.group:
            try:
                await asyncio.wait_for(self.channel_layer.group_discard(self.group, self.channel_name), JOIN_TIMEOUT_S)
            except Exception as error:  # a dead Valkey has forgotten the group anyway
                log.debug("the group was not left: %s: %s", type(error).__name__, error)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Pages may say what they have seen; the server does not need it, and never parses what a client sends."""

    async def run_events(self, message: dict[str, Any]) -> None:
        """New events of the run were committed."""
        self._put(message)

    async def run_changed(self, message: dict[str, Any]) -> None:
        """The run itself changed, for example its state."""
        self._put(message)

    def _put(self, message: dict[str, Any]) -> None:
        if "attempt" in message:
            self.told = replace(self.told, attempt=message["attempt"], seq=message["last"])
        else:
            self.told = replace(self.told, state=message["state"])
        if len(self.queue) >= QUEUE_FRAMES:
            self._skip_queued()
        self.queue.append(message)
        self.waiting.set()

    def _skip_queued(self) -> None:
        """Drop what a slow browser has not taken; the newest state of the run itself is kept."""
        changes = [message for message in self.queue if "text" in message][-1:]
        for message in self.queue:
            if "attempt" in message:
                self.skipped[message["attempt"]] = max(message["last"], self.skipped.get(message["attempt"], 0))
        self.queue = deque(changes)

    async def _send_loop(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            clock, sent = asyncio.get_running_loop().time, 0.0
            while True:
                await self.waiting.wait()
                # What comes after a pause goes out at once; what follows closely shares a frame
                await asyncio.sleep(max(0.0, sent + COALESCE_S - clock()))
                sent = clock()
                self.waiting.clear()
                for text in self._frames():
                    await self.send(text)

    def _frames(self) -> Iterator[str]:
        """Everything queued, in as few frames as fit, gaps first."""
        taken, self.queue = self.queue, deque()
        skipped, self.skipped = self.skipped, {}
        for attempt, through in skipped.items():
            yield gap_frame(attempt, through)
        run: list[dict[str, Any]] = []
        for message in taken:
            if run and not _follows(run, message):
                yield _joined(run)
                run = []
            if "text" in message:
                yield message["text"]
            elif message["events"] is None:
                yield gap_frame(message["attempt"], message["last"])
            else:
                run.append(message)
        if run:
            yield _joined(run)

    async def _look_loop(self) -> None:
        """Every RECHECK_S: may this user still see the run, and has anything been missed? Heals a lost message by itself."""
        with contextlib.suppress(asyncio.CancelledError):
            before, wait = self.told, RECHECK_S * random.uniform(0.25, 1)  # pages that came together do not all ask at once
            while True:
                await asyncio.sleep(wait)
                wait = RECHECK_S
                now = await self._standing()
                if now is None:
                    await self.close(REVOKED)
                    return
                # Two looks in a row: a message of the last moment is on its way, one of the look before is lost
                if self.told.behind(before):
                    self._put({"type": "run.events", "attempt": now.attempt, "first": 0, "last": now.seq, "events": None})
                if now.state != self.told.state and now.state == before.state:
                    self._put({**run_message(now.state), "state": now.state})
                before = now

    async def _standing(self) -> Standing | None:
        if self.user_id is None or self.session_key is None:
            return None
        standing: Standing | None = await database_sync_to_async(_standing)(self.user_id, self.session_key, self.run_id)
        return standing


def _standing(user_id: int, session_key: str, public_id: str) -> Standing | None:
    """How far the run is, or None if this user may not see it any more.

    Reads session and user again: a log-out, a changed password and a lost membership all end what an open socket sees.
    """
    user = get_user_model().objects.filter(pk=user_id, is_active=True).first()
    run = visible_run(user, public_id) if user and session_holds(session_key, user) else None
    if run is None:
        return None
    attempt = current_attempt(run)
    return Standing(attempt.number if attempt else 0, attempt.ingested_through if attempt else 0, run_state(run))


def _follows(run: list[dict[str, Any]], message: dict[str, Any]) -> bool:
    last = run[-1]
    return (
        message.get("events") is not None
        and message["attempt"] == last["attempt"]
        and message["first"] == last["last"] + 1
        and sum(len(part["events"]) for part in run) + len(message["events"]) <= LARGEST_FRAME
    )


def _joined(run: list[dict[str, Any]]) -> str:
    return events_frame(run[0]["attempt"], run[0]["first"], run[-1]["last"], [part["events"] for part in run])
