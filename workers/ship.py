"""Ships a spool to the server, exactly once: the server's mark says what it holds, everything beyond is sent again.

Runs in a thread beside a training run, and alone as `python -m workers ship DIR` for a spool that was left behind.
"""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from workers.contract.errors import EnvironmentMissing, Fenced, HeadraceError
from workers.contract.events import MAX_BATCH_BYTES, Control, IngestReply
from workers.contract.failpoints import reached
from workers.spool import Place, SpoolReader

BATCH_EVENTS = 500
BATCH_BYTES = MAX_BATCH_BYTES // 4
SMALLEST_BATCH_BYTES = 64 * 1024
IDLE_S = 2.0  # with nothing to send, the server is asked for its wishes this often
LONGEST_PAUSE_S = 10.0
BLOCKED_PAUSE_S = 60.0
REFUSED = (400, 413, 422)  # of what was sent: less of it, or something else in its place, may be taken


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


class Blocked(HeadraceError):
    """The server refuses everything until somebody changes something: it is asked once a minute."""


class _Gap(HeadraceError):
    """The server wants earlier events than were sent."""


class _Conflict(HeadraceError):
    """The server holds other content under the number `value`."""


@dataclass(frozen=True, slots=True)
class _Item:
    """An event on its way, and where the spool goes on behind it."""

    event: dict[str, Any]
    place: Place
    note: bool = False  # stands in for an event that was lost


