"""A run as it was at any second. Gauges and both ledgers are absolute, so the state at t is the last `state` event before t.

One batch of the log is decoded, sometimes two; everything rarer is read from `Moment`, samples and log by their own readers.
Every function takes a run whose access the caller has checked, and stays in its team.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from django.utils import timezone

from headrace.experiments.models import Attempt, Run, RunTransition
from headrace.experiments.states import RunState
from headrace.telemetry import codec, log_lines, samples, series
from headrace.telemetry.codec import Event
from headrace.telemetry.models import EventBatch, LatestState, Moment
from headrace.telemetry.selectors import SNAPSHOT_LOG_LINES, SNAPSHOT_SAMPLES
from headrace.telemetry.store import KEPT_EVALUATIONS

BATCHES_BACK = 12  # a state comes every second: further back than this there is none to be found
SYNCS_SHOWN = 20
MOST_MARKS = 1500
STEPS_BY = "reward/mean"  # told once a step


def at(run: Run, t: float) -> dict[str, Any]:
    """The run's page as it was at Unix second t: what `selectors.snapshot` gives, of then. Before the first event the parts are null."""
    attempt = _attempt_at(run, t)
    seq, state = _last_state(attempt, t) if attempt is not None else (0, None)
    moments = _moments(attempt, seq) if attempt is not None else {}
    finished = moments.get("finished")
    return {
        "t": t,
        "run": {"state": _run_state(run, t, started="started" in moments, finished=finished), "state_since": _since(run, t)},
        "attempt": None if attempt is None else {"number": attempt.number, "public_id": attempt.public_id, "ingested_through": seq},
        "attempts": [row.number for row in _attempts(run) if row.number <= (attempt.number if attempt else 1)],
        "state": _flat(state) if state is not None else None,
        "phase": moments.get("phase"),
        "lag": moments.get("lag"),
        "syncs": _syncs(attempt, seq) if attempt is not None else [],
        "checkpoint": moments.get("checkpoint"),
        "finished": finished,
        "evaluations": _evaluations(run, t),
        "samples": samples.page(run, samples.Filters(until=t), limit=SNAPSHOT_SAMPLES)["samples"] if attempt is not None else [],
        "logs": log_lines.before(attempt, log_lines.Wanted(), seq + 1, SNAPSHOT_LOG_LINES)["logs"] if attempt is not None else [],
        "transitions": [row for row in _transitions(run) if datetime.fromisoformat(row["at"]).timestamp() <= t],
        "provenance": attempt.provenance if attempt is not None and "started" in moments else {},
    }


def axis(run: Run) -> dict[str, Any]:
    """What the time bar is drawn from: start and end in Unix seconds, attempts, and marks by kind as [t, number or word, more]."""
    attempts = []
    for attempt in _attempts(run):
        batches = EventBatch.objects.for_team(run.team_id).filter(attempt=attempt)
        first = batches.order_by("first_seq").values_list("t0", flat=True).first()
        if first is not None:
            last = batches.order_by("-first_seq").values_list("t1", flat=True).first()
            attempts.append({"number": attempt.number, "start": first, "end": last, "state": attempt.state})
    moved = _transitions(run)
    if not attempts:
        return {"start": None, "end": None, "attempts": [], "marks": {}, "over": run.is_over}
    columns = series.read(run, [STEPS_BY], x="time", buckets=MOST_MARKS).get(STEPS_BY, {"t": [], "step": []})
    marks: dict[str, list[Any]] = {"step": [list(pair) for pair in zip(columns["t"], columns["step"], strict=True)]}
    rows = Moment.objects.for_team(run.team_id).filter(attempt__run=run).order_by("attempt__number", "seq")
    for kind, value in (("sync", "version"), ("evaluation", "mean"), ("checkpoint", "step")):
        # Of a run of days there are more than can be drawn: their data stays in the database
        keys = list(rows.filter(kind=kind).values_list("pk", flat=True))
        found = rows.filter(pk__in=keys[:: max(1, math.ceil(len(keys) / MOST_MARKS))]).values_list("t", "data", "step")
        marks[kind] = [[t, data.get(value), step] for t, data, step in found]
    start, end = min(row["start"] for row in attempts), max(row["end"] for row in attempts)
    told = [[datetime.fromisoformat(row["at"]).timestamp(), row["to"]] for row in moved]
    marks["state"] = [mark for mark in told if start - 600 <= mark[0] <= end + 600]
    return {"start": start, "end": end, "attempts": attempts, "marks": marks, "over": run.is_over}


def _attempts(run: Run) -> list[Attempt]:
    return list(Attempt.objects.for_team(run.team_id).filter(run=run).order_by("number"))


