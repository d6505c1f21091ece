"""The live socket of a run page. It forwards pre-encoded hints; the page takes what is missing from events.json.

Each socket holds at most QUEUE_FRAMES messages. A browser that reads slower than that gets one gap frame and refetches. Access is
asked again while the socket is open, so that a removed member stops seeing the run within RECHECK_S.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import deque
from collections.abc import Iterator
from typing import Any

from asgiref.sync import sync_to_async
from channels.generic.websocket import AsyncWebsocketConsumer
from django.contrib.auth import get_user_model

from headrace.telemetry.access import visible_run
from headrace.telemetry.frames import LARGEST_FRAME, events_frame, gap_frame, group_name

log = logging.getLogger(__name__)

QUEUE_FRAMES = 64
COALESCE_S = 0.075
RECHECK_S = 4.0

NOT_LOGGED_IN, REVOKED, NOT_FOUND = 4401, 4403, 4404


class RunConsumer(AsyncWebsocketConsumer):  # type: ignore[misc]  # channels has no types
    """One socket: joins the run's group after login and policy have said yes."""

    async def connect(self) -> None:
        """Called once. A refusal accepts first, so that the browser sees the close code instead of a bare 403."""
        self.queue: deque[dict[str, Any]] = deque()
        self.skipped: dict[int, int] = {}  # attempt -> last seq dropped from the queue
        self.waiting = asyncio.Event()
        self.tasks: list[asyncio.Task[None]] = []
        self.group = ""
        await self.accept()
        user = self.scope.get("user")
        if user is None or not user.is_authenticated:
            await self.close(NOT_LOGGED_IN)
            return
        self.user_id = user.pk
        self.run_id = self.scope["url_route"]["kwargs"]["public_id"]
        if not await self._allowed():
            await self.close(NOT_FOUND)
            return
        self.group = group_name(self.run_id)
        await self.channel_layer.group_add(self.group, self.channel_name)
        self.tasks = [asyncio.create_task(self._send_loop()), asyncio.create_task(self._recheck_loop())]

    async def disconnect(self, code: int) -> None:
        """Called once when the socket is gone, whoever closed it."""
        current = asyncio.current_task()
        for task in self.tasks:
            if task is not current:
                task.cancel()
        if self.group:
            with contextlib.suppress(OSError, asyncio.TimeoutError):  # a dead Valkey has forgotten the group anyway
                await self.channel_layer.group_discard(self.group, self.channel_name)

    async def receive(self, text_data: str | None = None, bytes_data: bytes | None = None) -> None:
        """Pages may say what they have seen; the server does not need it, and never parses what a client sends."""

    async def run_events(self, message: dict[str, Any]) -> None:
        """New events of the run were committed."""
        self._put(message)

    async def run_changed(self, message: dict[str, Any]) -> None:
        """The run itself changed, for example its state."""
        self._put(message)

    def _put(self, message: dict[str, Any]) -> None:
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
            while True:
                await self.waiting.wait()
                await asyncio.sleep(COALESCE_S)
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

    async def _recheck_loop(self) -> None:
        with contextlib.suppress(asyncio.CancelledError):
            while True:
                await asyncio.sleep(RECHECK_S)
                if not await self._allowed():
                    await self.close(REVOKED)
                    return

    async def _allowed(self) -> bool:
        return await sync_to_async(_may_watch, thread_sensitive=True)(self.user_id, self.run_id)


def _may_watch(user_id: int, public_id: str) -> bool:
    """Reads the user again: a session outlives the right to see."""
    user = get_user_model().objects.filter(pk=user_id, is_active=True).first()
    return user is not None and visible_run(user, public_id) is not None


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
