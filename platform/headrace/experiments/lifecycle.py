"""The only writer of `Run.state` and `Attempt.state`.

Every change locks its row, checks the move against `states.py`, writes a RunTransition with the cause in the same transaction, and
tells listeners after the commit. Repeating a move that has happened is a no-op, so a message that comes twice does no harm.
Locks are taken in one order everywhere: attempt, then run.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import Any

from django.db import transaction
from django.utils import timezone

from headrace.experiments.models import Attempt, Run, RunTransition
from headrace.experiments.signals import run_changed
from headrace.experiments.states import ATTEMPT_MOVES, RUN_MOVES, AttemptState, RunState, lifecycle_writes
from workers.contract.errors import HeadraceError

log = logging.getLogger(__name__)

LATE_SHIPPING = timedelta(days=7)


class InvalidTransition(HeadraceError):
    """A move the state machine does not have."""


def transition(
    run: Run, to: str, *, cause: dict[str, Any] | str | None = None, actor: str = "headrace", attempt: Attempt | None = None
) -> bool:
    """Move a run to another state. True: it moved; False: it was there already. Raises InvalidTransition otherwise.

    `cause` says why, as text or as an error's dict; `actor` is an e-mail or the name of the part that acted. `run` is brought up to
    date in place.
    """
    reason = {"message": cause} if isinstance(cause, str) else dict(cause or {})
    with transaction.atomic():
        locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
        before = locked.state
        if before == to:
            _bring_up_to_date(run, locked)
            return False
        allowed = moves_of_run(locked)
        if to not in allowed:
            raise InvalidTransition(
                f"a run that is {before} cannot become {to}",
                field="state",
                value=to,
                cure=f"from {before} a run may become: {', '.join(sorted(allowed)) or 'nothing, it is over'}",
            )
        locked.state = to
        locked.state_since = timezone.now()
        fields = ["state", "state_since"]
        if to in (RunState.FAILED, RunState.LOST, RunState.CANCELLED):
            locked.outcome_cause = reason or None
            fields.append("outcome_cause")
        elif to in (RunState.QUEUED, RunState.SUCCEEDED) or before in RunState.over():
            locked.outcome_cause = None
            fields.append("outcome_cause")
        with lifecycle_writes():
            locked.save(update_fields=fields)
        row = RunTransition.unscoped.create(
            team_id=locked.team_id, run=locked, attempt=attempt, from_state=before, to_state=to, cause=reason, actor=actor
        )
        _bring_up_to_date(run, locked)
        transaction.on_commit(lambda: _tell(locked, row))
    log.info("run %s: %s -> %s", locked.public_id, before, to, extra={"run": locked.public_id, "actor": actor})
    return True


def transition_attempt(attempt: Attempt, to: str, *, cause: dict[str, Any] | str | None = None) -> bool:
    """Move an attempt; the run is not touched. True: it moved; False: it was there already."""
    reason = {"message": cause} if isinstance(cause, str) else cause
    with transaction.atomic():
        locked = Attempt.unscoped.select_for_update(of=("self",)).get(pk=attempt.pk)
        before = locked.state
        if before == to:
            _bring_up_to_date(attempt, locked)
            return False
        allowed = moves_of_attempt(locked)
        if to not in allowed:
            raise InvalidTransition(
                f"an attempt that is {before} cannot become {to}",
                field="state",
                value=to,
                cure=f"from {before} an attempt may become: {', '.join(sorted(allowed)) or 'nothing, it is over'}",
            )
        now = timezone.now()
        locked.state, locked.state_since = to, now
        fields = ["state", "state_since"]
        if to == AttemptState.RUNNING and locked.started_at is None:
            locked.started_at = now
            fields.append("started_at")
        if to in AttemptState.over():
            locked.ended_at, locked.exit_cause = now, reason
            # A spool may be shipped later; after this the token opens nothing any more.
            locked.token_expires = now + LATE_SHIPPING
            fields += ["ended_at", "exit_cause", "token_expires"]
        elif before in AttemptState.over():
            locked.ended_at = locked.exit_cause = locked.token_expires = None
            fields += ["ended_at", "exit_cause", "token_expires"]
        with lifecycle_writes():
            locked.save(update_fields=fields)
        _bring_up_to_date(attempt, locked)
        for name in ("started_at", "ended_at", "exit_cause", "token_expires"):
            setattr(attempt, name, getattr(locked, name))
    return True


def moves_of_run(run: Run) -> frozenset[str]:
    """The table's moves; an upload may also run again, because a resume in its own folder goes on in the same spool."""
    again = run.source == Run.Source.UPLOAD and run.is_over
    return RUN_MOVES[run.state] | ({RunState.RUNNING} if again else frozenset())


def moves_of_attempt(attempt: Attempt) -> frozenset[str]:
    """As `moves_of_run`."""
    again = attempt.is_over and attempt.run.source == Run.Source.UPLOAD
    return ATTEMPT_MOVES[attempt.state] | ({AttemptState.RUNNING} if again else frozenset())


def is_current(attempt: Attempt) -> bool:
    """Whether no newer attempt of its run exists. Ask with the run's row locked."""
    return not Attempt.unscoped.filter(run_id=attempt.run_id, fence__gt=attempt.fence).exists()


def attempt_claimed(attempt: Attempt, submission_id: str) -> None:
    """Called by the launcher before Ray is asked: from here on the job, if there is one, can be found and stopped."""
    Attempt.unscoped.filter(pk=attempt.pk).update(submission_id=submission_id)
    attempt.submission_id = submission_id


