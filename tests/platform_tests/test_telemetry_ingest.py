"""Ingest stores each event once, whatever the sender repeats, overlaps or leaves out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.experiments import lifecycle
from headrace.experiments.models import Run
from headrace.telemetry import codec
from headrace.telemetry.ingest import heard, ingest
from headrace.telemetry.models import EventBatch, LatestState, Series, SeriesChunk
from headrace.telemetry.problems import BadBody, Conflict, FencedOut, Gap, IngestProblem, QuotaExceeded, TooLarge
from tests.platform_tests.telemetry_rig import SAMPLE, Rig, columns, document, metric, new_rig, push

pytestmark = pytest.mark.django_db


@pytest.fixture
def rig() -> Rig:
    return new_rig()


def stored_events(rig: Rig) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for batch in EventBatch.unscoped.filter(attempt=rig.attempt).order_by("first_seq"):
        rows += [event.as_dict() for event in codec.unpack(batch.body, batch.first_seq, batch.codec).events()]
    return rows


def test_a_batch_moves_the_mark_and_the_heartbeat(rig: Rig) -> None:
    reply = push(rig.attempt, [metric(0.5), metric(0.75)])
    rig.attempt.refresh_from_db()
    assert (reply.ingested_through, rig.attempt.ingested_through) == (2, 2)
    assert rig.attempt.heartbeat_at is not None
    assert [event["seq"] for event in stored_events(rig)] == [1, 2]


def test_a_repeat_is_stored_once_and_answers_the_mark(rig: Rig) -> None:
    push(rig.attempt, [metric(0.5), metric(0.75)])
    assert push(rig.attempt, [metric(0.5), metric(0.75)]).ingested_through == 2
    assert EventBatch.unscoped.count() == 1
    assert Series.unscoped.get().count == 2


def test_an_overlap_is_trimmed(rig: Rig) -> None:
    push(rig.attempt, [metric(1.0), metric(2.0), metric(3.0)])
    assert push(rig.attempt, [metric(3.0), metric(4.0)], first=3).ingested_through == 4
    assert [event["data"]["values"]["reward/mean"] for event in stored_events(rig)] == [1.0, 2.0, 3.0, 4.0]


def test_a_gap_names_the_expected_seq(rig: Rig) -> None:
    push(rig.attempt, [metric(1.0)])
    with pytest.raises(Gap) as caught:
        push(rig.attempt, [metric(3.0)], first=3)
    assert caught.value.body()["expected"] == 2
    assert len(stored_events(rig)) == 1


@pytest.mark.parametrize("first, values", [(1, [1.0, 9.0]), (2, [9.0]), (2, [9.0, 3.0])])
def test_other_content_under_a_stored_seq_is_a_conflict(rig: Rig, first: int, values: list[float]) -> None:
    push(rig.attempt, [metric(1.0), metric(2.0)])
    with pytest.raises(Conflict) as caught:
        push(rig.attempt, [metric(value) for value in values], first=first)
    assert caught.value.body()["seq"] == 2
    assert len(stored_events(rig)) == 2


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(sends=st.lists(st.tuples(st.integers(1, 30), st.integers(1, 12)), min_size=1, max_size=14))
def test_any_order_of_sends_stores_a_gap_free_prefix_exactly_once(sends: list[tuple[int, int]]) -> None:
    """The sender may repeat, overlap and jump; the store holds 1..n of the one true sequence, and derived equals rebuilt."""
    with transaction.atomic():
        rig = new_rig()
        truth = [metric(seq / 8) if seq % 3 else ("log", {"level": "info", "message": f"line {seq}"}) for seq in range(1, 60)]
        mark = 0
        for first, size in sends:
            part = truth[first - 1 : first - 1 + size]
            if first > mark + 1:
                with pytest.raises(Gap) as caught:
                    push(rig.attempt, part, first=first)
                assert caught.value.expected == mark + 1
            else:
                mark = max(mark, first + size - 1)
                assert push(rig.attempt, part, first=first).ingested_through == mark
        assert [(event["seq"], event["kind"], event["data"]) for event in stored_events(rig)] == [
            (seq, *truth[seq - 1]) for seq in range(1, mark + 1)
        ]
        assert sum(Series.unscoped.filter(attempt=rig.attempt).values_list("count", flat=True)) == mark - mark // 3
        transaction.set_rollback(True)


def test_an_old_fence_is_refused_and_its_spool_can_be_replayed(rig: Rig) -> None:
    push(rig.attempt, [metric(1.0)])
    rig.resume(2)
    with pytest.raises(FencedOut):
        push(rig.attempt, [metric(2.0)], first=2)
    with pytest.raises(FencedOut):
        ingest(rig.attempt.public_id, 2, columns([metric(2.0)], first=2))
    assert push(rig.attempt, [metric(2.0)], first=2, replay=True).ingested_through == 2


def test_a_refused_batch_leaves_nothing(rig: Rig) -> None:
    with pytest.raises(IngestProblem):
        push(rig.attempt, [metric(1.0), ("metrics", {"values": {"bad name": 1.0}})])
    assert EventBatch.unscoped.count() == Series.unscoped.count() == SeriesChunk.unscoped.count() == 0
    rig.attempt.refresh_from_db()
    assert rig.attempt.ingested_through == 0


def test_non_finite_values_are_stored_exactly(rig: Rig) -> None:
    push(rig.attempt, [metric("NaN"), metric("Infinity"), metric("-Infinity"), metric(0.1)])
    from headrace.telemetry.columns import unpack

    values = unpack(SeriesChunk.unscoped.get().body).first.tolist()
    assert math.isnan(values[0]) and values[1:] == [math.inf, -math.inf, 0.1]
    assert stored_events(rig)[0]["data"]["values"]["reward/mean"] == "NaN"
    assert Series.unscoped.get().last_value == 0.1


@pytest.mark.parametrize(
    "event, field",
    [
        (("metrics", {"values": {"": 1}}), "data.0.values"),
        (("metrics", {"values": {"x" * 121: 1}}), "data.0.values"),
        (("metrics", {"values": {"a\n": 1}}), "data.0.values"),
        (("metrics", {"values": {"a": "12"}}), "data.0.values.a"),
        (("metrics", {"values": {"a": True}}), "data.0.values.a"),
        (("metrics", {"values": {"a": 10**400}}), "data.0.values.a"),
        (("metrics", {"values": [1]}), "data.0.values"),
        (("points", {"name": "a", "t": [1.0], "step": [1, 2], "value": [1.0]}), "data.0"),
        (("points", {"name": "a", "t": ["x"], "step": [1], "value": [1.0]}), "data.0.t"),
        (("points", {"name": "a", "t": [1.0], "step": [-1], "value": [1.0]}), "data.0.step.0"),
        (("lag", {"counts": {"-1": 3}}), "data.0.counts"),
        (("lag", {"counts": {"1": 2.5}}), "data.0.counts.1"),
        (("log", {"level": "loud", "message": "x"}), "data.0.level"),
        (("sample", {**SAMPLE, "outcome": "fine"}), "data.0.outcome"),
        (("sample", {**SAMPLE, "reward": "good"}), "data.0.reward"),
        (("finished", {"outcome": "perhaps"}), "data.outcome"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(rig: Rig, event: tuple[str, dict[str, Any]], field: str) -> None:
    with pytest.raises(IngestProblem) as caught:
        push(rig.attempt, [event])
    body = caught.value.body()
    assert body["field"] == field and body["cure"] and caught.value.status == 422


@pytest.mark.parametrize(
    "change, field",
    [
        ({"fence": 0}, "fence"),
        ({"first_seq": 0}, "first_seq"),
        ({"kind": ["rumour"]}, "kind.0"),
        ({"t": []}, "body"),
        ({"t": ["Infinity"]}, "t.0"),
        ({"step": [-1]}, "step.0"),
        ({"step": [2**70]}, "step.0"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_wrong_envelope_is_refused_by_name(change: dict[str, Any], field: str) -> None:
    with pytest.raises(IngestProblem) as caught:
        codec.parse_batch(json.dumps({**document([metric(1.0)]), **change}).encode())
    assert caught.value.field == field


@pytest.mark.parametrize("body", [b"", b"[1]", b'{"a":', b"\xff", b"[" * 200_000, b'{"fence": NaN}'])
def test_what_is_not_a_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(IngestProblem):
        codec.parse_batch(body)


def test_a_number_beyond_floats_is_refused(rig: Rig) -> None:
    body = json.dumps(document([metric(0.125)])).replace("0.125", "1e999").encode()
    with pytest.raises(BadBody):
        ingest(rig.attempt.public_id, 1, codec.parse_batch(body)[1])


def test_decompression_is_bounded() -> None:
    import gzip

    with pytest.raises(TooLarge):
        codec.read_body(gzip.compress(b" " * (64 * 1024 * 1024)), "gzip")
    with pytest.raises(BadBody):
        codec.read_body(gzip.compress(b"{}")[:-4], "gzip")
    with pytest.raises(BadBody):
        codec.read_body(b"{}", "br")


def test_the_names_of_a_run_are_limited(rig: Rig, settings: Any) -> None:
    settings.HEADRACE_MAX_SERIES_NAMES = 3
    push(rig.attempt, [("metrics", {"values": {"a": 1, "b": 1, "c": 1}})])
    with pytest.raises(QuotaExceeded):
        push(rig.attempt, [("metrics", {"values": {"d": 1}})], first=2)
    assert push(rig.attempt, [("metrics", {"values": {"a": 2}})], first=2).ingested_through == 2
    second = rig.resume(2)
    assert push(second, [("metrics", {"values": {"a": 1, "b": 1}})]).ingested_through == 1


def test_a_refused_batch_is_a_sign_of_life(rig: Rig) -> None:
    with pytest.raises(IngestProblem):
        push(rig.attempt, [("metrics", {"values": {"bad name": 1.0}})])
    rig.attempt.refresh_from_db()
    assert rig.attempt.heartbeat_at is not None and rig.attempt.ingested_through == 0


def test_order_is_asked_before_content(rig: Rig) -> None:
    with pytest.raises(Gap):
        push(rig.attempt, [("metrics", {"values": {"bad name": 1.0}})], first=7)


def test_a_driver_that_was_given_up_is_told_to_stop(rig: Rig) -> None:
    assert not push(rig.attempt, [("started", {"resumed_from": None})]).control.cancel
    lifecycle.attempt_finished(rig.attempt, "lost", cause="silent")
    assert push(rig.attempt, [metric(1.0)], first=2).control.cancel
    assert not push(rig.attempt, [metric(2.0)], first=3, replay=True).control.cancel
    assert not push(rig.attempt, [("finished", {"outcome": "succeeded"})], first=4, replay=True).control.cancel


def test_asking_for_the_mark_is_a_sign_of_life_and_tells_what_is_wanted(rig: Rig) -> None:
    assert not heard(rig.attempt).control.cancel
    rig.attempt.refresh_from_db()
    assert rig.attempt.heartbeat_at is not None
    second = rig.resume(2)
    assert heard(rig.attempt).control.cancel and not heard(second).control.cancel
    lifecycle.attempt_finished(second, "lost", cause="silent")
    assert heard(second).control.cancel


@pytest.mark.parametrize("together", [True, False])
def test_an_upload_that_was_resumed_in_place_ends_by_its_last_word(rig: Rig, together: bool) -> None:
    Run.unscoped.filter(pk=rig.run.pk).update(source=Run.Source.UPLOAD)
    started, failed = ("started", {"resumed_from": None}), ("finished", {"outcome": "failed", "cause": {"message": "no disk"}})
    story = [started, failed, ("started", {"resumed_from": {"step": 2}}), ("finished", {"outcome": "succeeded", "summary": {"steps": 3}})]
    states = []
    for size in [4] if together else [1, 1, 1, 1]:
        rig.attempt.refresh_from_db()
        push(rig.attempt, story[rig.attempt.ingested_through :][:size], first=rig.attempt.ingested_through + 1)
        rig.run.refresh_from_db()
        states.append(rig.run.state)
    assert states == (["succeeded"] if together else ["running", "failed", "running", "succeeded"])
    assert (rig.run.summary, rig.run.outcome_cause) == ({"steps": 3}, None)


def test_an_upload_that_runs_again_has_no_end_yet(rig: Rig) -> None:
    Run.unscoped.filter(pk=rig.run.pk).update(source=Run.Source.UPLOAD)
    started, failed = ("started", {"resumed_from": None}), ("finished", {"outcome": "failed", "cause": {"message": "no disk"}})
    push(rig.attempt, [started, failed, started])
    rig.run.refresh_from_db()
    rig.attempt.refresh_from_db()
    assert rig.run.state == "running" and rig.run.outcome_cause is None and rig.attempt.ended_at is None
    assert LatestState.unscoped.get().finished is None


def test_a_launched_run_is_not_reopened(rig: Rig) -> None:
    push(rig.attempt, [("started", {"resumed_from": None}), ("finished", {"outcome": "failed", "cause": {"message": "no disk"}})])
    push(rig.attempt, [("started", {"resumed_from": None})], first=3)
    rig.run.refresh_from_db()
    assert rig.run.state == "failed"


def test_a_spool_that_is_read_back_is_no_sign_of_life(rig: Rig) -> None:
    push(rig.attempt, [metric(1.0)], replay=True)
    heard(rig.attempt, replay=True)
    with pytest.raises(Gap):
        push(rig.attempt, [metric(1.0)], first=9, replay=True)
    rig.attempt.refresh_from_db()
    assert rig.attempt.ingested_through == 1 and rig.attempt.heartbeat_at is None
