"""Reads for the run page. Every function takes a run (or attempt) whose access the caller has checked, and stays in its team."""

from __future__ import annotations

from typing import Any

from django.db.models import Min
from django.utils import timezone

from headrace.experiments.models import Attempt, Run, RunTransition
from headrace.experiments.states import AttemptState
from headrace.telemetry import codec, log_lines
from headrace.telemetry import samples as sample_reads
from headrace.telemetry.models import EventBatch, LatestState, SeriesChunk
from workers.contract.events import MAX_BATCH_EVENTS

SILENT_AFTER_S = 15.0
SNAPSHOT_SAMPLES = 24
SNAPSHOT_LOG_LINES = 200
MAX_SAMPLES = sample_reads.MAX_PAGE
MAX_LOG_LINES = log_lines.MAX_LINES
WHOLE_TEXT = 20_000


def current_attempt(run: Run) -> Attempt | None:
    """The run's newest attempt."""
    return Attempt.objects.for_team(run.team_id).filter(run=run).order_by("-number").first()


def attempt_numbered(run: Run, number: int) -> Attempt | None:
    """The run's attempt of this number."""
    return Attempt.objects.for_team(run.team_id).filter(run=run, number=number).first()


def run_summary(run: Run) -> dict[str, Any]:
    """The run as pages and API name it."""
    budget = run.config.data.get("budget") if isinstance(run.config.data, dict) else None
    return {
        "id": run.public_id,
        "name": run.name,
        "state": run.state,
        "state_since": run.state_since.isoformat(),
        "created": run.created_at.isoformat(),
        "source": run.source,
        "preset": run.preset,
        "seed": run.seed,
        "project": run.project.slug,
        "config_digest": run.config.digest,
        "steps_total": budget.get("steps") if isinstance(budget, dict) else None,
        "outcome_cause": run.outcome_cause,
        "summary": run.summary,
        "control": run.control,
        "forecast": run.forecast,
    }


def run_state(run: Run) -> dict[str, Any]:
    """What a socket tells of the run itself."""
    return {"id": run.public_id, "state": run.state, "state_since": run.state_since.isoformat(), "outcome_cause": run.outcome_cause}


def attempt_summary(attempt: Attempt) -> dict[str, Any]:
    """One attempt as pages and API name it."""
    return {
        "number": attempt.number,
        "public_id": attempt.public_id,
        "state": attempt.state,
        "ingested_through": attempt.ingested_through,
        "started": attempt.started_at.isoformat() if attempt.started_at else None,
        "ended": attempt.ended_at.isoformat() if attempt.ended_at else None,
        "heartbeat": attempt.heartbeat_at.isoformat() if attempt.heartbeat_at else None,
        "heartbeat_age_s": heartbeat_age_s(attempt),
        "silent": is_silent(attempt),
        "exit_cause": attempt.exit_cause,
    }


def heartbeat_age_s(attempt: Attempt) -> float | None:
    """Seconds since the attempt was last heard; None before its first word and after its end."""
    if attempt.is_over or attempt.heartbeat_at is None:
        return None
    return round(max(0.0, (timezone.now() - attempt.heartbeat_at).total_seconds()), 1)


def is_silent(attempt: Attempt) -> bool:
    """Whether a running attempt has said nothing for SILENT_AFTER_S: hanging, cut off or dead, which the reconciler finds out."""
    age = heartbeat_age_s(attempt)
    return attempt.state == AttemptState.RUNNING and age is not None and age > SILENT_AFTER_S


def began(run: Run) -> float | None:
    """Unix seconds, on the driver's clock, of the run's first event: where every time axis begins. None: nothing was told."""
    first: float | None = EventBatch.objects.for_team(run.team_id).filter(attempt__run=run, first_seq=1).aggregate(t=Min("t0"))["t"]
    if first is None:  # retention has taken the events; what was derived of them is left
        first = SeriesChunk.objects.for_team(run.team_id).filter(attempt__run=run, level=0).aggregate(t=Min("t0"))["t"]
    return first


