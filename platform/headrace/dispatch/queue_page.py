"""Reads of the queue page: what a team's runs wait for, what is in use, and what the team may have. The caller has checked the team."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Any

from django.db.models import QuerySet
from django.utils import timezone

from headrace.dispatch import capacity, queue
from headrace.dispatch.models import TeamQuota
from headrace.dispatch.queue import HOLDING, Look
from headrace.dispatch.scheduler import Ask
from headrace.experiments.admission import PRIORITIES
from headrace.experiments.listing import maker
from headrace.experiments.models import Run
from headrace.experiments.states import RunState
from headrace.teams.models import Team
from headrace.teams.policy import can, can_each

MOST_ROWS = 200


def context(user: Any, team: Team) -> dict[str, Any]:
    """Everything the page shows."""
    seen = queue.look()
    waiting, running = _runs(team, [RunState.QUEUED]), _runs(team, list(HOLDING))
    order = {decision.key: decision for decision in seen.decisions}
    by_key = {run.pk: run for run in waiting}
    own = [by_key[key] for key in order if key in by_key]
    rows = usage(team, seen)
    shown = [*own[:MOST_ROWS], *running[:MOST_ROWS]]
    stoppable = {run.pk for run, may in zip(shown, can_each(user, "run.cancel", shown), strict=True) if may}
    return {
        "waiting": [_waiting_row(run, stoppable, seen, place) for place, run in enumerate(own[:MOST_ROWS], 1)],
        "waiting_count": len(own),
        "running": [_running_row(run, stoppable) for run in running[:MOST_ROWS]],
        "capacity": rows,
        "full": any(row["free"] <= 0 for row in rows if row["title"] != "GPUs"),
        "quota": quota(team, len(own), len(running)),
        "price": capacity.cluster_of(team),
        "can_order": can(user, "queue.edit", team),
        "priorities": PRIORITIES,
    }


def place_of(run: Run, seen: Look | None = None) -> dict[str, Any]:
    """Why a queued run waits, as its page fetches it. `waits` False: it does not wait. `seen`: one look for many runs."""
    if run.state != RunState.QUEUED or run.source == Run.Source.UPLOAD:
        return {"waits": False, "state": run.state}
    seen = seen or queue.look()
    place = seen.place(run)
    if place is None:
        return {"waits": False, "state": run.state}
    expected = queue.expected_start(run, seen)
    return {"waits": True, "state": run.state, **place, "priority": run.priority, "expected": expected.isoformat() if expected else None}


def usage(team: Team, seen: Look) -> list[dict[str, Any]]:
    """What the team's cluster has and what is held of it, by this team and by others."""
    cluster = capacity.cluster_key(team)
    there = seen.capacities[cluster]
    held = [item for item in seen.running.values() if item.cluster == cluster]
    rows: list[dict[str, Any]] = []
    for name, title in (("cpus", "CPUs"), ("gpus", "GPUs")):
        total = getattr(there, name)
        if not total:
            continue
        ours = sum(getattr(item.ask.within(there), name) for item in held if item.team == team.pk)
        everyone = sum(getattr(item.ask.within(there), name) for item in held)
        rows.append({"title": title, "total": total, "ours": ours, "others": everyone - ours, "free": max(0.0, total - everyone)})
    if there.most_runs is not None:
        ours = sum(item.team == team.pk for item in held)
        rows.append(
            {
                "title": "Runs at once",
                "total": there.most_runs,
                "ours": ours,
                "others": len(held) - ours,
                "free": there.most_runs - len(held),
            }
        )
    for row in rows:
        row["ours_share"], row["used_share"] = (
            round(100 * min(1.0, part / (row["total"] or 1))) for part in (row["ours"], row["ours"] + row["others"])
        )
    return rows


def quota(team: Team, queued: int, running: int) -> list[dict[str, Any]]:
    """Each bound with what is used of it; `most` None: no bound."""
    row = TeamQuota.objects.for_team(team).first()
    hours = Decimal(f"{queue.device_hours(team.pk):.2f}")
    return [
        {"name": "most_running", "title": "Running at once", "used": running, "most": row.most_running if row else None, "unit": "runs"},
        {"name": "most_queued", "title": "In the queue", "used": queued, "most": row.most_queued if row else None, "unit": "runs"},
        {
            "name": "device_hours_month",
            "title": "Device-hours this month",
            "used": hours,
            "most": row.device_hours_month if row else None,
            "unit": "hours",
        },
    ]


def _runs(team: Team, states: list[str]) -> list[Run]:
    rows: QuerySet[Run] = Run.objects.for_team(team).filter(state__in=states, deleted_at=None).exclude(source=Run.Source.UPLOAD)
    return list(rows.select_related("config", "created_by", "sweep").order_by("state_since", "pk"))


def _waiting_row(run: Run, stoppable: set[int], seen: Look, place: int) -> dict[str, Any]:
    found = seen.place(run) or {"why": "starts in a moment"}
    return {
        **_row(run, stoppable),
        "position": place,
        "why": found["why"],
        "priority": run.priority,
        "expected": queue.expected_start(run, seen),
        "choices": _choices(run.priority),
    }


def _running_row(run: Run, stoppable: set[int]) -> dict[str, Any]:
    ends: datetime | None = queue.ends_at(run.pk)
    return {**_row(run, stoppable), "ends": ends if ends and ends > timezone.now() and run.state == RunState.RUNNING else None}


def _row(run: Run, stoppable: set[int]) -> dict[str, Any]:
    ask: Ask = capacity.asked(run.config.data)
    return {
        "run": run,
        "by": maker(run),
        "devices": ask.devices,
        "gpus": ask.gpus,
        "can_cancel": run.pk in stoppable,
    }


def _choices(priority: int) -> list[tuple[int, str]]:
    """The named priorities, and the run's own where it has another number."""
    known = dict(PRIORITIES)
    return list(PRIORITIES) if priority in known else sorted([*PRIORITIES, (priority, f"Priority {priority}")], reverse=True)
