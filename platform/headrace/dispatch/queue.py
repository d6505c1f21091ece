"""The queue as it stands: what waits and runs, read from the database and put before the scheduler. One lock for every launch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import transaction
from django.db.models import Max, Q
from django.utils import timezone

from headrace.dispatch import capacity
from headrace.dispatch.models import ReconcilerLease, TeamQuota
from headrace.dispatch.scheduler import Capacity, Decision, Quota, Running, Waiting, launches, schedule
from headrace.experiments import lifecycle
from headrace.experiments.models import Attempt, Run, RunTransition
from headrace.experiments.states import AttemptState, RunState
from headrace.telemetry.models import LatestState

LOCK = "queue"
HOLDING = (RunState.LAUNCHING, RunState.RUNNING, RunState.PAUSED, RunState.STOPPING)
RECENT = timedelta(days=7)
_ASKING = [f"config__data__{path.replace('.', '__')}" for path in capacity.ASKING]


@dataclass(frozen=True)
class Look:
    """One look at the whole queue, of every team."""

    decisions: list[Decision]
    waiting: dict[int, Waiting]  # by the run's key
    running: dict[int, Running]
    capacities: dict[int, Capacity]

    def place(self, run: Run) -> dict[str, Any] | None:
        """What a queued run's page shows; None: it does not wait. The position is among the team's own runs."""
        own = [decision for decision in self.decisions if self.waiting[decision.key].team == run.team_id]
        for position, decision in enumerate(own, 1):
            if decision.key == run.pk:
                return {"position": position, "of": len(own), "why": decision.why or "starts in a moment", "quota": decision.held_by_quota}
        return None


def look(*, preview: Waiting | None = None) -> Look:
    """Reads what the scheduler needs and asks it. `preview`: a run that is not there yet, for the form."""
    waiting = {item.key: item for item in _waiting()}
    if preview is not None:
        waiting[preview.key] = preview
    running = _running()
    there = capacity.capacities()
    teams = {item.team for item in waiting.values()}
    decisions = schedule(waiting.values(), running.values(), there, quotas(teams), _launched_ago(teams)) if waiting else []
    return Look(decisions, waiting, running, there)


def claim(attempt: Attempt) -> bool:
    """Called by the launcher: the attempt's run becomes `launching` if the scheduler takes it now. False: it waits, or is not queued.

    Two launchers that decide at the same time would both count the same free core, so one row is held while deciding.
    """
    with transaction.atomic():
        ReconcilerLease.objects.get_or_create(name=LOCK)
        ReconcilerLease.objects.select_for_update().get(name=LOCK)
        attempt.refresh_from_db(fields=["state"])
        if attempt.is_over or not lifecycle.is_current(attempt):  # cancelled, perhaps resumed as another attempt, since it was read
            return False
        if attempt.run_id not in launches(look().decisions):
            return False
        try:
            return lifecycle.transition(attempt.run, RunState.LAUNCHING, cause="submitting the job", actor="launcher", attempt=attempt)
        except lifecycle.InvalidTransition:
            return False


def ready(before: datetime) -> list[Attempt]:
    """Attempts whose runs have been queued since `before` and may start now, in order. Called by every pass of the reconciler."""
    old = Run.unscoped.filter(state=RunState.QUEUED, state_since__lt=before).exclude(source=Run.Source.UPLOAD)
    if not old.exists():
        return []
    chosen = launches(look().decisions)
    rows = Attempt.unscoped.select_related("run", "cluster").filter(run__in=old, run_id__in=chosen).exclude(state__in=AttemptState.over())
    newest = {row.run_id: row for row in rows.order_by("number")}
    return [newest[key] for key in chosen if key in newest]


def quotas(teams: Iterable[int]) -> dict[int, Quota]:
    """By team; a team without a row has no bound."""
    found = {}
    for row in TeamQuota.unscoped.filter(team__in=list(teams)):
        hours = float(row.device_hours_month) if row.device_hours_month is not None else None
        left = hours - device_hours(row.team_id) if hours is not None else None
        found[row.team_id] = Quota(row.most_running, left, hours)
    return found


def device_hours(team_id: int, now: datetime | None = None) -> float:
    """Hours that the team's runs have held devices this month (UTC). What still runs counts up to now; uploads ran elsewhere."""
    now = now or timezone.now()
    begin = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    rows = Attempt.objects.for_team(team_id).filter(Q(ended_at=None) | Q(ended_at__gt=begin), started_at__isnull=False)
    rows = rows.exclude(run__source=Run.Source.UPLOAD)
    total = 0.0
    for started, ended, *asking in rows.values_list("started_at", "ended_at", *[f"run__{path}" for path in _ASKING]):
        held = ((ended or now) - max(started, begin)).total_seconds()
        total += max(0.0, held) * capacity.ask_of(*asking).devices / 3600
    return total


def expected_start(run: Run, seen: Look) -> datetime | None:
    """When the first of the queue will start, if every running run of its cluster goes on as fast as until now. None: not known."""
    order = [decision.key for decision in seen.decisions if not decision.held_by_quota]
    if not order or order[0] != run.pk:
        return None
    cluster = seen.waiting[run.pk].cluster
    ends = [ends_at(key) for key, item in seen.running.items() if item.cluster == cluster]
    known = [end for end in ends if end is not None]
    return min(known) if known else None


def ends_at(run_id: int) -> datetime | None:
    """When a running run will be through at its present speed; None where it has not told enough."""
    latest = LatestState.unscoped.filter(attempt__run_id=run_id).order_by("-attempt__number").first()
    data = (latest.state or {}).get("data") if latest else None
    if latest is None or not isinstance(data, dict):
        return None
    step, total = data.get("step"), data.get("steps_total")
    wall = (data.get("time") or {}).get("wall_s") if isinstance(data.get("time"), dict) else None
    numbers = [float(value) for value in (step, total, wall) if isinstance(value, int | float) and value > 0]
    if len(numbers) < 3:
        return None
    done, of, seconds = numbers
    told: datetime = latest.updated_at
    return told + timedelta(seconds=min(seconds / done * max(0.0, of - done), 3.2e7))


def _waiting() -> list[Waiting]:
    now = timezone.now()
    rows = Run.unscoped.filter(state=RunState.QUEUED).exclude(source=Run.Source.UPLOAD)
    clusters = _clusters(rows)
    return [
        Waiting(key, team, priority, max(0.0, (now - since).total_seconds()), capacity.ask_of(*asking), clusters.get(key, capacity.HERE))
        for key, team, priority, since, *asking in rows.values_list("pk", "team_id", "priority", "state_since", *_ASKING)
    ]


def _running() -> dict[int, Running]:
    rows = Run.unscoped.filter(state__in=HOLDING).exclude(source=Run.Source.UPLOAD)
    clusters = _clusters(rows)
    return {
        key: Running(team, capacity.ask_of(*asking), clusters.get(key, capacity.HERE))
        for key, team, *asking in rows.values_list("pk", "team_id", *_ASKING)
    }


def _clusters(runs: Any) -> dict[int, int]:
    """Runs whose newest attempt goes to a cluster of its own; all others go to the one that settings name."""
    rows = Attempt.unscoped.filter(run__in=runs, cluster__isnull=False).order_by("number")
    return dict(rows.values_list("run_id", "cluster_id"))


def _launched_ago(teams: Iterable[int]) -> dict[int, float]:
    now = timezone.now()
    rows = RunTransition.unscoped.filter(team__in=list(teams), to_state=RunState.LAUNCHING, at__gt=now - RECENT)
    return {team: (now - at).total_seconds() for team, at in rows.values_list("team_id").annotate(Max("at"))}
