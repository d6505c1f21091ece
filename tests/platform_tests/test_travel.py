"""A run as it was at any second: ledgers, samples, log, state; after a resume, for an upload, and fast on two hours of it."""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from headrace.experiments import lifecycle
from headrace.experiments.models import Attempt, RunTransition
from headrace.telemetry import travel
from headrace.telemetry.codec import Columns
from headrace.telemetry.ingest import ingest, rebuild
from headrace.telemetry.models import Moment
from tests.platform_tests.telemetry_rig import SAMPLE, STATE, T0, Rig, metric, new_rig, push

pytestmark = pytest.mark.django_db


def state(step: int, trained: int) -> tuple[str, dict[str, Any]]:
    return "state", {**STATE, "step": step, "samples": {"trained": trained, "dispatched": trained + 4, "in_flight": 4}}


def story() -> list[tuple[str, dict[str, Any]]]:
    """Seq n happens at T0 + n."""
    return [
        ("started", {"provenance": {"host": "h"}, "resumed_from": None}),  # 1
        state(0, 0),  # 2
        ("log", {"level": "info", "message": "first"}),  # 3
        ("sync", {"version": 1, "latency_s": 0.5}),  # 4
        ("sample", {**SAMPLE, "completion": "early"}),  # 5
        state(1, 64),  # 6
        ("evaluation", {"version": 1, "mean": 0.25, "n": 8, "stderr": 0.1}),  # 7
        ("checkpoint", {"path": "c1", "step": 1, "version": 1}),  # 8
        ("log", {"level": "info", "message": "second"}),  # 9
        ("lag", {"counts": {"0": 5}}),  # 10
        metric(0.5),  # 11
        ("sample", {**SAMPLE, "completion": "late", "index": 2}),  # 12
        state(2, 128),  # 13
    ]


def told(rig: Rig, *, whole: bool = False) -> None:
    events = story()
    if whole:
        push(rig.attempt, events, step=1)
        return
    for place in range(0, len(events), 3):
        push(rig.attempt, events[place : place + 3], first=place + 1, step=1)


@pytest.mark.parametrize("whole", [True, False], ids=["one batch", "five batches"])
def test_each_second_shows_what_had_been_told_by_then(whole: bool) -> None:
    rig = new_rig()
    told(rig, whole=whole)
    before = travel.at(rig.run, T0)
    assert (before["state"], before["attempt"], before["logs"], before["samples"]) == (None, None, [], [])
    early = travel.at(rig.run, T0 + 5.5)
    assert early["state"]["samples"]["trained"] == 0 and early["state"]["seq"] == 2
    assert [row["completion"] for row in early["samples"]] == ["early"]
    assert [row["message"] for row in early["logs"]] == ["first"]
    assert (len(early["syncs"]), early["evaluations"], early["checkpoint"], early["lag"]) == (1, [], None, None)
    later = travel.at(rig.run, T0 + 13)
    assert later["state"]["samples"]["trained"] == 128 and later["attempt"]["ingested_through"] == 13
    assert [row["completion"] for row in later["samples"]] == ["late", "early"]
    assert [row["message"] for row in later["logs"]] == ["first", "second"]
    assert (later["evaluations"][0]["mean"], later["checkpoint"]["step"], later["lag"]["counts"]) == (0.25, 1, {"0": 5})
    assert travel.at(rig.run, T0 + 1e6)["state"]["seq"] == 13, "after the end it is as it was at the end"


def test_the_exact_second_counts_and_the_one_before_does_not() -> None:
    rig = new_rig()
    told(rig)
    assert travel.at(rig.run, T0 + 6)["state"]["seq"] == 6
    assert travel.at(rig.run, T0 + 5.999)["state"]["seq"] == 2


def test_a_resume_is_another_attempt_from_its_first_word_on() -> None:
    rig = new_rig()
    told(rig)
    second = rig.resume(2)
    events = story()
    columns = Columns(1, [T0 + 100 + i for i in range(3)], [1] * 3, [kind for kind, _ in events[:3]], [data for _, data in events[:3]])
    ingest(second.public_id, 2, columns)
    assert travel.at(rig.run, T0 + 99)["attempt"]["number"] == 1
    now = travel.at(rig.run, T0 + 101)
    assert (now["attempt"]["number"], now["state"]["samples"]["trained"], now["attempts"]) == (2, 0, [1, 2])
    axis = travel.axis(rig.run)
    assert (axis["start"], axis["end"], [row["number"] for row in axis["attempts"]]) == (T0 + 1, T0 + 102, [1, 2])
    assert axis["marks"]["sync"] == [[T0 + 4, 1, 1]] and axis["marks"]["evaluation"] == [[T0 + 7, 0.25, 1]]


