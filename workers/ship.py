"""Ships a spool to the server, exactly once: the server's mark says what it holds, everything beyond is sent again.

Runs in a thread beside a training run, and alone as `python -m workers ship DIR` for a spool that was left behind.
"""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from workers.contract.errors import EnvironmentMissing, Fenced, HeadraceError
from workers.contract.events import MAX_BATCH_BYTES, Control, IngestReply
from workers.spool import read_spool

BATCH_EVENTS = 500
BATCH_BYTES = MAX_BATCH_BYTES // 4


@dataclass(frozen=True)
class AttemptFile:
    """The launcher's note to the driver (mode 0600): who it is, where the server is, its token. Never in argv or environment."""

    run: str
    attempt: str
    number: int
    fence: int
    server: str
    token: str
    ingested_through: int = 0

    @classmethod
    def read(cls, path: Path) -> AttemptFile:
        try:
            data = json.loads(path.read_text())
            return cls(**{name: data[name] for name in cls.__dataclass_fields__ if name in data})
        except (OSError, ValueError, TypeError) as error:
            raise EnvironmentMissing(
                f"the attempt file cannot be used: {error}", field="--attempt-file", value=str(path), cure="let the server launch the run"
            ) from error

    def __repr__(self) -> str:  # a token in a traceback is a leak
        return f"AttemptFile(run={self.run!r}, attempt={self.attempt!r}, number={self.number})"


class Shipper:
    """Sends what the spool holds beyond the server's mark. `on_control` is called with every reply's wishes."""

    def __init__(
        self, attempt: AttemptFile, spool: Path, on_control: Callable[[Control], None] | None = None, *, replay: bool = False
    ) -> None:
        """`replay`: the attempt has ended; its spool may be completed even where a newer attempt holds the fence."""
        self._attempt = attempt
        self._query = {"replay": "1"} if replay else {}
        self._spool = spool
        self._on_control = on_control
        self.through = attempt.ingested_through
        self.failures = 0
        self.last_error: str | None = None
        self.fenced = threading.Event()
        self._wake = threading.Event()
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._client = httpx.Client(
            base_url=attempt.server,
            headers={"Authorization": f"Bearer {attempt.token}"},
            timeout=httpx.Timeout(20, connect=5),
            trust_env=False,
        )

    def start(self) -> None:
        self._thread = threading.Thread(target=self._loop, name="shipper", daemon=True)
        self._thread.start()

    def wake(self, _events: object = None) -> None:
        self._wake.set()

    def stop(self, patience_s: float = 10.0) -> None:
        """Sends what is left, for at most `patience_s`; the rest stays in the spool for `ship`."""
        self._stopping = True
        self._wake.set()
        if self._thread is not None:
            self._thread.join(patience_s)

    def ship_all(self) -> int:
        """Sends everything beyond the mark and returns how many events were sent. Raises HeadraceError when the server refuses."""
        sent = 0
        for batch in self._batches():
            self._send(batch)
            sent += len(batch)
        return sent

    def _loop(self) -> None:
        pause = 0.0
        while not self.fenced.is_set():
            self._wake.wait(1.0)
            self._wake.clear()
            try:
                self.ship_all()
                self.failures, self.last_error, pause = 0, None, 0.0
            except Fenced:
                self.fenced.set()
                if self._on_control is not None:
                    self._on_control(Control(cancel=True))
            except (httpx.HTTPError, HeadraceError) as error:
                self.failures += 1
                self.last_error = f"{type(error).__name__}: {error}"
                pause = min(max(0.25, pause * 2), 10.0)
            if self._stopping and (pause == 0.0 or self.failures > 5):
                return
            # The server is away: training goes on, the spool grows, and the next try waits longer.
            if pause:
                threading.Event().wait(pause if not self._stopping else 0.25)

    def _batches(self) -> Iterator[list[dict[str, Any]]]:
        batch: list[dict[str, Any]] = []
        size = 0
        expected = self.through + 1
        for event, _bad in read_spool(self._spool, after=self.through):
            if event is None or event["seq"] < expected:
                continue
            if event["seq"] > expected:
                # A record was lost to damage: its number is filled with a note, so that the rest can be stored.
                event, missing = None, event
                while expected < missing["seq"]:
                    batch.append(_damaged(expected, missing))
                    expected += 1
                event = missing
            batch.append(event)
            expected += 1
            size += len(json.dumps(event["data"]))
            if len(batch) >= BATCH_EVENTS or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _send(self, batch: list[dict[str, Any]]) -> None:
        body = json.dumps(
            {
                "fence": self._attempt.fence,
                "first_seq": batch[0]["seq"],
                **{column: [event[column] for event in batch] for column in ("t", "step", "kind", "data")},
            },
            separators=(",", ":"),
        ).encode()
        headers = {"Content-Type": "application/json"}
        if len(body) > 4096:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        reply = self._client.post(f"/api/v1/attempts/{self._attempt.attempt}/events", params=self._query, content=body, headers=headers)
        if reply.status_code == 409:
            self._conflict(reply)
            return
        if reply.status_code >= 400:
            raise HeadraceError(
                f"the server answered {reply.status_code}",
                field="server",
                value=reply.text[:200],
                cure="see the server's log; the events stay in the spool",
                retryable=reply.status_code >= 500 or reply.status_code == 429,
            )
        answer = IngestReply.model_validate_json(reply.content)
        self.through = answer.ingested_through
        if self._on_control is not None:
            self._on_control(answer.control)

    def _conflict(self, reply: httpx.Response) -> None:
        problem = reply.json()
        if problem.get("code") == "fenced":
            raise Fenced("a newer attempt of this run has taken over", field="fence", value=self._attempt.fence)
        if problem.get("code") == "gap":
            self.through = int(problem["expected"]) - 1
            self._wake.set()
            raise HeadraceError("the server expects an earlier event", field="seq", value=problem.get("expected"), retryable=True)
        raise HeadraceError(
            "the server holds other content under these numbers", field="seq", value=problem.get("seq"), cure="keep the spool and report it"
        )


def _damaged(seq: int, neighbour: dict[str, Any]) -> dict[str, Any]:
    return {
        "seq": seq,
        "t": neighbour["t"],
        "step": neighbour["step"],
        "kind": "log",
        "data": {"level": "error", "message": f"event {seq} was damaged on disk and is lost", "source": "spool"},
    }
