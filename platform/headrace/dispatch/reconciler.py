"""The reconciler: its own process, one at a time by lease. Finds what a lost message, a dead driver or a deaf one left behind.

    python -m headrace.dispatch

The database is the truth. Ray unreachable means unknown, never lost; silence counts only while ingest was there to be spoken to.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import httpx
from django.conf import settings
from django.db import close_old_connections, transaction
from django.utils import timezone

from headrace.alerts import silence
from headrace.artifacts import errands
from headrace.compare.races import progress as races
from headrace.dispatch import chores, discovery, queue, stopping
from headrace.dispatch.launcher import jobs_of, launch_attempt
from headrace.dispatch.lease import Lease, LeaseLost
from headrace.dispatch.ray_jobs import ABSENT, TERMINAL, RayUnreachable
from headrace.dispatch.shipping import Shipping
from headrace.experiments import lifecycle
from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import AttemptState, RunState

log = logging.getLogger(__name__)

EVERY_S = 0.5
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
        self.shipping = Shipping()
        self._suspects: set[int] = set()  # attempts whose job is over: shipping their spool must not make them look alive

    def run_forever(self) -> None:
        """Until SIGTERM. A failing pass is logged and the next one starts afresh."""
        while not self.stopping:
            try:
                if self.lease.acquire():
                    self.once()
            except LeaseLost as error:
                log.warning("%s", error)
            except Exception:
                log.exception("the pass failed; the next one starts afresh")
                close_old_connections()
            time.sleep(EVERY_S)
        self.lease.release()

    def once(self) -> None:
        """One pass, with the lease held."""
        self._watch_ingest()
        now = timezone.now()
        deaf = Run.unscoped.filter(state=RunState.STOPPING, state_since__lt=now - CANCEL_GRACE)
        self._each("the cancel", deaf, self._force_cancel)
        self._each("the launch", queue.ready(now - MESSAGE_LOST_AFTER), self._launch)
        claimed = self._attempts(RunState.LAUNCHING, now - CLAIM_STALE_AFTER).filter(state=AttemptState.PENDING)
        self._each("the repeated launch", claimed, self._launch_again)
        self._each("the look at a silent attempt", self._silent(now), self._examine)
        if self.ingest_up_since is not None:
            self.shipping.next_one(self._guard)
        races.advance(now)
        errands.advance(self._guard)
        silence.advance()
        discovery.refresh(now)
        chores.daily(now)

    def _each(self, what: str, items: Iterable[Any], act: Callable[[Any], None]) -> None:
        """One run's trouble is that run's alone: it is logged with its id, and the next one has its turn."""
        for item in list(items):
            try:
                act(item)
            except LeaseLost:
                raise
            except Exception:
                run = item if isinstance(item, Run) else item.run
                log.exception("run %s: %s failed; the other runs go on", run.public_id, what)
                close_old_connections()

    # --- launching

    def _attempts(self, state: str, before: datetime) -> Any:
        rows = Attempt.unscoped.select_related("run", "cluster").filter(run__state=state, run__state_since__lt=before)
        return rows.exclude(run__source=Run.Source.UPLOAD).exclude(state__in=AttemptState.over())

    def _launch(self, attempt: Attempt) -> None:
        log.info(
            "run %s has waited for %.0f s and has its turn",
            attempt.run.public_id,
            (timezone.now() - attempt.run.state_since).total_seconds(),
        )
        self._guard()
        launch_attempt(attempt.public_id, ship_s=0)

    def _launch_again(self, attempt: Attempt) -> None:
        self._guard()
        if timezone.now() - attempt.run.state_since < GIVE_UP_LAUNCH_AFTER:
            launch_attempt(attempt.public_id, repeat=True, ship_s=0)
            return
        last = attempt.exit_cause or {}
        cause = {
            "type": "RayUnreachable",
            "message": f"the job could not be submitted within 10 minutes: {last.get('message') or 'Ray did not answer'}",
            "field": last.get("field") or "HEADRACE_RAY_ADDRESS",
            "value": last.get("value") or settings.RAY_ADDRESS,
            "cure": last.get("cure") or "start the cluster, then resume or clone this run",
            "retryable": True,
        }
        stopping.stop_attempt(attempt)
        lifecycle.attempt_finished(attempt, "failed", cause=cause, actor=ACTOR)

    # --- cancelling

    def _force_cancel(self, run: Run) -> None:
        """Its spool is shipped afterwards, as any that was left behind: nothing here waits for it."""
        self._guard()
        attempt = stopping.newest_attempt(run)
        run.refresh_from_db()
        if run.state != RunState.STOPPING:  # it has ended by itself, and may have been resumed
            return
        left = stopping.stop_everything(run.public_id, job_wait_s=0.3, grace_s=0.5)
        cause = "it did not stop by itself within 8 s and was ended; the last complete checkpoint stands"
        stopping.settle_cancelled(run, attempt, ACTOR, cause)
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
        return [a for a in rows if a.pk in self._suspects or max(a.heartbeat_at or a.state_since, a.state_since) < limit]

    def _examine(self, attempt: Attempt) -> None:
        """A silent attempt: lost only if Ray says that its job is over or that it knows none."""
        jobs = replace(jobs_of(attempt), timeout_s=4.0)
        try:
            status = jobs.status(attempt.submission_id)
            if status not in TERMINAL | {ABSENT}:
                return
            lines = jobs.last_lines(attempt.submission_id) if status != ABSENT else []
            message = jobs.message(attempt.submission_id) if status != ABSENT else ""
        except RayUnreachable as error:
            log.warning("run %s is silent and its job's state unknown: %s", attempt.run.public_id, error)
            return
        if status == ABSENT and attempt.state == AttemptState.PENDING:
            return  # never submitted: the launcher's business
        self._suspects.add(attempt.pk)
        if not self.shipping.tried(attempt):
            self._guard()
            self.shipping.begin(attempt)  # the spool may tell how it really ended
        if not self.shipping.tried(attempt):
            return
        attempt.refresh_from_db()
        if attempt.is_over:
            return
        self._guard()
        # Stopped first: while it is not over nobody can resume the run, and nothing of a newer attempt can be hit
        left = stopping.stop_attempt(attempt)
        if left:
            log.error("run %s left something behind: %s", attempt.run.public_id, left)
        with transaction.atomic():
            self.lease.check()
            outcome = "lost" if status in (ABSENT, "SUCCEEDED") else "failed"
            attempt.run.refresh_from_db(fields=["control"])
            if attempt.run.control.get("cancel"):
                outcome = "cancelled"
            lifecycle.attempt_finished(attempt, outcome, cause=_cause(status, message, lines), actor=ACTOR)
        self._suspects.discard(attempt.pk)

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
