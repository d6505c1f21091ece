"""The emitter under faults: listeners that fail, a disk that is full, a disk that loses pages, data that is no JSON."""

from __future__ import annotations

import errno
import io
import json
import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from workers.console import LiveLine
from workers.emit import Emitter, clean
from workers.logs import LogFollower
from workers.spool import SpoolWriter, read_spool


def wait_for(ready: Callable[[], bool], seconds: float = 10) -> None:
    limit = time.monotonic() + seconds
    while not ready():
        assert time.monotonic() < limit, "waited in vain"
        time.sleep(0.01)


@contextmanager
def files_no_longer_than(size: int) -> Iterator[None]:
    """A write beyond this size is cut short, then refused: what a full disk does."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def seqs(folder: Path) -> list[int]:
    found = list(read_spool(folder))
    assert not [bad for _, bad in found if bad]
    return [event["seq"] for event, _ in found if event]


def test_a_listener_that_raises_is_dropped_and_told_once(tmp_path: Path) -> None:
    emitter = Emitter(tmp_path)
    heard: list[int] = []

    def broken(_events: list[dict[str, Any]]) -> None:
        raise BrokenPipeError("the reader went away")

    emitter.listeners += [broken, lambda events: heard.extend(event["seq"] for event in events)]
    for number in range(3):
        emitter.log("info", str(number))
        wait_for(lambda: emitter.durable_seq == emitter.last_seq and len(emitter.listeners) == 1)
    wait_for(lambda: emitter.last_seq == 4)
    assert emitter.close() and emitter.error is None
    assert seqs(tmp_path) == heard == [1, 2, 3, 4]
    told = [event["data"]["message"] for event, _ in read_spool(tmp_path) if event and event["data"]["level"] == "warning"]
    assert len(told) == 1 and "broken" in told[0] and "the reader went away" in told[0]


def test_the_live_line_survives_a_stream_that_knows_only_ascii() -> None:
    raw = io.BytesIO()
    line = LiveLine(io.TextIOWrapper(raw, encoding="ascii"))
    state = {
        "status": "running",
        "step": 1,
        "steps_total": 2,
        "flow": {"train_samples_per_s": 1.5},
        "buffer": {"depth": 0, "capacity": 4},
    }
    score = {"mean": "NaN", "stderr": 0.1, "version": 3, "n": 2}
    events = [("state", state), ("evaluation", score), ("log", {"level": "error", "message": "größer \x1b[2J \ud800"})]
    line([{"kind": kind, "data": data} for kind, data in events])
    text = raw.getvalue().decode("ascii")
    assert "reward -" in text and "held-out reward - +/- 0.100 at version 3" in text and "error: gr??er ?[2J ?" in text


def test_a_listener_that_hangs_keeps_nothing_from_the_disk(tmp_path: Path) -> None:
    """A terminal that is held, a pager that waits."""
    emitter = Emitter(tmp_path)
    go_on = threading.Event()
    emitter.listeners.append(lambda events: go_on.wait(20) and None)
    for number in range(3):
        emitter.log("info", str(number))
        wait_for(lambda: emitter.durable_seq == emitter.last_seq)
    began = time.monotonic()
    assert emitter.close(1.0)
    assert time.monotonic() - began < 3
    assert seqs(tmp_path) == [1, 2, 3]
    go_on.set()


def test_a_full_disk_costs_no_event_and_listeners_hear_each_once(tmp_path: Path) -> None:
    emitter = Emitter(tmp_path)
    heard: list[int] = []
    emitter.listeners.append(lambda events: heard.extend(event["seq"] for event in events))
    with files_no_longer_than(1000):  # in the middle of a line
        for number in range(60):
            emitter.log("info", f"line {number}")
        wait_for(lambda: emitter.error is not None)
        assert emitter.durable_seq == 0 and not heard
        emitter.log("info", "while the disk is full")
    wait_for(lambda: emitter.durable_seq == 61)
    assert emitter.error is None
    assert emitter.close()
    assert seqs(tmp_path) == heard == list(range(1, 62))


def test_close_ends_on_a_full_disk(tmp_path: Path) -> None:
    emitter = Emitter(tmp_path)
    with files_no_longer_than(100):
        for _ in range(20):
            emitter.log("info", "x")
        began = time.monotonic()
        assert not emitter.close(0.5)
        assert time.monotonic() - began < 3
    assert isinstance(emitter.error, OSError)
    assert emitter.durable_seq < 20
    emitter.log("info", "too late")
    assert emitter.last_seq == 20


def test_what_a_failing_disk_forgot_is_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = SpoolWriter(tmp_path)
    writer.append({"seq": 1, "data": "a"})
    real = os.fsync

    def fails_once(handle: int) -> None:
        monkeypatch.setattr(os, "fsync", real)
        raise OSError(errno.EIO, "the device lost a page")

    monkeypatch.setattr(os, "fsync", fails_once)
    with pytest.raises(OSError, match="lost a page"):
        writer.sync()
    assert writer.synced_seq == 0
    lost = max(tmp_path.glob("*.spool"))
    writer.sync()
    assert writer.synced_seq == 1
    assert seqs(tmp_path) == [1], "there twice, read once"
    lost.write_bytes(b"\0" * lost.stat().st_size)  # what the disk then holds of it
    writer.append({"seq": 2, "data": "b"})
    writer.close()
    assert [event["seq"] for event, _ in read_spool(tmp_path) if event] == [1, 2]


def test_data_that_is_no_json_is_told_and_the_next_events_are_kept(tmp_path: Path) -> None:
    faults: list[Exception] = []
    emitter = Emitter(tmp_path, on_fatal=faults.append)
    emitter.emit("state", {"path": tmp_path})
    emitter.log("info", "after")
    assert emitter.close()
    events = [event for event, _ in read_spool(tmp_path) if event]
    assert [event["seq"] for event in events] == [1, 2]
    assert events[0]["data"]["level"] == "error" and "not JSON serializable" in events[0]["data"]["message"]
    assert len(faults) == 1 and emitter.fatal is faults[0] is emitter.error


def test_a_fault_of_the_spool_itself_is_visible(tmp_path: Path) -> None:
    faults: list[Exception] = []
    emitter = Emitter(tmp_path, on_fatal=faults.append)
    emitter._writer.last_seq = 7  # as a wrong count would be
    emitter.log("info", "x")
    wait_for(lambda: bool(faults))
    assert emitter.fatal is faults[0] and "without gaps" in str(faults[0])
    emitter.log("info", "y")
    assert not emitter._pending and not emitter.close()


def test_text_that_a_database_refuses_is_made_readable() -> None:
    assert clean({"k\0": ["a\ud800b\0", "é"]}) == {"k\ufffd": ["a?b\ufffd", "é"]}
    assert json.loads(json.dumps(clean(("x", 1.5, float("-inf"))))) == ["x", 1.5, "-Infinity"]


def test_the_pools_logs_are_followed_through_every_shape_of_file(tmp_path: Path) -> None:
    told: list[tuple[str, str, str]] = []
    follower = LogFollower(tmp_path, lambda *line: told.append(line))
    log = tmp_path / "trainer.log"
    log.write_bytes(b"one\nha")
    follower.look()
    log.write_bytes(b"one\nhalf\r10%\r20%\rlast words")
    follower.look()
    assert [line[1] for line in told] == ["one", "half", "10%", "20%"]
    follower.look(last=True)
    assert told[-1] == ("info", "last words", "trainer")
    log.write_bytes(b"anew\n")
    follower.look()
    assert told[-1][1] == "anew"
    log.write_bytes(b"x" * 3_000_000 + b"\nend\n")
    follower.look()
    assert told[-1][1] == "end" and len(told[-2][1]) == 2000 and "bytes are left out" in told[-3][1]
    (tmp_path / "odd.log").mkdir()
    for _ in range(2):
        follower.look()
    assert [line[2] for line in told if "cannot be read" in line[1]] == ["odd"]
