"""Where every stage hands its events: numbered here, written to the spool first, then shipped by whoever reads the spool."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from workers.clock import Clock, WallClock
from workers.contract.events import encode_number
from workers.spool import SpoolWriter

GROUP_COMMIT_S = 0.05


def clean(value: Any) -> Any:
    """JSON has no NaN: non-finite numbers anywhere in an event become the strings that `decode_number` reads."""
    if isinstance(value, float):
        return encode_number(value)
    if isinstance(value, Mapping):
        return {str(key): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value


class Emitter:
    """Numbers and spools events. `emit` never blocks on the disk: a thread syncs within 50 ms (group commit).

    `listeners` are called after an event is durable (the shipper's wake-up, the live line of the command).
    """

    def __init__(self, folder: Path, clock: Clock | None = None) -> None:
        self._clock = clock or WallClock()
        self._writer = SpoolWriter(folder)
        self._lock = threading.Lock()
        self._pending: list[dict[str, Any]] = []
        self._seq = self._writer.last_seq
        self._wake = threading.Event()
        self._closing = False
        self.step = 0
        self.error: OSError | None = None
        self.listeners: list[Callable[[list[dict[str, Any]]], None]] = []
        self._thread = threading.Thread(target=self._commit_loop, name="spool", daemon=True)
        self._thread.start()

    @property
    def last_seq(self) -> int:
        return self._seq

    def emit(self, kind: str, data: Mapping[str, Any]) -> None:
        """Called from any thread. The event is durable within 50 ms of this call."""
        with self._lock:
            self._seq += 1
            self._pending.append({"seq": self._seq, "t": self._clock.stamp(), "step": self.step, "kind": kind, "data": clean(data)})
        self._wake.set()

    def metrics(self, values: Mapping[str, float]) -> None:
        self.emit("metrics", {"values": {name: encode_number(float(value)) for name, value in values.items()}})

    def log(self, level: str, message: str, source: str = "driver") -> None:
        self.emit("log", {"level": level, "message": message[:8000], "source": source})

    def phase(self, name: str, detail: str = "", done: float | None = None) -> None:
        self.log("info", f"{name}: {detail}")
        self.emit("phase", {"name": name, "detail": detail, "done": done})

    def close(self) -> None:
        """Returns once everything emitted is on disk."""
        self._closing = True
        self._wake.set()
        self._thread.join()
        self._writer.close()

    def _commit_loop(self) -> None:
        backoff = GROUP_COMMIT_S
        while True:
            self._wake.wait()
            self._wake.clear()
            closing = self._closing
            backoff = self._commit(backoff)
            if closing and not self._pending:
                return
            if closing:
                self._wake.set()
            # Later events of this interval share the next sync.
            threading.Event().wait(0.0 if closing and self.error is None else backoff)

    def _commit(self, backoff: float) -> float:
        with self._lock:
            batch, self._pending = self._pending, []
        if not batch:
            return GROUP_COMMIT_S
        written = 0
        try:
            for event in batch:
                self._writer.append(event)
                written += 1
            self._writer.sync()
        except OSError as error:
            # Disk full: keep what is not on disk in memory, in order, and try again; training goes on.
            self.error = error
            with self._lock:
                self._pending = batch[written:] + self._pending
            self._wake.set()
            return min(backoff * 2, 5.0)
        self.error = None
        for listener in self.listeners:
            listener(batch)
        return GROUP_COMMIT_S
