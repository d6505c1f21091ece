"""What events do to runs: `started` sets them running, `checkpoint` records an artifact, `finished` ends them.

Called inside ingest's transaction, after the events are stored. Repeats never reach it (ingest trims them), and a state that has
moved on already is left alone, so a spool that arrives late cannot take a run back.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from headrace.experiments import lifecycle
from headrace.experiments.models import Artifact, Attempt
from headrace.experiments.states import RunState
from headrace.telemetry.codec import Columns, Event, clean_text
from headrace.telemetry.derive import Derived, clean_json
from headrace.telemetry.problems import IngestProblem

OUTCOMES = ("succeeded", "failed", "cancelled")


def apply(attempt: Attempt, new: Columns, found: Derived) -> None:
    """Act on the new events. lifecycle leaves the run alone where a later attempt exists."""
    for event in new.events():
        if event.kind == "checkpoint":
            _checkpoint(attempt, event)
    # In their own order: a folder that was resumed in place tells several starts and ends, and the last one stands
    ends: list[tuple[Event | None, Callable[[Attempt, Event], None]]] = [(found.started, _started), (found.finished, _finished)]
    for event, act in sorted(ends, key=lambda pair: pair[0].seq if pair[0] else 0):
        if event is not None:
            act(attempt, event)
    _held(attempt, found)


def _held(attempt: Attempt, found: Derived) -> None:
    """The newest state says whether the driver is paused; the run's row is touched only where it says otherwise."""
    state = found.latest.get("state")
    status = state["data"].get("status") if state else None
    # As ingest loaded it: a start in this very stretch has left "queued" or "launching" there, and a pause may follow at once.
    before = attempt.run.state
    if status == "paused" and before != RunState.PAUSED:
        lifecycle.attempt_held(attempt, True)
    elif status == "running" and before == RunState.PAUSED:
        lifecycle.attempt_held(attempt, False)


def _started(attempt: Attempt, event: Event) -> None:
    data = clean_json(event.data)
    provenance = data.pop("provenance", None)
    attempt.provenance = {**(provenance if isinstance(provenance, dict) else {}), "resumed_from": None, **data}
    attempt.save(update_fields=["provenance"])
    lifecycle.attempt_started(attempt)


def _checkpoint(attempt: Attempt, event: Event) -> None:
    path = clean_text(event.data.get("path"), 1000)
    if not path:
        raise IngestProblem("a checkpoint needs a path", field="data.path", value=event.data.get("path"), cure="send its folder")
    Artifact.unscoped.update_or_create(
        attempt=attempt,
        kind=Artifact.Kind.CHECKPOINT,
        path=path,
        defaults={
            "team_id": attempt.team_id,
            "run_id": attempt.run_id,
            "bytes": _count(event.data.get("bytes")) or 0,
            "sha256": clean_text(event.data.get("sha256"), 64),
            "step": _count(event.data.get("step", event.step)),
            "version": _count(event.data.get("version")),
        },
    )


def _finished(attempt: Attempt, event: Event) -> None:
    outcome = event.data.get("outcome")
    if outcome not in OUTCOMES:
        raise IngestProblem("not an outcome", field="data.outcome", value=outcome, cure=f"one of {', '.join(OUTCOMES)}")
    data = clean_json(event.data)
    cause = data.get("cause") if isinstance(data.get("cause"), dict) else None
    if cause is not None:
        cause = {**cause, "log_tail": data.get("log_tail") or []}
    summary = data.get("summary") if isinstance(data.get("summary"), dict) else {}
    lifecycle.attempt_finished(attempt, outcome, cause=cause, summary=summary)


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else None