def attempt_delayed(attempt: Attempt, cause: dict[str, Any]) -> None:
    """The cluster did not take the job yet. Called by the launcher; the page shows why, and a give-up names it."""
    Attempt.unscoped.filter(pk=attempt.pk, state=AttemptState.PENDING).update(exit_cause=cause)


def attempt_submitted(attempt: Attempt, submission_id: str) -> None:
    """The cluster took the job. Called by the launcher; the job's first event may have come before."""
    with transaction.atomic():
        locked = Attempt.unscoped.select_for_update(of=("self",)).get(pk=attempt.pk)
        locked.submission_id = submission_id
        if not locked.is_over:
            locked.exit_cause = None
        locked.save(update_fields=["submission_id", "exit_cause"])
        if locked.state == AttemptState.PENDING:
            transition_attempt(locked, AttemptState.SUBMITTED)
        attempt.submission_id = submission_id
        _bring_up_to_date(attempt, locked)


def attempt_started(attempt: Attempt, *, superseded: bool | None = None, actor: str = "driver") -> None:
    """The driver reported in. Called by ingest for the `started` event. `superseded` None: looked up."""
    with transaction.atomic():
        fresh, run = _locked(attempt)
        again = run.source == Run.Source.UPLOAD and fresh.is_over
        if fresh.state in (AttemptState.PENDING, AttemptState.SUBMITTED) or again:
            transition_attempt(fresh, AttemptState.RUNNING)
        if again:
            transition(run, RunState.RUNNING, cause="it was resumed in its own folder", actor=actor, attempt=fresh)
        elif _leads(fresh, superseded) and run.state in (RunState.QUEUED, RunState.LAUNCHING):
            transition(run, RunState.RUNNING, cause=_start_words(fresh), actor=actor, attempt=fresh)
        _bring_up_to_date(attempt, fresh)


def attempt_held(attempt: Attempt, held: bool, *, superseded: bool | None = None, actor: str = "driver") -> bool:
    """The driver paused, or went on. Called by ingest when a state event says so. True: the run moved; one that is stopping stays."""
    with transaction.atomic():
        fresh, run = _locked(attempt)
        before, to = (RunState.RUNNING, RunState.PAUSED) if held else (RunState.PAUSED, RunState.RUNNING)
        moved = False
        if run.state == before and not fresh.is_over and _leads(fresh, superseded):
            cause = "the driver holds at the end of a step" if held else "the driver goes on"
            moved = transition(run, to, cause=cause, actor=actor, attempt=fresh)
    return moved


def attempt_finished(
    attempt: Attempt,
    outcome: str,
    *,
    cause: dict[str, Any] | str | None = None,
    summary: dict[str, Any] | None = None,
    superseded: bool | None = None,
    actor: str = "driver",
) -> bool:
    """An attempt ended as succeeded, failed, cancelled or lost; its run follows if no newer attempt exists.

    Called by ingest for `finished`, by the launcher for a job that could not start, by the reconciler for a lost one. What is over
    stays as it is, except that a lost attempt may still report its real end. True: the run changed.
    """
    if outcome not in AttemptState.over():
        raise InvalidTransition("not an outcome", field="outcome", value=outcome, cure=f"one of {', '.join(sorted(AttemptState.over()))}")
    with transaction.atomic():
        fresh, run = _locked(attempt)
        if outcome in ATTEMPT_MOVES[fresh.state] or (fresh.state == AttemptState.PENDING and outcome == AttemptState.SUCCEEDED):
            if outcome not in ATTEMPT_MOVES[fresh.state]:
                transition_attempt(fresh, AttemptState.RUNNING)
            transition_attempt(fresh, outcome, cause=cause)
        _bring_up_to_date(attempt, fresh)
        if not _leads(fresh, superseded):
            return False
        if summary is not None:
            run.summary = summary
            run.save(update_fields=["summary"])
        if run.state == RunState.QUEUED and outcome in (RunState.SUCCEEDED, RunState.LOST):
            transition(run, RunState.LAUNCHING, cause="its attempt ended before its start was noted", actor=actor, attempt=fresh)
        if outcome not in RUN_MOVES[run.state]:
            return False
        return transition(run, outcome, cause=cause, actor=actor, attempt=fresh)


def _start_words(attempt: Attempt) -> str:
    """Where a resumed attempt began, in the driver's own words: from a checkpoint, or silently from nothing."""
    if attempt.number == 1:
        return "the engine started"
    origin = attempt.provenance.get("resumed_from")
    if isinstance(origin, dict) and origin.get("step") is not None:
        return f"the engine started from the checkpoint of step {origin['step']}"
    return "the engine started from step 0: no earlier attempt left a complete checkpoint"


def _leads(attempt: Attempt, superseded: bool | None) -> bool:
    return is_current(attempt) if superseded is None else not superseded


def _locked(attempt: Attempt) -> tuple[Attempt, Run]:
    """Both rows, locked: always the attempt first, then its run, as ingest does; the other order could deadlock with it."""
    fresh = Attempt.unscoped.select_for_update(of=("self",)).get(pk=attempt.pk)
    return fresh, Run.unscoped.select_for_update(of=("self",)).get(pk=fresh.run_id)


def _bring_up_to_date(given: Any, locked: Any) -> None:
    """Copies what the row now says into the caller's object, whose other fields stay as they are."""
    given.state, given.state_since = locked.state, locked.state_since
    given._loaded_state = locked.state
    if isinstance(given, Run):
        given.outcome_cause = locked.outcome_cause


def _tell(run: Run, row: RunTransition) -> None:
    for receiver, answer in run_changed.send_robust(sender=Run, run=run, transition=row):
        if isinstance(answer, Exception):
            log.warning("a listener of run changes failed: %r: %s", receiver, answer)