def _attempt_at(run: Run, t: float) -> Attempt | None:
    """The newest attempt that had spoken by t."""
    for attempt in reversed(_attempts(run)):
        if EventBatch.objects.for_team(run.team_id).filter(attempt=attempt, t0__lte=t).exists():
            return attempt
    return None


def _last_state(attempt: Attempt, t: float) -> tuple[int, Event | None]:
    """(seq of the last event by t, the last state event by then)."""
    log = EventBatch.objects.for_team(attempt.team_id).filter(attempt=attempt)
    newest = log.filter(t0__lte=t).order_by("-t0", "-first_seq").values_list("first_seq", flat=True).first()
    if newest is None:
        return 0, None
    seq = 0
    for batch in log.filter(first_seq__lte=newest).order_by("-first_seq")[:BATCHES_BACK].iterator(chunk_size=1):
        columns = codec.unpack(batch.body, batch.first_seq, batch.codec)
        places = [place for place, told in enumerate(columns.t) if told <= t]
        if not places:
            continue
        seq = seq or columns.first_seq + places[-1]
        said = [place for place in places if columns.kind[place] == "state"]
        if said:
            place = said[-1]
            return seq, Event(columns.first_seq + place, columns.t[place], columns.step[place], "state", columns.data[place])
    # Longer silent than a state's beat: the last one told stands, if the log ends here
    latest = LatestState.objects.for_team(attempt.team_id).filter(attempt=attempt).first()
    kept = latest.state if latest is not None else None
    if kept is not None and kept["t"] <= t and kept["seq"] <= seq:
        return seq, Event(kept["seq"], kept["t"], kept["step"], "state", kept["data"])
    return seq, None


def _moments(attempt: Attempt, seq: int) -> dict[str, dict[str, Any]]:
    """The last moment of each kind up to event seq, flat."""
    found = {}
    rows = Moment.objects.for_team(attempt.team_id).filter(attempt=attempt, seq__lte=seq)
    for kind in ("started", "phase", "lag", "checkpoint", "finished"):
        row = rows.filter(kind=kind).order_by("-seq").first()
        if row is not None:
            found[kind] = _row(row)
    if "finished" in found and "started" in found and found["started"]["seq"] > found["finished"]["seq"]:
        del found["finished"]  # resumed in its own folder: the end was taken back
    return found


def _syncs(attempt: Attempt, seq: int) -> list[dict[str, Any]]:
    rows = Moment.objects.for_team(attempt.team_id).filter(attempt=attempt, kind="sync", seq__lte=seq).order_by("-seq")
    return [_row(row) for row in rows[:SYNCS_SHOWN]]


def _evaluations(run: Run, t: float) -> list[dict[str, Any]]:
    rows = Moment.objects.for_team(run.team_id).filter(attempt__run=run, kind="evaluation", t__lte=t).select_related("attempt")
    newest = rows.order_by("-attempt__number", "-seq")[:KEPT_EVALUATIONS]
    return [{**_row(row), "attempt": row.attempt.number} for row in newest][::-1]


def _transitions(run: Run) -> list[dict[str, Any]]:
    rows = RunTransition.objects.for_team(run.team_id).filter(run=run).order_by("at", "pk")
    return [{"from": row.from_state, "to": row.to_state, "at": row.at.isoformat(), "actor": row.actor, "cause": row.cause} for row in rows]


def _run_state(run: Run, t: float, *, started: bool, finished: dict[str, Any] | None) -> str:
    """By the transitions, which are the server's; where they came later than the events (an upload, a late spool), by the events."""
    told = [row["to"] for row in _transitions(run) if datetime.fromisoformat(row["at"]).timestamp() <= t]
    state = told[-1] if told else RunState.QUEUED
    if state in (RunState.QUEUED, RunState.LAUNCHING) and started and (run.source == Run.Source.UPLOAD or not told):
        state = RunState.RUNNING
    if finished is not None and state not in RunState.over() and finished.get("outcome") in RunState.over():
        state = finished["outcome"]
    return str(state)


def _since(run: Run, t: float) -> str:
    told = [row["at"] for row in _transitions(run) if datetime.fromisoformat(row["at"]).timestamp() <= t]
    return told[-1] if told else min(run.created_at, datetime.fromtimestamp(max(0.0, min(t, timezone.now().timestamp())), UTC)).isoformat()


def _row(row: Moment) -> dict[str, Any]:
    return {"seq": row.seq, "t": row.t, "step": row.step, **row.data}


def _flat(event: Event) -> dict[str, Any]:
    return {"seq": event.seq, "t": event.t, "step": event.step, **event.data}
