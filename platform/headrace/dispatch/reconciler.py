"""The reconciler: its own process, one at a time by lease. Finds what a lost message, a dead driver or a deaf one left behind.

    python -m headrace.dispatch

The database is the truth. Ray unreachable means unknown, never lost; silence counts only while ingest was there to be spoken to.
"""

from __future__ import annotations

import logging
import time
from datetime import datetime, timedelta
from typing import Any

import httpx
from django.conf import settings
from django.db import DatabaseError, close_old_connections, transaction
from django.utils import timezone

from headrace.dispatch import shipping, stopping
from headrace.dispatch.launcher import jobs_of, launch_attempt
from headrace.dispatch.lease import Lease, LeaseLost
from headrace.dispatch.ray_jobs import ABSENT, TERMINAL, RayUnreachable
from headrace.experiments import lifecycle
from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import AttemptState, RunState

log = logging.getLogger(__name__)

EVERY_S = 1.0
MESSAGE_LOST_AFTER = timedelta(seconds=5)
CLAIM_STALE_AFTER = timedelta(seconds=20)
GIVE_UP_LAUNCH_AFTER = timedelta(minutes=10)
SILENT_AFTER = timedelta(seconds=15)
CANCEL_GRACE = timedelta(seconds=8)
ACTOR = "reconciler"


class Reconciler:
    """One pass looks at every run that is not over. All state that matters is in the database; the rest may be forgotten."""

    def __init__(self, lease: Lease | None = None) -> None:
        self.lease = lease or Lease()
        self.ingest_up_since: datetime | None = None
        self.stopping = False

    def run_forever(self) -> None:
        """Until SIGTERM. A failing pass is logged and the next one starts afresh."""
        while not self.stopping:
            try:
                if self.lease.acquire():
                    self.once()
            except LeaseLost as error:
                log.warning("%s", error)
            except DatabaseError:
                log.exception("the pass failed; the next one starts afresh")
                close_old_connections()
            time.sleep(EVERY_S)
        self.lease.release()

    def once(self) -> None:
        """One pass, with the lease held."""
        self._watch_ingest()
        now = timezone.now()
        for attempt in self._attempts(RunState.QUEUED, now - MESSAGE_LOST_AFTER):
            log.warning("run %s was queued and nobody launched it: launching it now", attempt.run.public_id)
            self._guard()
            launch_attempt(attempt.public_id)
        for attempt in self._attempts(RunState.LAUNCHING, now - CLAIM_STALE_AFTER).filter(submission_id=""):
            self._launch_again(attempt, now)
        for run in Run.unscoped.filter(state=RunState.STOPPING, state_since__lt=now - CANCEL_GRACE):
            self._force_cancel(run)
        for attempt in self._silent(now):
            self._examine(attempt)
        shipping.ship_unfinished(self._guard)

    # --- launching

    def _attempts(self, state: str, before: datetime) -> Any:
        rows = Attempt.unscoped.select_related("run", "cluster").filter(run__state=state, run__state_since__lt=before)
        return rows.exclude(run__source=Run.Source.UPLOAD).exclude(state__in=AttemptState.over())

    def _launch_again(self, attempt: Attempt, now: datetime) -> None:
        self._guard()
        if now - attempt.run.state_since < GIVE_UP_LAUNCH_AFTER:
            launch_attempt(attempt.public_id, repeat=True)
            return
        cause = {
            "type": "RayUnreachable",
            "message": "the job could not be submitted within 10 minutes: Ray did not answer",
            "field": "HEADRACE_RAY_ADDRESS",
            "value": settings.RAY_ADDRESS,
            "cure": "start the cluster, then resume or clone this run",
            "retryable": True,
        }
        lifecycle.attempt_finished(attempt, "failed", cause=cause, actor=ACTOR)

    # --- cancelling

    def _force_cancel(self, run: Run) -> None:
        self._guard()
        left = stopping.stop_everything(run.public_id)
        shipping.ship_run(run, self._guard)
        stopping.settle_cancelled(run, ACTOR, "it did not stop by itself within 8 s and was ended; the last complete checkpoint stands")
        if left:
            log.error("run %s left something behind: %s", run.public_id, left)

    # --- losing

    def _watch_ingest(self) -> None:
        """Silence is counted from when ingest was last seen coming up; while it is down nobody is silent."""
        try:
            with httpx.Client(trust_env=False, timeout=3) as client:
                up = client.get(f"http://127.0.0.1:{settings.PORT}/healthz/live").status_code == 200
        except httpx.HTTPError:
            up = False
        if not up:
            self.ingest_up_since = None
        elif self.ingest_up_since is None:
            self.ingest_up_since = timezone.now()

    def _silent(self, now: datetime) -> list[Attempt]:
        """Attempts with a job that have said nothing for too long. One that never spoke counts from its submission."""
        if self.ingest_up_since is None or now - self.ingest_up_since < SILENT_AFTER:
            return []
        rows = Attempt.unscoped.select_related("run", "cluster").exclude(state__in=AttemptState.over()).exclude(submission_id="")
        limit = now - SILENT_AFTER
        return [a for a in rows if (a.heartbeat_at or a.state_since) < limit and a.state_since < limit]

    def _examine(self, attempt: Attempt) -> None:
        """A silent attempt: lost only if Ray says that its job is over or that it knows none."""
        jobs = jobs_of(attempt)
        try:
            status = jobs.status(attempt.submission_id)
            if status not in TERMINAL | {ABSENT}:
                return
            lines = jobs.last_lines(attempt.submission_id) if status != ABSENT else []
            message = jobs.message(attempt.submission_id) if status != ABSENT else ""
        except RayUnreachable as error:
            log.warning("run %s is silent and its job's state unknown: %s", attempt.run.public_id, error)
            return
        shipping.ship_attempt(attempt, self._guard)  # the spool may tell how it really ended
        attempt.refresh_from_db()
        if attempt.is_over:
            return
        with transaction.atomic():
            self.lease.check()
            outcome = "lost" if status in (ABSENT, "SUCCEEDED") else "failed"
            if attempt.run.control.get("cancel"):
                outcome = "cancelled"
            lifecycle.attempt_finished(attempt, outcome, cause=_cause(status, message, lines), actor=ACTOR)
        stopping.stop_everything(attempt.run.public_id, job_wait_s=0.5)

    def _guard(self) -> None:
        """Before every act on the world: renews the lease, or raises LeaseLost."""
        if not self.lease.acquire():
            raise LeaseLost("the lease went to another reconciler")


def _cause(status: str, message: str, lines: list[str]) -> dict[str, Any]:
    said = {
        ABSENT: "its job vanished: the Ray cluster was restarted or lost it",
        "STOPPED": "its job was stopped from outside",
        "SUCCEEDED": "its job ended without a last word",
    }.get(status, f"its job failed without a last word: {message.partition(', last available logs')[0][:300]}")
    return {
        "type": "JobLost",
        "message": said,
        "field": None,
        "value": status,
        "cure": "read the last log lines; resume goes on from the last complete checkpoint",
        "retryable": True,
        "log_tail": lines,
    }
