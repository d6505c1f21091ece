"""What says nothing by itself: stalls and queues. Called by the reconciler every few seconds, in its one process."""

from __future__ import annotations

import logging
import time
from typing import Any

from django.db import close_old_connections
from django.utils import timezone

from headrace.alerts import deliver, firing, watch
from headrace.alerts.kinds import Queue, Stall
from headrace.alerts.models import Alert
from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import RunState
from headrace.telemetry.models import LatestState, Series

log = logging.getLogger(__name__)

EVERY_S = 5.0
STEP_SERIES = ("time/step_s", "reward/mean")
_last = 0.0


def advance(now: float | None = None) -> bool:
    """Every pass of the reconciler; works every EVERY_S. Nothing here may end the pass. True: it looked."""
    global _last
    at = time.monotonic() if now is None else now
    if at - _last < EVERY_S and now is None:
        return False
    _last = at
    try:
        look()
        deliver.advance()
    except Exception:  # the next pass looks again
        log.exception("the look at silent runs failed")
        close_old_connections()
    return True


def look() -> int:
    """Fires and resolves stall and queue rules. Returns how many alerts it opened."""
    opened = 0
    waiting = (RunState.QUEUED, RunState.LAUNCHING)
    runs = Run.unscoped.filter(state__in=[*waiting, RunState.RUNNING], deleted_at=None).exclude(source=Run.Source.UPLOAD)
    for run in runs.select_related("config"):
        held: dict[int | None, Alert] | None = None  # read once a run, and only where a rule does not hold
        for rule, options in watch.rules_for(run):
            if isinstance(options, Queue):
                silent = _waited(run) if run.state in waiting else None
                words = f"{run.name} has been {run.state} for {silent or 0:.0f} s"
            elif isinstance(options, Stall):
                silent = _silent(run, options.of) if run.state == RunState.RUNNING else None
                what = "no step has finished" if options.of == "step" else "no event has come"
                words = f"{what} for {silent or 0:.0f} s"
            else:
                continue
            if silent is not None and silent >= options.seconds:
                found = firing.Found(words, watch.now_t(), _step(run), silent, detail=f"The rule allows {options.seconds:g} s.")
                opened += firing.fire(rule, run, found) is not None
            else:
                held = firing.open_alerts(run) if held is None else held
                if rule.pk in held:
                    firing.resolve(held[rule.pk], rule)
    return opened


def _waited(run: Run) -> float:
    return (timezone.now() - run.state_since).total_seconds()


def _silent(run: Run, of: str) -> float | None:
    """Seconds since the last event or finished step; before the first one since the run went on."""
    attempt = Attempt.objects.for_team(run.team_id).filter(run=run).order_by("-number").first()
    if attempt is None:
        return None
    since = max(filter(None, (run.state_since, attempt.started_at)))
    if of == "event":
        latest = LatestState.objects.for_team(run.team_id).filter(attempt=attempt).first()
        since = max(since, latest.updated_at) if latest is not None else since
        return (timezone.now() - since).total_seconds()
    told = Series.objects.for_team(run.team_id).filter(attempt=attempt, name__in=STEP_SERIES).values_list("last_t", flat=True)
    last: float = max([since.timestamp(), *[t for t in told if t is not None]])
    return watch.now_t() - last


def _step(run: Run) -> int | None:
    rows: Any = (
        LatestState.objects.for_team(run.team_id).filter(attempt__run=run).order_by("-attempt__number").values_list("step", flat=True)
    )
    return rows.first()
