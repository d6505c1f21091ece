"""Ingest stores each event once, whatever the sender repeats, overlaps or leaves out."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import transaction
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.experiments.models import Artifact, Run, RunTransition
from headrace.telemetry import codec, selectors
from headrace.telemetry.ingest import ingest, rebuild
from headrace.telemetry.models import EventBatch, LatestState, LogChunk, Sample, Series, SeriesChunk
from headrace.telemetry.problems import BadBody, Conflict, FencedOut, Gap, IngestProblem, QuotaExceeded, TooLarge
from tests.platform_tests.telemetry_rig import SAMPLE, STATE, Rig, columns, document, metric, new_rig, push

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


def test_samples_logs_and_latest_are_derived(rig: Rig) -> None:
    push(
        rig.attempt,
        [
            ("sample", SAMPLE),
            ("sample", {**SAMPLE, "outcome": "failed", "reward": None, "completion": "nul \x00 and \ud800"}),
            ("log", {"level": "info", "message": "one", "source": "trainer"}),
            ("log", {"level": "warning", "message": "two"}),
            ("state", STATE),
            ("state", {**STATE, "step": 4}),
            ("evaluation", {"version": 0, "mean": 0.2}),
            ("evaluation", {"version": 5, "mean": 0.6}),
        ],
    )
    good, failed = Sample.unscoped.order_by("seq")
    assert (good.reward, good.token_count, good.version_max) == (1.0, 2, 2)
    assert failed.reward is None and failed.completion == "nul \ufffd and ?"
    chunk = LogChunk.unscoped.get()
    assert (chunk.count, chunk.worst_level) == (2, "warning")
    latest = LatestState.unscoped.get()
    assert latest.state["data"]["step"] == 4 and latest.seq == 8
    assert [row["mean"] for row in selectors.snapshot(rig.run)["evaluations"]] == [0.2, 0.6]


def test_started_and_finished_move_the_run_once(rig: Rig) -> None:
    started = ("started", {"config_digest": "d", "provenance": {"torch": "2"}, "resumed_from": None, "lanes": ["trainer"]})
    push(rig.attempt, [started])
    rig.run.refresh_from_db()
    assert rig.run.state == "running"
    finished = ("finished", {"outcome": "succeeded", "cause": None, "log_tail": [], "summary": {"steps": 20}})
    push(rig.attempt, [finished], first=2)
    push(rig.attempt, [finished], first=2)
    run = Run.unscoped.get(pk=rig.run.pk)
    assert (run.state, run.summary) == ("succeeded", {"steps": 20})
    assert list(RunTransition.unscoped.order_by("pk").values_list("to_state", flat=True)) == ["running", "succeeded"]
    rig.attempt.refresh_from_db()
    assert rig.attempt.provenance["torch"] == "2" and rig.attempt.state == "succeeded"


def test_a_failure_keeps_its_first_cause(rig: Rig) -> None:
    cause = {"type": "EngineError", "message": "out of memory", "cure": "fewer slots"}
    push(rig.attempt, [("started", {}), ("finished", {"outcome": "failed", "cause": cause, "log_tail": ["a", "b"], "summary": {}})])
    run = Run.unscoped.get(pk=rig.run.pk)
    assert run.state == "failed" and run.outcome_cause["message"] == "out of memory" and run.outcome_cause["log_tail"] == ["a", "b"]


def test_the_reply_carries_what_people_ask(rig: Rig) -> None:
    rig.run.control = {"cancel": True, "checkpoint_now": 2}
    rig.run.save(update_fields=["control"])
    control = push(rig.attempt, [metric(1.0)]).control
    assert control.cancel and control.checkpoint_now == 2


def test_a_checkpoint_becomes_an_artifact(rig: Rig) -> None:
    event = ("checkpoint", {"path": "/runs/x/step-5", "step": 5, "version": 5, "bytes": 10, "sha256": "ab"})
    push(rig.attempt, [event])
    artifact = Artifact.unscoped.get()
    assert (artifact.kind, artifact.step, artifact.bytes, artifact.run_id) == ("checkpoint", 5, 10, rig.run.pk)


def test_derived_equals_rebuilt(rig: Rig) -> None:
    """Thirty batches of several kinds; every derived row comes back the same from the events alone."""
    seq = 1
    for batch in range(40):
        events: list[tuple[str, dict[str, Any]]] = [
            ("metrics", {"values": {"a": batch / 3, "b": "NaN" if batch % 7 == 0 else -batch}}),
            (
                "points",
                {"name": "dense", "t": [float(i) for i in range(300)], "step": [batch] * 300, "value": [i * 0.1 for i in range(300)]},
            ),
            ("lag", {"counts": {"0": 10, str(batch % 4): 3}}),
            ("sample", SAMPLE),
            ("log", {"level": "info", "message": f"batch {batch}"}),
            ("state", {**STATE, "step": batch}),
        ]
        push(rig.attempt, events, first=seq)
        seq += len(events)
    before = derived_content(rig)
    assert rebuild(rig.attempt) == 40
    assert derived_content(rig) == before
    assert before["series"]["dense"][0] == 12_000 and any(key.startswith("dense/1") for key in before["levels"])


def test_the_rebuild_command(rig: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    push(rig.attempt, [metric(0.5)])
    Series.unscoped.all().delete()
    call_command("rebuild_telemetry", rig.run.public_id)
    assert Series.unscoped.get().count == 1
    assert f"{rig.run.public_id} attempt 1: 1 batches" in capsys.readouterr().out
    with pytest.raises(CommandError):
        call_command("rebuild_telemetry", "nobody")


def derived_content(rig: Rig) -> dict[str, Any]:
    """Everything derived, without row numbers and without how the open tail happens to be cut."""
    from headrace.telemetry.columns import concatenate, unpack

    levels: dict[str, Any] = {}
    for series in Series.unscoped.filter(attempt=rig.attempt).order_by("name"):
        for level in range(4):
            chunks = SeriesChunk.unscoped.filter(series=series, level=level).order_by("index")
            rows = concatenate([unpack(chunk.body) for chunk in chunks])
            if len(rows):
                levels[f"{series.name}/{level}"] = tuple(getattr(rows, name).tobytes() for name in rows.__slots__)
    latest = LatestState.unscoped.filter(attempt=rig.attempt).values().get()
    return {
        "levels": levels,
        "series": {row.name: (row.count, row.last_seq, row.last_step, row.last_t, row.last_value) for row in Series.unscoped.all()},
        "samples": [{key: value for key, value in row.items() if key != "id"} for row in Sample.unscoped.order_by("seq").values()],
        "logs": [line for attempt_line in [selectors.logs(rig.attempt)] for line in attempt_line],
        "latest": {key: value for key, value in latest.items() if key not in ("id", "updated_at")},
    }
