"""The shipper against a server that follows the protocol, and against one that does not: nothing is lost, sent early or stuck."""

from __future__ import annotations

import gzip
import json
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from workers import ship
from workers.contract.errors import ConfigError, EnvironmentMissing, HeadraceError
from workers.contract.events import Control
from workers.emit import Emitter
from workers.ship import AttemptFile, Blocked, Shipper
from workers.spool import SpoolWriter
from workers.upload import UPLOADED, register

Answer = tuple[int, Any]


class Server(ThreadingHTTPServer):
    """Ingest as the protocol says, in memory. `refuse` may answer in its place; what came is counted."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.events: list[dict[str, Any]] = []
        self.posts = 0
        self.asked = 0
        self.replays = 0
        self.control: dict[str, Any] | None = {}
        self.refuse: Callable[[dict[str, Any]], Answer | None] = lambda batch: None
        self.refuse_mark: Answer | None = None
        self.upload: Answer = (201, {"run": "r", "attempt": "a", "number": 1, "fence": 1, "ingested_through": 0, "token": "hrw_x"})

    @property
    def seqs(self) -> list[int]:
        return [event["seq"] for event in self.events]

    def ingest(self, batch: dict[str, Any]) -> Answer:
        self.posts += 1
        refused = self.refuse(batch)
        if refused:
            return refused
        first, mark = batch["first_seq"], len(self.events)
        if first > mark + 1:
            return 409, {"code": "gap", "expected": mark + 1}
        columns = [batch[name] for name in ("t", "step", "kind", "data")]
        for seq, (t, step, kind, data) in enumerate(zip(*columns, strict=True), first):
            event = {"seq": seq, "t": t, "step": step, "kind": kind, "data": data}
            if seq > mark:
                self.events.append(event)
            elif self.events[seq - 1] != event:
                return 409, {"code": "conflict", "seq": seq}
        return 200, self.mark()

    def mark(self) -> dict[str, Any]:
        told = {"ingested_through": len(self.events)}
        return told if self.control is None else {**told, "control": self.control}


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is one write

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self._say(*(self.server.upload if self.path.endswith("/uploads") else self.server.ingest(json.loads(body))))

    def do_GET(self) -> None:
        self.server.asked += 1
        self.server.replays += "replay=1" in self.path
        self._say(*(self.server.refuse_mark or (200, self.server.mark())))

    def _say(self, status: int, content: Any) -> None:
        body = content.encode() if isinstance(content, str) else json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_arguments: Any) -> None:
        """Called for each request; the tests' output stays readable."""


