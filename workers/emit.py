"""Where every stage hands its events: numbered here, written to the spool first, then shipped by whoever reads the spool."""

from __future__ import annotations

import contextlib
import queue
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workers.clock import Clock, WallClock
from workers.contract.errors import DataError
from workers.contract.events import encode_number
from workers.spool import SpoolWriter

GROUP_COMMIT_S = 0.025
LONGEST_RETRY_S = 5.0
MOST_UNTOLD = 10_000


def clean(value: Any) -> Any:
    """What JSON and every database can hold: non-finite numbers as the strings that `decode_number` reads, text without
    lone surrogates and NUL."""
    if isinstance(value, str):
        return value if value.isascii() and "\0" not in value else value.encode("utf-8", "replace").decode().replace("\0", "\ufffd")
    if isinstance(value, float):
        return encode_number(value)
    if isinstance(value, Mapping):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


def _report(error: Exception) -> None:
    sys.stderr.write(f"error: the spool failed: {type(error).__name__}: {error}\n")


class Emitter:
    """Numbers and spools events. `emit` never blocks on the disk: a thread syncs within 50 ms (group commit).

    `listeners` are called after an event is durable (the shipper's wake-up, the live line of the command), on a thread of their
    own: a terminal that is held keeps no event from the disk. One that raises is told in the log and hears no more.

    `error` is what keeps events from the disk now (a full disk: they wait in memory, and the sync is tried again). `fatal` is a
    fault that no retry cures; `on_fatal` is called with the first, from the spool's thread.
    """

    def __init__(self, folder: Path, clock: Clock | None = None, on_fatal: Callable[[Exception], None] | None = None) -> None:
        self._clock = clock or WallClock()
        self._writer = SpoolWriter(folder)
        self._lock = threading.Lock()
        self._pending: list[dict[str, Any]] = []
        self._unsynced: list[dict[str, Any]] = []  # with the writer, and not yet durable
        self._seq = self._writer.last_seq
        self._durable = self._writer.synced_seq
        self._wake = threading.Event()
        self._closing = threading.Event()
        self._deadline = 0.0
        self._ended = False
        self.step = 0
        self.error: Exception | None = None
        self.fatal: Exception | None = None
        self.on_fatal = on_fatal or _report
        self.listeners: list[Callable[[list[dict[str, Any]]], None]] = []
        self._untold: queue.Queue[list[dict[str, Any]] | None] = queue.Queue(MOST_UNTOLD)
        self._thread = threading.Thread(target=self._run, name="spool", daemon=True)
        self._thread.start()
        self._teller = threading.Thread(target=self._tell_loop, name="listeners", daemon=True)
        self._teller.start()

    @property
    def last_seq(self) -> int:
        return self._seq

    @property
    def durable_seq(self) -> int:
        """Every event up to this one is on disk: what the shipper may send."""
        return self._durable

    def emit(self, kind: str, data: Mapping[str, Any]) -> None:
        """Called from any thread. The event is durable within 50 ms of this call. After `close` or a fatal fault it is not taken."""
        cleaned = clean(data)
        with self._lock:
            if self._ended:
                return
            self._seq += 1
            self._pending.append({"seq": self._seq, "t": self._clock.stamp(), "step": self.step, "kind": kind, "data": cleaned})
        self._wake.set()

    def metrics(self, values: Mapping[str, float]) -> None:
        self.emit("metrics", {"values": {name: encode_number(float(value)) for name, value in values.items()}})

    def log(self, level: str, message: str, source: str = "driver") -> None:
        self.emit("log", {"level": level, "message": message[:8000], "source": source})

    def phase(self, name: str, detail: str = "", done: float | None = None) -> None:
        self.log("info", f"{name}: {detail}")
        self.emit("phase", {"name": name, "detail": detail, "done": done})

    def close(self, timeout_s: float = 5.0) -> bool:
        """Returns True once everything emitted is on disk, False (see `error`) when the disk did not take it in time."""
        self._deadline = time.monotonic() + timeout_s
        self._closing.set()
        self._wake.set()
        self._thread.join(timeout_s + 0.5)
        with self._lock:
            self._ended = True
        self._hand_over(None)
        self._teller.join(max(0.5, self._deadline - time.monotonic()))
        if self._thread.is_alive():  # inside a call of the disk that does not return; the thread is a daemon and goes with the process
            self.error = self.error or TimeoutError(f"the disk took no event for {timeout_s:.0f} s")
            return False
        try:
            self._writer.close()
            self._durable = self._writer.synced_seq
        except OSError as error:
            self.error = error
        return self._durable == self._seq

    def _run(self) -> None:
        try:
            self._commit_loop()
        except Exception as error:
            with self._lock:
                self._ended = True  # nothing may pile up where nothing is written any more
                self._pending.clear()
            self._fail(error)

    def _commit_loop(self) -> None:
        backoff = GROUP_COMMIT_S
        while True:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing.is_set()
            done = self._commit()
            backoff = GROUP_COMMIT_S if done else min(backoff * 2, LONGEST_RETRY_S)
            if closing:
                with self._lock:
                    if (done and not self._pending) or time.monotonic() >= self._deadline:
                        self._ended = True
                        return
            if closing or not done:
                self._wake.set()
            # Later events of this interval share the next sync; a full disk is tried again at intervals.
            if not closing:
                self._closing.wait(backoff)
            elif not done:
                time.sleep(GROUP_COMMIT_S)

    def _commit(self) -> bool:
        """One group commit. False: the disk did not take it; everything is kept, in order, and training goes on."""
        with self._lock:
            batch, self._pending = self._pending, []
        for event in batch:
            self._unsynced.append(self._append(event))
        if not self._unsynced:
            return True
        try:
            self._writer.sync()
        except OSError as error:
            self.error = error
            return False
        self.error = self.fatal
        self._durable = self._writer.synced_seq
        told, self._unsynced = self._unsynced, []
        self._hand_over(told)
        return True

    def _hand_over(self, events: list[dict[str, Any]] | None) -> None:
        with contextlib.suppress(queue.Empty, queue.Full):
            if self._untold.full():  # a terminal held for many minutes: its oldest lines are not shown
                self._untold.get_nowait()
            self._untold.put_nowait(events)

    def _append(self, event: dict[str, Any]) -> dict[str, Any]:
        try:
            self._writer.append(event)
        except DataError:
            raise
        except (TypeError, ValueError, RecursionError) as error:
            # A fault of the code that emitted it. Its number is filled, so that the failure itself can be recorded behind it.
            note = f"event {event['seq']} ({event['kind']}) cannot be written as JSON: {error}"
            event = {**event, "kind": "log", "data": {"level": "error", "message": note[:2000], "source": "spool"}}
            self._writer.append(event)
            self._fail(error)
        return event

    def _tell_loop(self) -> None:
        while (events := self._untold.get()) is not None:
            self._tell(events)

    def _tell(self, events: list[dict[str, Any]]) -> None:
        for listener in list(self.listeners):
            try:
                listener(events)
            except Exception as error:
                self.listeners.remove(listener)
                name = getattr(listener, "__qualname__", type(listener).__name__)
                self.log("warning", f"a listener of the events failed and hears no more: {name}: {type(error).__name__}: {error}", "spool")

    def _fail(self, error: Exception) -> None:
        first, self.fatal = self.fatal is None, self.fatal or error
        self.error = self.fatal
        if not first:
            return
        try:
            self.on_fatal(error)
        except Exception as fault:
            _report(fault)
