"""Spools that were left behind: what a driver could not ship before it ended is shipped by the reconciler."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from headrace.dispatch.launcher import NOTE
from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import AttemptState
from workers.contract.errors import ExitCode

log = logging.getLogger(__name__)

TIMEOUT_S = 120
TRIES = 5
_tried: dict[int, tuple[int, float]] = {}  # attempt key -> tries and the next time, of this process


def ship_unfinished(guard: Callable[[], None]) -> None:
    """Attempts that are over without their last event stored: once at first sight, then ever more rarely."""
    rows = Attempt.unscoped.select_related("run").filter(state__in=AttemptState.over(), latest__finished__isnull=True)
    for attempt in rows.exclude(out_dir="").exclude(pk__in=[pk for pk, (tries, _) in _tried.items() if tries >= TRIES])[:20]:
        tries, due = _tried.get(attempt.pk, (0, 0.0))
        if time.monotonic() >= due:
            _tried[attempt.pk] = (tries + 1, time.monotonic() + 10 * 3**tries)
            ship_attempt(attempt, guard)


def ship_run(run: Run, guard: Callable[[], None]) -> None:
    for attempt in Attempt.unscoped.filter(run=run).exclude(out_dir=""):
        ship_attempt(attempt, guard)


def ship_attempt(attempt: Attempt, guard: Callable[[], None]) -> bool:
    """`python -m workers ship DIR`, which asks the server for its mark and sends what lies beyond. True: all is stored."""
    folder = Path(attempt.out_dir)
    note = folder / NOTE
    if not attempt.out_dir or not note.is_file() or not any(folder.rglob("*.spool")):
        return False
    guard()
    argv = [sys.executable, "-m", "workers", "ship", str(folder), "--attempt-file", str(note)]
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_SECRET")}
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=TIMEOUT_S, check=False, env=env)
    except subprocess.TimeoutExpired:
        log.warning("shipping the spool of attempt %s took longer than %d s", attempt.public_id, TIMEOUT_S)
        return False
    if done.returncode not in (ExitCode.OK, ExitCode.FENCED):
        log.warning("the spool of attempt %s could not be shipped: %s", attempt.public_id, done.stderr.strip()[-500:])
    if done.returncode == ExitCode.OK:
        _tried[attempt.pk] = (TRIES, 0.0)  # all is there; a driver that was killed never wrote a last event to wait for
    return done.returncode == ExitCode.OK
