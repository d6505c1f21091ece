"""What is derived of events: samples, logs, latest values, the run's state, artifacts; and the same again from the events alone."""

from __future__ import annotations

from typing import Any

import pytest
from django.core.management import call_command
from django.core.management.base import CommandError

from headrace.experiments.models import Artifact, Run, RunTransition
from headrace.telemetry import log_lines, selectors
from headrace.telemetry.columns import concatenate, unpack
from headrace.telemetry.ingest import rebuild
from headrace.telemetry.models import LatestState, LogChunk, Sample, Series, SeriesChunk
from tests.platform_tests.telemetry_rig import SAMPLE, STATE, Rig, metric, new_rig, push

pytestmark = pytest.mark.django_db


@pytest.fixture
def rig() -> Rig:
    return new_rig()


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
        "logs": [line for attempt_line in [log_lines.before(rig.attempt, log_lines.Wanted(), None, 100)["logs"]] for line in attempt_line],
        "latest": {key: value for key, value in latest.items() if key not in ("id", "updated_at")},
    }