def test_the_state_of_the_run_follows_its_moves_and_an_uploads_its_events() -> None:
    rig = new_rig()
    told(rig)
    lifecycle.attempt_finished(rig.attempt, "failed", cause={"message": "m"})
    moves = RunTransition.unscoped.filter(run=rig.run).order_by("pk")
    assert [row.to_state for row in moves] == ["running", "failed"]
    at = moves[1].at.timestamp()
    assert travel.at(rig.run, at - 0.0001)["run"]["state"] == "running"
    assert travel.at(rig.run, at + 0.0001)["run"]["state"] == "failed"
    upload = new_rig()
    upload.run.source = "upload"
    upload.run.save()
    told(upload)
    end = ("finished", {"outcome": "succeeded", "cause": None, "summary": {}})
    push(upload.attempt, [end], first=14, step=2)
    assert travel.at(upload.run, T0 + 13)["run"]["state"] == "running"
    assert travel.at(upload.run, T0 + 14)["run"]["state"] == "succeeded"
    assert timezone.now().timestamp() > T0


def test_rebuilding_gives_the_same_past() -> None:
    rig = new_rig()
    told(rig)
    before = [travel.at(rig.run, T0 + second) for second in range(14)]
    rebuild(rig.attempt)
    assert [travel.at(rig.run, T0 + second) for second in range(14)] == before
    assert Moment.objects.for_team(rig.team).filter(attempt=rig.attempt).count() == 5


def test_the_doors(client: Client) -> None:
    rig, other = new_rig(), new_rig()
    told(rig)
    at = f"/runs/{rig.run.public_id}/"
    assert client.get(f"{at}then.json?t={T0}").status_code == 401
    client.force_login(other.user)
    assert client.get(f"{at}then.json?t={T0}").status_code == client.get(f"{at}axis.json").status_code == 404
    client.force_login(rig.user)
    for bad in ("", "x", "NaN", "1e400", "-1", "1e12"):
        reply = client.get(f"{at}then.json", {"t": bad})
        assert (reply.status_code, reply.json()["field"]) == (400, "t"), bad
    assert client.get(f"{at}then.json?t={T0 + 6}").json()["state"]["seq"] == 6
    assert client.get(f"{at}axis.json").json()["marks"]["checkpoint"] == [[T0 + 8, 1, 1]]
    empty = new_rig()
    client.force_login(empty.user)
    assert client.get(f"/runs/{empty.run.public_id}/axis.json").json()["start"] is None


def two_hours(attempt: Attempt) -> None:
    """A state a second, a step with samples every ten: 7,200 s in batches of five seconds."""
    seq = 1
    for second in range(0, 7200, 5):
        events, times = [], []
        for offset in range(5):
            step = (second + offset) // 10
            events.append(state(step, 64 * step))
            times.append(T0 + second + offset)
            if (second + offset) % 10 == 0:
                sample = {**SAMPLE, "prompt": "q " * 100, "completion": "a " * 200}
                events += [metric(0.1), ("sync", {"version": step}), ("lag", {"counts": {"0": 9}}), *[("sample", sample)] * 4]
                events.append(("log", {"level": "info", "message": f"step {step}"}))
                times += [T0 + second + offset] * 8
        columns = Columns(seq, times, [second // 10] * len(events), [kind for kind, _ in events], [data for _, data in events])
        ingest(attempt.public_id, 1, columns)
        seq += len(events)


def test_any_second_of_two_hours_opens_two_batches_at_most(monkeypatch: pytest.MonkeyPatch, django_assert_max_num_queries: Any) -> None:
    """The seconds it takes are in tests/benchmarks/bench_travel.py; here, that the work does not grow with the run."""
    rig = new_rig()
    two_hours(rig.attempt)
    opened: list[int] = []
    unpack = travel.codec.unpack
    monkeypatch.setattr(travel.codec, "unpack", lambda *given: opened.append(1) or unpack(*given))
    for place in range(10):
        opened.clear()
        with django_assert_max_num_queries(20):
            found = travel.at(rig.run, T0 + 1 + place * 719.7)
        assert found["state"] is not None and len(opened) <= 2
        assert found["state"]["t"] <= T0 + 1 + place * 719.7 < found["state"]["t"] + 1
    opened.clear()
    axis = travel.axis(rig.run)
    assert len(axis["marks"]["sync"]) == 720 and opened == []


def test_of_many_evaluations_the_newest_are_told_and_the_bar_holds_as_many_as_it_can_draw() -> None:
    rig = new_rig()
    told(rig)
    rows = [{"seq": 100 + i, "t": T0 + 20 + i, "step": i, "kind": "evaluation", "data": {"mean": float(i)}} for i in range(1600)]
    Moment.unscoped.bulk_create([Moment(attempt=rig.attempt, **row) for row in rows])
    evaluations = travel.at(rig.run, T0 + 5000)["evaluations"]
    assert (len(evaluations), evaluations[-1]["mean"]) == (500, 1599.0)
    marks = travel.axis(rig.run)["marks"]["evaluation"]
    assert 800 <= len(marks) <= travel.MOST_MARKS and marks == sorted(marks)
