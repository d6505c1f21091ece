"""Spools that were left behind: what a driver could not ship before it ended is shipped by the reconciler.

One at a time and in a thread of its own: a spool may take minutes, and a cancel must not wait for it.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable

from django.db.models import QuerySet
from django.utils import timezone

from headrace.dispatch.folders import NOTE, has_spool
from headrace.experiments.models import Attempt
from headrace.experiments.states import AttemptState
from workers.contract.errors import ExitCode

log = logging.getLogger(__name__)

TIMEOUT_S = 120
FIRST_PAUSE_S, LONGEST_PAUSE_S = 10.0, 600.0
LOOKED_AT = 200


class Shipping:
    """The reconciler's shipper. What it remembers may be forgotten: a restart tries everything again."""

    def __init__(self) -> None:
        self._thread: threading.Thread | None = None
        self._tries: dict[int, int] = {}
        self._due: dict[int, float] = {}
        self._told: set[int] = set()

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def tried(self, attempt: Attempt) -> bool:
        """Whether this attempt's spool has been tried and is not under way now."""
        return attempt.pk in self._tries

    def begin(self, attempt: Attempt) -> bool:
        """Starts shipping unless another spool is under way. True: it is under way, or there is nothing to ship."""
        if self.busy:
            return False
        if not has_spool(attempt):
            self._count(attempt.pk)
            return True
        self._thread = threading.Thread(target=self._ship, args=(attempt,), name="shipping", daemon=True)
        self._thread.start()
        return True

    def next_one(self, guard: Callable[[], None]) -> None:
        """Called once a pass while ingest is up: the longest ended attempt whose time has come is begun."""
        if self.busy:
            return
        now = time.monotonic()
        waiting = [pk for pk, due in self._due.items() if due > now]
        for attempt in left_behind().exclude(pk__in=[*waiting, *self._told])[:LOOKED_AT]:
            if not has_spool(attempt):
                self._due[attempt.pk] = now + LONGEST_PAUSE_S
                continue
            guard()
            self.begin(attempt)
            return

    def wait(self, seconds: float) -> None:
        """Called at a clean stop and by tests: until the spool under way is through."""
        if self._thread is not None:
            self._thread.join(seconds)

    def _ship(self, attempt: Attempt) -> None:
        try:
            # The lease was asked before the thread began; sending a spool twice is harmless anyway.
            if ship_attempt(attempt):
                self._told.add(attempt.pk)  # all is there; a driver that was killed never wrote a last event to wait for
        finally:
            self._count(attempt.pk)

    def _count(self, pk: int) -> None:
        tries = self._tries.get(pk, 0)
        self._due[pk] = time.monotonic() + min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 3 ** min(tries, 8))
        self._tries[pk] = tries + 1


def left_behind() -> QuerySet[Attempt]:
    """Attempts that are over without their last event stored, while their token still opens the door; first ended first."""
    rows = Attempt.unscoped.select_related("run").filter(state__in=AttemptState.over(), latest__finished__isnull=True)
    return rows.filter(token_expires__gt=timezone.now()).exclude(out_dir="").exclude(token_hash="").order_by("ended_at", "pk")


def is_told(attempt: Attempt) -> bool:
    """Whether the attempt's last event is stored, so that nothing is left to ship."""
    return not Attempt.unscoped.filter(pk=attempt.pk, latest__finished__isnull=True).exists()


def ship_attempt(attempt: Attempt, timeout_s: float = TIMEOUT_S) -> bool:
    """`python -m workers ship DIR`, which asks the server for its mark and sends what lies beyond. True: all is stored."""
    if not has_spool(attempt):
        return False
    argv = [sys.executable, "-m", "workers", "ship", attempt.out_dir, "--attempt-file", os.path.join(attempt.out_dir, NOTE)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_SECRET")}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=timeout_s, check=False, env=env)
    except subprocess.TimeoutExpired:
        log.warning("shipping the spool of attempt %s took longer than %d s", attempt.public_id, timeout_s)
        return False
    if done.returncode not in (ExitCode.OK, ExitCode.FENCED):
        log.warning("the spool of attempt %s could not be shipped: %s", attempt.public_id, done.stderr.strip()[-500:])
    return done.returncode == int(ExitCode.OK)