class Shipper:
    """Sends what the spool holds beyond the server's mark. `on_control` is called with every reply's wishes."""

    def __init__(
        self,
        attempt: AttemptFile,
        spool: Path,
        on_control: Callable[[Control], None] | None = None,
        *,
        replay: bool = False,
        durable: Callable[[], int] | None = None,
        on_trouble: Callable[[str], None] | None = None,
    ) -> None:
        """`replay`: the attempt has ended; its spool may be completed even where a newer attempt holds the fence.
        `durable`: in a live run, the last seq on disk; nothing beyond it is sent. `on_trouble` is told of the first failure, of
        each other kind that follows, of the recovery, and of events that the server refuses; not of every try."""
        self._attempt = attempt
        self._query = {"replay": "1"} if replay else {}
        self._over = replay
        self._durable = durable
        self._on_control = on_control
        self._on_trouble = on_trouble
        self.through = attempt.ingested_through
        self.failures = 0
        self.last_error: str | None = None
        self.fenced = threading.Event()
        self.reader = SpoolReader(spool)
        self._sent = self.through  # the server has the events up to here, and the spool goes on at `_place`
        self._place = Place()
        self._notes: dict[int, dict[str, Any]] = {}  # what stands in for a refused event
        self._batch_bytes = BATCH_BYTES
        self._told: str | None = None
        self._left = False  # patience ended before the spool did
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._deadline = float("inf")
        self._heard_at = time.monotonic()
        self._thread: threading.Thread | None = None
        self._client = httpx.Client(
            base_url=attempt.server,
            headers={"Authorization": f"Bearer {attempt.token}"},
            timeout=httpx.Timeout(20, connect=5),
            trust_env=False,
        )

    def start(self) -> None:
        self._wake.set()  # the spool may hold events already
        self._thread = threading.Thread(target=self._loop, name="shipper", daemon=True)
        self._thread.start()

    def wake(self, _events: object = None) -> None:
        self._wake.set()

    def stop(self, patience_s: float = 10.0) -> bool:
        """Called when the spool is closed: sends what is left, for at most `patience_s`. False: the rest waits in the spool for `ship`."""
        self._deadline = time.monotonic() + patience_s
        self._over = True
        self._stop.set()
        self._wake.set()
        if self._thread is None:
            return False
        self._thread.join(patience_s)
        if self._thread.is_alive():  # inside a request; the thread is a daemon and sends no other
            return False
        self._client.close()
        return self.failures == 0 and not self.fenced.is_set() and not self._left

    def ship_all(self) -> int:
        """Sends everything beyond the mark and returns how many events were sent. Raises HeadraceError when the server refuses."""
        sent, gaps = 0, 0
        if self._query:
            self._go_on_at_the_mark()
        while True:
            try:
                for batch in self._batches():
                    self._deliver(batch)
                    sent += len(batch)
                    self._left = time.monotonic() > self._deadline
                    if self._left:
                        break
                return sent
            except _Gap as error:
                self._go_back(error.value - 1)
                gaps += 1
                if gaps > 2:
                    raise

    def ask(self) -> None:
        """Called when there was nothing to send for a while: fetches the mark, and with it the server's wishes."""
        self._heard_at = time.monotonic()
        reply = self._request("GET", "mark", params=self._query)
        if reply.status_code == 404:
            return  # a server that has no such route; its wishes ride on the next batch
        answer = self._answer(reply)
        if answer.ingested_through < self._sent:
            self._go_back(answer.ingested_through)
        # An answer without `control` says nothing of wishes, which is not the same as none.
        if "control" in reply.json():
            self._control(answer.control)

    def _loop(self) -> None:
        pause = 0.0
        while not self.fenced.is_set():
            # The server is away: training goes on, the spool grows, and the next try waits longer.
            if self._stop.is_set():
                time.sleep(min(pause, 0.25))
            elif pause:
                self._stop.wait(pause)
            else:
                self._wake.wait(max(0.0, self._heard_at + IDLE_S - time.monotonic()))
            self._wake.clear()
            stopping = self._stop.is_set()
            try:
                if not self.ship_all() and not stopping and (pause or time.monotonic() - self._heard_at >= IDLE_S):
                    self.ask()
                pause = 0.0
                self._recovered()
            except Fenced:
                self.fenced.set()
                self._control(Control(cancel=True))
            except Exception as error:  # whatever it is, training and later tries go on
                pause = BLOCKED_PAUSE_S if isinstance(error, Blocked) else min(max(0.25, pause * 2), LONGEST_PAUSE_S)
                self._failed(error)
            if stopping and (pause == 0.0 or pause == BLOCKED_PAUSE_S or time.monotonic() >= self._deadline):
                return

    def _batches(self) -> Iterator[list[_Item]]:
        batch: list[_Item] = []
        size, expected, last = 0, self._sent + 1, self._place
        # Taken before reading: lines up to here are whole, so what cannot be read among them is damaged for good.
        durable = self._durable() if self._durable else None
        live = not self._over
        for event, bad, place in self.reader.read(self._place, live=live):
            if event is None:
                if live and durable is None and bad is not None and bad.segment == self.reader.newest:
                    break  # perhaps still being written
                continue
            if event["seq"] < expected:
                if not batch:
                    self._place = last = place  # held by the server: never to be read again
                continue
            if durable is not None and event["seq"] > durable:
                break
            while expected < event["seq"]:
                # A record was lost to damage: its number is filled with a note, so that the rest can be stored.
                batch.append(_Item(_note(expected, event, f"event {expected} was damaged on disk and is lost"), last, note=True))
                expected += 1
            batch.append(_Item(event, place))
            expected += 1
            size += place.offset - (last.offset if last.segment == place.segment else 0)
            last = place
            if len(batch) >= BATCH_EVENTS or size >= self._batch_bytes:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    def _deliver(self, items: list[_Item]) -> None:
        """Returns once the server holds the items. What it refuses is halved down to the one event, which a note then replaces."""
        events = [self._notes.get(item.event["seq"], item.event) for item in items]
        reply = self._post(events)
        if reply.status_code in REFUSED:
            self._refused(items, reply)
            return
        try:
            answer = self._answer(reply)
        except _Conflict as conflict:
            self._skip_note(items, conflict)
            return
        reached("ship.sent")
        last = items[-1]
        if answer.ingested_through < last.event["seq"]:
            self._go_back(answer.ingested_through)
            raise HeadraceError("the server did not keep what was sent", field="ingested_through", value=self.through, retryable=True)
        self._sent, self._place, self.through = last.event["seq"], last.place, answer.ingested_through
        self._control(answer.control)

    def _refused(self, items: list[_Item], reply: httpx.Response) -> None:
        if reply.status_code == 413:
            self._batch_bytes = max(SMALLEST_BATCH_BYTES, self._batch_bytes // 2)
        if len(items) > 1:
            middle = len(items) // 2
            self._deliver(items[:middle])
            self._deliver(items[middle:])
            return
        event = items[0].event
        seq, why = event["seq"], f"the server refused event {event['seq']} ({event['kind']}): {reply.status_code} {reply.text[:300]}"
        if items[0].note or seq in self._notes:
            raise Blocked(why, field="server", value=self._attempt.server, cure="see the server's log; the events stay in the spool")
        self._notes[seq] = _note(seq, event, why)
        try:
            self._deliver(items)
        except Blocked:
            del self._notes[seq]  # it refuses everything: the event itself may be sound
            raise
        self._trouble(f"{why}; a note stands in its place")

    def _skip_note(self, items: list[_Item], conflict: _Conflict) -> None:
        """The server holds the true event where a note was sent for it: the truth stays, and the rest is sent."""
        for index, item in enumerate(items):
            seq = item.event["seq"]
            if seq == conflict.value and (item.note or seq in self._notes):
                self._sent, self._place = seq, item.place
                if items[index + 1 :]:
                    self._deliver(items[index + 1 :])
                return
        raise Blocked(conflict.message, field="seq", value=conflict.value, cure="keep the spool and report it") from conflict

    def _go_back(self, mark: int) -> None:
        self.through = self._sent = mark
        self._place = Place()

    def _go_on_at_the_mark(self) -> None:
        reply = self._request("GET", "mark", params=self._query)
        if reply.status_code == 404:
            return  # a server that has no such route; what it holds is sent again and trimmed there
        mark = self._answer(reply).ingested_through
        if mark != self._sent:
            self._go_back(mark)

    def _post(self, events: list[dict[str, Any]]) -> httpx.Response:
        columns = {column: [event[column] for event in events] for column in ("t", "step", "kind", "data")}
        batch = {"fence": self._attempt.fence, "first_seq": events[0]["seq"], **columns}
        body = json.dumps(batch, separators=(",", ":")).encode()
        headers = {"Content-Type": "application/json"}
        if len(body) > 4096:
            body, headers["Content-Encoding"] = gzip.compress(body, 1), "gzip"
        return self._request("POST", "events", params=self._query, content=body, headers=headers)

    def _request(self, method: str, route: str, **options: Any) -> httpx.Response:
        try:
            return self._client.request(method, f"/api/v1/attempts/{self._attempt.attempt}/{route}", **options)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise EnvironmentMissing(
                f"the server cannot be reached: {type(error).__name__}: {error}",
                field="server",
                value=self._attempt.server,
                cure="start it; the events stay in the spool",
                retryable=True,
            ) from error

    def _answer(self, reply: httpx.Response) -> IngestReply:
        if reply.status_code == 409:
            raise _problem(reply, self._attempt.fence)
        if reply.status_code in (401, 403):
            raise Blocked(f"the server answered {reply.status_code}: the token is not taken", field="token", cure="launch the run again")
        if reply.status_code != 200:
            raise HeadraceError(
                f"the server answered {reply.status_code}",
                field="server",
                value=reply.text[:200],
                cure="see the server's log; the events stay in the spool",
                retryable=reply.status_code >= 500 or reply.status_code == 429,
            )
        try:
            answer = IngestReply.model_validate_json(reply.content)
        except ValueError as error:
            raise HeadraceError(
                "the answer is not one of the server", field="server", value=reply.text[:200], cure="is a proxy in between?", retryable=True
            ) from error
        self._heard_at = time.monotonic()
        return answer

    def _failed(self, error: Exception) -> None:
        self.failures += 1
        self.last_error = f"{type(error).__name__}: {error}"
        kind = f"{type(error).__name__}: {error.message if isinstance(error, HeadraceError) else error}"
        if kind != self._told:
            self._told = kind
            self._trouble(f"events are not sent, they wait in the spool: {error}")

    def _recovered(self) -> None:
        if self._told is not None:
            self._told = None
            self._trouble(f"events are sent again, after {self.failures} failures; the server has them up to {self.through}")
        self.failures, self.last_error = 0, None

    def _trouble(self, message: str) -> None:
        try:
            if self._on_trouble is not None:
                self._on_trouble(message)
        except Exception as error:  # who listens must not end the sending
            self.last_error = f"on_trouble: {type(error).__name__}: {error}"

    def _control(self, control: Control) -> None:
        try:
            if self._on_control is not None:
                self._on_control(control)
        except Exception as error:  # the events are stored all the same
            self._trouble(f"a wish of the server was not passed on: {type(error).__name__}: {error}")


def _problem(reply: httpx.Response, fence: int) -> HeadraceError:
    """What a 409 says: a newer attempt, a gap, other content, or a stranger's page."""
    try:
        problem = dict(reply.json())
        code, seq = problem.get("code"), int(problem.get("expected") or problem.get("seq") or 0)
    except (ValueError, TypeError):
        code, seq = None, 0
    if code == "fenced":
        return Fenced("a newer attempt of this run has taken over", field="fence", value=fence)
    if code == "gap" and seq > 0:
        return _Gap("the server expects an earlier event", field="seq", value=seq, retryable=True)
    if code == "conflict":
        return _Conflict("the server holds other content under these numbers", field="seq", value=seq)
    return HeadraceError("the server answered 409 without a reason that is known", field="server", value=reply.text[:200], retryable=True)


def _note(seq: int, neighbour: dict[str, Any], message: str) -> dict[str, Any]:
    return {
        "seq": seq,
        "t": neighbour["t"],
        "step": neighbour["step"],
        "kind": "log",
        "data": {"level": "error", "message": message, "source": "spool"},
    }