@pytest.fixture
def server() -> Iterator[Server]:
    made = Server()
    thread = threading.Thread(target=made.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    yield made
    made.shutdown()
    made.server_close()
    thread.join()


def shipper(server: Server, spool: Path, **options: Any) -> Shipper:
    return Shipper(AttemptFile("r", "a", 1, 1, f"http://127.0.0.1:{server.server_port}", "hrw_x"), spool, **options)


def write(spool: Path, count: int) -> None:
    writer = SpoolWriter(spool)
    for _ in range(count):
        seq = writer.last_seq + 1
        writer.append({"seq": seq, "t": 1.0, "step": 0, "kind": "log", "data": {"level": "info", "message": f"event {seq}"}})
    writer.close()


def wait_for(ready: Callable[[], bool], seconds: float = 10) -> None:
    limit = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


def messages(server: Server) -> list[str]:
    return [event["data"]["message"] for event in server.events]


def test_the_work_grows_with_the_new_events_and_not_with_the_spool(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 2000)
    sender = shipper(server, tmp_path)
    assert sender.ship_all() == 2000
    before = sender.reader.lines
    assert before == 2000
    emitter = Emitter(tmp_path)
    for number in range(40):
        emitter.log("info", f"late {number}")
        wait_for(lambda: emitter.durable_seq == emitter.last_seq)
        assert sender.ship_all() == 1
    assert sender.ship_all() == 0
    emitter.close()
    assert sender.reader.lines - before == 40
    assert server.seqs == list(range(1, 2041))


def test_what_the_server_holds_already_is_read_once(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 300)
    shipper(server, tmp_path).ship_all()
    place = AttemptFile("r", "a", 1, 1, f"http://127.0.0.1:{server.server_port}", "hrw_x", ingested_through=300)
    sender = Shipper(place, tmp_path)
    for _ in range(5):
        assert sender.ship_all() == 0
    assert sender.reader.lines == 300


def test_half_a_line_of_a_live_spool_is_waited_for(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 3)
    segment = max(tmp_path.glob("*.spool"))
    whole = segment.read_bytes()
    segment.write_bytes(whole[:-20])
    sender = shipper(server, tmp_path)
    assert sender.ship_all() == 2
    segment.write_bytes(whole)
    assert sender.ship_all() == 1
    assert messages(server) == ["event 1", "event 2", "event 3"]


def test_a_line_that_cannot_be_read_is_given_up_only_when_nobody_writes_it_any_more(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 3)
    segment = max(tmp_path.glob("*.spool"))
    whole = segment.read_bytes()
    segment.write_bytes(whole.replace(b"event 2", b"\0\0\0\0\0 2"))
    sender = shipper(server, tmp_path)
    assert sender.ship_all() == 1
    write(tmp_path, 1)
    assert sender.ship_all() == 3
    assert messages(server) == ["event 1", "event 2 was damaged on disk and is lost", "event 3", "event 4"]
    # another sender that can read the event is told that something else is stored, and nothing is overwritten
    segment.write_bytes(whole)
    with pytest.raises(Blocked, match="other content"):
        shipper(server, tmp_path).ship_all()
    assert shipper(server, tmp_path, replay=True).ship_all() == 0
    assert server.asked == server.replays == 1


def test_the_true_event_stays_where_only_a_note_could_be_sent(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 5)
    sender = shipper(server, tmp_path)
    sender.ship_all()
    del server.events[3:]
    segment = max(tmp_path.glob("*.spool"))
    segment.write_bytes(segment.read_bytes().replace(b"event 2", b"\0\0\0\0\0 2"))
    assert shipper(server, tmp_path, durable=lambda: 5).ship_all() == 5
    assert messages(server) == [f"event {seq}" for seq in range(1, 6)]


def test_damage_before_what_is_durable_is_told_at_once(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 3)
    segment = max(tmp_path.glob("*.spool"))
    segment.write_bytes(segment.read_bytes().replace(b"event 2", b"\0\0\0\0\0 2"))
    assert shipper(server, tmp_path, durable=lambda: 3).ship_all() == 3
    assert "damaged" in messages(server)[1]


def test_nothing_is_sent_before_it_is_durable(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 10)
    mark = 4
    sender = shipper(server, tmp_path, durable=lambda: mark)
    assert sender.ship_all() == 4
    mark = 10
    assert sender.ship_all() == 6
    assert server.seqs == list(range(1, 11))


def test_a_gap_is_filled_from_the_beginning(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 6)
    sender = shipper(server, tmp_path)
    sender.ship_all()
    del server.events[2:]  # a database of yesterday
    write(tmp_path, 1)
    sender.ship_all()
    assert server.seqs == list(range(1, 8))


def test_a_gap_that_stays_is_an_error(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 3)
    server.refuse = lambda batch: (409, {"code": "gap", "expected": 1})
    with pytest.raises(HeadraceError, match="earlier event"):
        shipper(server, tmp_path).ship_all()
    assert server.posts == 3


@pytest.mark.parametrize("answer", [(200, "<html>log in</html>"), (409, "<html>busy</html>"), (409, []), (302, ""), (500, "oops")])
def test_a_strangers_answer_is_a_failure_told_once_and_the_events_wait(server: Server, tmp_path: Path, answer: Answer) -> None:
    write(tmp_path, 2)
    told: list[str] = []
    server.refuse = lambda batch: answer
    sender = shipper(server, tmp_path, on_trouble=told.append)
    sender.start()
    wait_for(lambda: sender.failures >= 2)
    assert len(told) == 1 and sender.last_error
    server.refuse = lambda batch: None
    wait_for(lambda: server.seqs == [1, 2])
    assert sender.stop()
    assert len(told) == 2 and "sent again" in told[1]


def test_the_thread_survives_a_spool_that_cannot_be_read_and_callbacks_that_raise(server: Server, tmp_path: Path) -> None:
    def broken(_: object) -> None:
        raise RuntimeError("loop is closed")

    (tmp_path / "000001.spool").mkdir()
    sender = shipper(server, tmp_path, on_control=broken, on_trouble=broken)
    sender.start()
    wait_for(lambda: sender.failures > 0)
    (tmp_path / "000001.spool").rmdir()
    write(tmp_path, 2)
    wait_for(lambda: server.seqs == [1, 2])
    assert sender.stop()


def test_one_refused_event_becomes_a_note_and_blocks_nothing(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 100)
    told: list[str] = []

    def refuse(batch: dict[str, Any]) -> Answer | None:
        bad = [data for data in batch["data"] if data["message"] in ("event 37", "event 99")]
        return (422, {"code": "invalid", "field": "data"}) if bad else None

    server.refuse = refuse
    sender = shipper(server, tmp_path, on_trouble=told.append)
    sender.ship_all()
    assert server.seqs == list(range(1, 101))
    assert [seq for seq, text in enumerate(messages(server), 1) if text != f"event {seq}"] == [37, 99]
    assert "refused event 37 (log): 422" in messages(server)[36] and len(told) == 2
    assert server.posts < 40
    # the reply to a note may be lost: it is sent again as it was
    sender._go_back(0)
    sender.ship_all()
    assert server.seqs == list(range(1, 101))


def test_a_server_that_refuses_everything_costs_no_event(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 8)
    server.refuse = lambda batch: (422, "no")
    sender = shipper(server, tmp_path)
    with pytest.raises(Blocked):
        sender.ship_all()
    server.refuse = lambda batch: None
    sender.ship_all()
    assert messages(server) == [f"event {seq}" for seq in range(1, 9)]


def test_batches_that_are_too_large_become_smaller(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "SMALLEST_BATCH_BYTES", 100)
    write(tmp_path, 400)
    server.refuse = lambda batch: (413, "too large") if len(batch["t"]) > 60 else None
    sender = shipper(server, tmp_path)
    sender._batch_bytes = 20_000
    sender.ship_all()
    assert messages(server) == [f"event {seq}" for seq in range(1, 401)]


def test_a_refused_token_is_tried_once_a_minute(server: Server, tmp_path: Path) -> None:
    write(tmp_path, 2)
    told: list[str] = []
    server.refuse = lambda batch: (401, {"code": "unauthorized"})
    sender = shipper(server, tmp_path, on_trouble=told.append)
    sender.start()
    for _ in range(20):
        sender.wake()
        time.sleep(0.05)
    assert server.posts == 1 and len(told) == 1 and "401" in told[0]
    began = time.monotonic()
    assert not sender.stop()
    assert time.monotonic() - began < 2


def test_wishes_are_heard_while_there_is_nothing_to_send(server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ship, "IDLE_S", 0.1)
    heard: list[Control] = []
    server.control = None  # an older server's answer says nothing of wishes
    sender = shipper(server, tmp_path, on_control=heard.append)
    sender.start()
    wait_for(lambda: server.asked >= 2)
    assert not heard
    server.refuse_mark = (404, "")
    asked = server.asked
    wait_for(lambda: server.asked >= asked + 2)
    assert sender.failures == 0 and server.asked < 30
    server.refuse_mark, server.control = None, {"cancel": True}
    wait_for(lambda: bool(heard))
    assert heard[0].cancel
    server.refuse_mark = (409, {"code": "fenced"})
    wait_for(sender.fenced.is_set)
    assert not sender.stop()


def test_stop_sends_what_is_left_and_ends_in_time_where_it_cannot(server: Server, tmp_path: Path) -> None:
    write(tmp_path / "one", 1200)
    sender = shipper(server, tmp_path / "one")
    sender.start()
    assert sender.stop()
    assert server.seqs == list(range(1, 1201))
    server.refuse = lambda batch: (503, "")
    write(tmp_path / "one", 1)
    sender = shipper(server, tmp_path / "one")
    sender.start()
    began = time.monotonic()
    assert not sender.stop(1.0)
    assert time.monotonic() - began < 2


def test_an_unreachable_server_is_a_named_error(tmp_path: Path) -> None:
    write(tmp_path, 1)
    with pytest.raises(HeadraceError, match="cannot be reached"):
        Shipper(AttemptFile("r", "a", 1, 1, "http://127.0.0.1:9", "x"), tmp_path, replay=True).ship_all()


def test_a_run_at_full_speed_arrives_whole(server: Server, tmp_path: Path) -> None:
    """Emitter and shipper side by side, as in a run; the reader meets the writer's file at every moment."""
    emitter = Emitter(tmp_path)
    sender = shipper(server, tmp_path, durable=lambda: emitter.durable_seq)
    emitter.listeners.append(sender.wake)
    sender.start()
    for number in range(3000):
        emitter.emit("log", {"level": "info", "message": f"{number} " + "x" * 500})
        if number % 300 == 0:
            time.sleep(0.02)
    assert emitter.close()
    assert sender.stop()
    assert server.seqs == list(range(1, 3001))
    assert not [text for text in messages(server) if "damaged" in text]
    assert sender.reader.lines < 3100


def test_a_folder_is_registered_whole_or_not_at_all(server: Server, tmp_path: Path) -> None:
    address, token = f"http://127.0.0.1:{server.server_port}", tmp_path / "token"
    with pytest.raises(ConfigError, match="token cannot be read"):
        register(tmp_path, address, token, None)
    token.write_text("hrt_x\n")
    with pytest.raises(ConfigError, match="no run in this folder"):
        register(tmp_path, address, token, None)
    (tmp_path / "config.json").write_text("{}")
    good = server.upload
    for answer in ((200, "<html>"), (200, {"run": "r"}), (200, [])):
        server.upload = answer
        with pytest.raises(ConfigError, match="not one of the server"):
            register(tmp_path, address, token, None)
    with pytest.raises(EnvironmentMissing):
        register(tmp_path, "http://127.0.0.1:9", token, None)
    assert not (tmp_path / UPLOADED).exists()
    server.upload = good
    assert register(tmp_path, f"{address}/", token, None).token == "hrw_x"
    assert (tmp_path / UPLOADED).stat().st_mode & 0o777 == 0o600
    assert register(tmp_path, address, None, None).attempt == "a"
    with pytest.raises(ConfigError, match="this folder is a run of"):
        register(tmp_path, "http://elsewhere", token, None)
