"""Reads of a sweep. What a user may not see does not exist."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.models import QuerySet

from headrace.experiments.models import Run, Sweep
from headrace.experiments.states import RunState
from headrace.experiments.sweeps import shown
from headrace.schema_form import fields_of, lookup
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.telemetry.models import Series
from workers.contract.config import RunConfig

HELD_OUT, REWARD = "eval/reward_mean", "reward/mean"


def sweeps_for(user: Any, team: Team | None = None) -> QuerySet[Sweep]:
    """Sweeps the user may see, newest first."""
    rows = Sweep.objects.for_user(user)
    if team is not None:
        rows = rows.filter(team=team)
    return rows.select_related("team", "config", "created_by").order_by("-created_at", "-pk")


PAGE = 30


def listed(user: Any, team: Team, page: int) -> dict[str, Any]:
    """One page of the team's sweeps with the state that follows from their runs: two queries, however many there are."""
    first = (page - 1) * PAGE
    found = list(sweeps_for(user, team).select_related("project")[first : first + PAGE + 1])
    states: dict[int, list[str]] = {sweep.pk: [] for sweep in found}
    runs = Run.objects.for_team(team).filter(sweep__in=found, deleted_at=None)
    for sweep_id, state in runs.values_list("sweep_id", "state"):
        states[sweep_id].append(state)
    rows = [_listed(sweep, states[sweep.pk]) for sweep in found[:PAGE]]
    return {"rows": rows, "newer": page - 1, "older": page + 1 if len(found) > PAGE else 0}


def _listed(sweep: Sweep, states: list[str]) -> dict[str, Any]:
    return {
        "sweep": sweep,
        "state": state_in(set(states)),
        "over": sum(state in RunState.over() for state in states),
        "total": len(states),
        "over_what": [*(axis["path"] for axis in sweep.axes), *([f"{len(sweep.seeds)} seeds"] if len(sweep.seeds) > 1 else [])],
    }


def context(user: Any, sweep: Sweep) -> dict[str, Any]:
    """Rows of the table, the best first among those that have a held-out score, and the state that follows from all."""
    runs = list(Run.objects.for_team(sweep.team_id).filter(sweep=sweep, deleted_at=None).select_related("config", "team").order_by("pk"))
    last = _last_values(sweep, runs)
    titles = {path: item.title for path, item in fields_of(RunConfig.model_json_schema()).items()}
    columns = [{"path": axis["path"], "title": titles.get(axis["path"], axis["path"])} for axis in sweep.axes]
    rows = [_row(run, columns, last) for run in runs]
    scored = [row for row in rows if row["held_out"] is not None]
    best = max(scored, key=lambda row: (row["held_out"], -row["run"].pk)) if scored else None
    active = [run for run in runs if not run.is_over]
    return {
        "columns": columns,
        "rows": sorted(rows, key=lambda row: (row["held_out"] is None, -(row["held_out"] or 0.0), row["run"].pk)),
        "best": best,
        "state": state_of(runs),
        "counts": sorted(Counter(run.state for run in runs).items()),
        "over": len(runs) - len(active),
        "can_cancel": bool(active) and all(can(user, "run.cancel", run) for run in active),
    }


def state_of(runs: list[Run]) -> str:
    """One word for all of them: running while any is under way, queued while none has started, else how they ended."""
    return state_in({run.state for run in runs})


def state_in(states: set[str]) -> str:
    """`state_of`, from the states alone."""
    if states & (RunState.active() - {RunState.QUEUED}):
        return "running"
    if RunState.QUEUED in states:
        return "queued" if states == {RunState.QUEUED} else "running"
    if states == {RunState.SUCCEEDED}:
        return "succeeded"
    if RunState.SUCCEEDED in states or not states:
        return "ended"
    return min(str(state) for state in states)


def _last_values(sweep: Sweep, runs: list[Run]) -> dict[tuple[int, str], tuple[float | None, int | None]]:
    """{(run, series): (last value, its step)}, of each run's newest attempt that has it."""
    rows = Series.objects.for_team(sweep.team_id).filter(attempt__run__in=runs, name__in=(HELD_OUT, REWARD)).order_by("attempt__number")
    values = rows.values_list("attempt__run_id", "name", "last_value", "last_step")
    return {(run, name): (value, step) for run, name, value, step in values}


def _row(run: Run, columns: list[dict[str, str]], last: dict[tuple[int, str], tuple[float | None, int | None]]) -> dict[str, Any]:
    held_out, _ = last.get((run.pk, HELD_OUT), (None, None))
    reward, step = last.get((run.pk, REWARD), (None, None))
    return {
        "run": run,
        "values": [shown(lookup(run.config.data, column["path"])) for column in columns],
        "held_out": held_out,
        "reward": reward,
        "step": step,
        "steps": lookup(run.config.data, "budget.steps"),
    }
