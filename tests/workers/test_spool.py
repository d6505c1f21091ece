"""The spool and the emitter: what is emitted is on disk, in order, once; damage is reported and stops nothing."""

from __future__ import annotations

import json
import math
import threading
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.contract.errors import DataError
from workers.emit import Emitter
from workers.spool import SpoolWriter, read_spool


def write(folder: Path, count: int) -> None:
    writer = SpoolWriter(folder)
    for _ in range(count):
        writer.append({"seq": writer.last_seq + 1, "t": 0.0, "step": 0, "kind": "log", "data": {"message": "é\ud800 line"}})
    writer.close()


def test_numbers_have_no_gaps(tmp_path: Path) -> None:
    writer = SpoolWriter(tmp_path)
    with pytest.raises(DataError, match="without gaps"):
        writer.append({"seq": 2})
    writer.close()


def test_a_restart_goes_on_where_the_last_one_ended(tmp_path: Path) -> None:
    write(tmp_path, 3)
    write(tmp_path, 2)
    assert [event["seq"] for event, _ in read_spool(tmp_path) if event] == [1, 2, 3, 4, 5]
    assert [event["seq"] for event, _ in read_spool(tmp_path, after=3) if event] == [4, 5]


@settings(max_examples=60, deadline=None)
@given(cut=st.integers(0, 400), flip=st.booleans())
def test_a_torn_or_flipped_byte_costs_only_its_own_line(tmp_path_factory: pytest.TempPathFactory, cut: int, flip: bool) -> None:
    folder = tmp_path_factory.mktemp("spool")
    write(folder, 5)
    segment = next(iter(folder.glob("*.spool")))
    body = segment.read_bytes()
    place = cut % len(body)
    segment.write_bytes(body[:place] + bytes([body[place] ^ 0x41]) + body[place + 1 :] if flip else body[:place])
    found = list(read_spool(folder))
    good = [event["seq"] for event, bad in found if event]
    assert good == sorted(set(good))
    if flip:
        # A flipped byte damages its line; a flipped line end may join two.
        assert len(good) >= 3
        assert any(bad for _, bad in found)
    else:
        assert good == list(range(1, body[:place].count(b"\n") + 1))


def test_emitted_events_are_durable_in_order_and_non_finite_numbers_survive(tmp_path: Path) -> None:
    emitter = Emitter(tmp_path)
    heard: list[int] = []
    emitter.listeners.append(lambda events: heard.extend(event["seq"] for event in events))

    def many() -> None:
        for number in range(200):
            emitter.metrics({"loss/policy": math.nan if number % 2 else 1.0})

    threads = [threading.Thread(target=many) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    emitter.emit("state", {"deep": [math.inf, {"x": -math.inf}]})
    emitter.close()
    events = [event for event, bad in read_spool(tmp_path) if event]
    assert [event["seq"] for event in events] == list(range(1, 802)) == heard
    assert {json.dumps(event["data"]["values"]) for event in events[:-1]} == {'{"loss/policy": "NaN"}', '{"loss/policy": 1.0}'}
    assert events[-1]["data"] == {"deep": ["Infinity", {"x": "-Infinity"}]}
