"""Stopping runs for good: used by cancel when a driver does not comply, and by the supervisor's shutdown."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from django.db import transaction

from headrace.dispatch import remains
from headrace.dispatch.launcher import jobs_of
from headrace.dispatch.ray_jobs import ABSENT, TERMINAL, RayUnreachable
from headrace.dispatch.remains import Remains
from headrace.experiments import lifecycle
from headrace.experiments.models import Attempt, Run
from headrace.experiments.services import cancel_run
from headrace.experiments.states import RunState

log = logging.getLogger(__name__)

RAY_PATIENCE_S = 2.0  # a stop must not wait for a Ray that hangs


def stop_everything(run_public_id: str, job_wait_s: float = 3.5, *, grace_s: float = 1.0) -> Remains:
    """Stops the run's jobs at Ray, ends what still carries its id here, unlinks its shared memory. Returns what is left.

    Ray being away or slow is no obstacle: the processes of this machine are found by their environment.
    """
    attempts = Attempt.unscoped.select_related("run", "cluster").filter(run__public_id=run_public_id).exclude(submission_id="")
    for attempt in attempts:
        _stop_job(attempt, job_wait_s)
    return remains.remove(run_public_id, grace_s)


def stop_attempt(attempt: Attempt, job_wait_s: float = 0.5) -> Remains:
    """The same for one attempt: what belongs to a newer attempt of its run goes on."""
    _stop_job(attempt, job_wait_s)
    alone = lifecycle.is_current(attempt)
    return remains.remove_attempt(attempt.run.public_id, attempt.public_id, number=attempt.number, alone=alone)


def _stop_job(attempt: Attempt, wait_s: float) -> None:
    jobs = replace(jobs_of(attempt), timeout_s=RAY_PATIENCE_S)
    try:
        if not attempt.submission_id or jobs.status(attempt.submission_id) in TERMINAL | {ABSENT}:
            return
        jobs.stop(attempt.submission_id)
        deadline = time.monotonic() + wait_s
        while time.monotonic() < deadline:
            if jobs.status(attempt.submission_id) in TERMINAL | {ABSENT} and remains.gone(attempt.run.public_id):
                return
            time.sleep(0.1)
    except RayUnreachable as error:
        log.warning("stop of run %s: %s", attempt.run.public_id, error)


def newest_attempt(run: Run) -> Attempt | None:
    return Attempt.unscoped.filter(run=run).order_by("-fence").first()


def settle_cancelled(run: Run, attempt: Attempt | None, actor: str, cause: str) -> None:
    """Called after `stop_everything`: the run and the attempt that was stopped are over, as cancelled. Stopping takes seconds: a run that
    has been resumed meanwhile, because that attempt had ended by itself, goes on."""
    with transaction.atomic():
        if attempt is not None:
            lifecycle.attempt_finished(attempt, "cancelled", cause=cause, actor=actor)
        locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
        if not locked.is_over and newest_attempt(locked) == attempt:
            lifecycle.transition(locked, RunState.CANCELLED, cause=cause, actor=actor, attempt=attempt)
    run.refresh_from_db()


def stop_active_runs(*, grace_s: float, patience: Callable[[], bool] = lambda: True, actor: str = "supervisor") -> list[str]:
    """Asks every run that has a job to stop, waits up to `grace_s`, then stops the rest by force. Returns their public ids.

    Queued runs stay queued: they hold nothing, and start with the next `headrace up`. Uploads run elsewhere and are left alone.
    """
    with_job = (RunState.LAUNCHING, RunState.RUNNING, RunState.PAUSED, RunState.STOPPING)
    active = Run.unscoped.filter(state__in=with_job).exclude(source=Run.Source.UPLOAD)
    runs = list(active)
    for run in runs:
        cancel_run(run, None)  # the wish rides to the driver on the next ingest reply
    deadline = time.monotonic() + grace_s
    ids = [run.pk for run in runs]
    while active.filter(pk__in=ids).exists() and time.monotonic() < deadline and patience():
        time.sleep(0.1)
    if runs:
        with ThreadPoolExecutor(max_workers=min(8, len(runs))) as pool:
            list(pool.map(lambda run: stop_everything(run.public_id, job_wait_s=1.0), runs))
    for run in active.filter(pk__in=ids):
        settle_cancelled(run, newest_attempt(run), actor, "the server was stopped; the last complete checkpoint stands")
    return [run.public_id for run in runs]