def latest_state(attempt: Attempt) -> dict[str, Any] | None:
    """The attempt's last word on flow and ledgers. None: it has told nothing."""
    row = LatestState.objects.for_team(attempt.team_id).filter(attempt=attempt).first()
    return _flat(row.state) if row is not None and row.state else None


def snapshot(run: Run) -> dict[str, Any]:
    """Everything the page shows before the first socket frame. `ingested_through` is read first: what comes later is refetched."""
    attempt = current_attempt(run)
    latest = LatestState.objects.for_team(run.team_id).filter(attempt=attempt).first() if attempt else None
    attempts = Attempt.objects.for_team(run.team_id).filter(run=run).order_by("number")
    transitions = RunTransition.objects.for_team(run.team_id).filter(run=run).order_by("at", "pk")
    return {
        "run": run_summary(run),
        "began": began(run),
        "attempt": attempt_summary(attempt) if attempt else None,
        "attempts": [attempt_summary(row) for row in attempts],
        "state": _flat(latest.state) if latest else None,
        "phase": _flat(latest.phase) if latest else None,
        "lag": _flat(latest.lag) if latest else None,
        "syncs": [_flat(latest.sync)] if latest and latest.sync else [],
        "checkpoint": _flat(latest.checkpoint) if latest else None,
        "finished": _flat(latest.finished) if latest else None,
        "evaluations": [_flat(row) for row in _evaluations(run)],
        "samples": samples(run, limit=SNAPSHOT_SAMPLES, longest=sample_reads.LIST_TEXT),
        "logs": logs(attempt, limit=SNAPSHOT_LOG_LINES) if attempt else [],
        "transitions": [
            {"from": row.from_state, "to": row.to_state, "at": row.at.isoformat(), "actor": row.actor, "cause": row.cause}
            for row in transitions
        ],
        "provenance": attempt.provenance if attempt else {},
    }


def events(attempt: Attempt, after: int, limit: int) -> list[dict[str, Any]]:
    """Stored events after seq `after`, oldest first; a sample's token columns are left to `sample_detail.detail`."""
    limit = max(1, min(limit, MAX_BATCH_EVENTS))
    found: list[dict[str, Any]] = []
    stored = EventBatch.objects.for_team(attempt.team_id).filter(attempt=attempt, last_seq__gt=after).order_by("first_seq")
    for batch in stored.iterator(chunk_size=8):
        for event in codec.unpack(batch.body, batch.first_seq, batch.codec).events():
            if event.seq > after:
                row = event.as_dict()
                row["data"] = {key: value for key, value in event.data.items() if not (event.kind == "sample" and key == "tokens")}
                found.append(row)
                if len(found) == limit:
                    return found
    return found


def samples(
    run: Run, *, step: int | None = None, outcome: str = "", text: str = "", limit: int = MAX_SAMPLES, longest: int = WHOLE_TEXT
) -> list[dict[str, Any]]:
    """The newest samples of the run that fit, newest first; texts are cut at `longest` characters."""
    wanted = sample_reads.Filters(step=step, outcome=outcome, text=text)
    return sample_reads.newest(run, wanted, limit=min(limit, MAX_SAMPLES), longest=longest)


def logs(attempt: Attempt, *, after: int | None = None, limit: int = MAX_LOG_LINES) -> list[dict[str, Any]]:
    """Log lines, oldest first: the first `limit` after seq `after`, or without it the last `limit`."""
    every = log_lines.Wanted()
    found = log_lines.before(attempt, every, None, limit) if after is None else log_lines.after(attempt, every, after, limit)
    lines: list[dict[str, Any]] = found["logs"]
    return lines


def _evaluations(run: Run) -> list[dict[str, Any]]:
    rows = LatestState.objects.for_team(run.team_id).filter(attempt__run=run).select_related("attempt").order_by("attempt__number")
    return [{**item, "attempt": row.attempt.number} for row in rows for item in row.evaluation or []]


def _flat(summary: dict[str, Any] | None) -> dict[str, Any] | None:
    """Event data with its seq, time and step beside it."""
    if summary is None:
        return None
    return {**{key: value for key, value in summary.items() if key != "data"}, **summary["data"]}
