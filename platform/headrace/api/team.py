"""The caller, its team's projects, and a comparison of any of its runs."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router

from headrace.api.callers import caller_in_team, caller_of, named_run
from headrace.api.schemas import ComparisonOut, Me, ProjectsOut
from headrace.experiments import selectors
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput
from headrace.teams.policy import role_in
from headrace.telemetry.derive import check_name
from headrace.telemetry.models import Series
from workers.contract import loading

router = Router(tags=["team"])

MOST_RUNS = 32
RESULTS = "eval/reward_mean,reward/mean,throughput/samples_per_s,lag/mean,sync/pause_s,samples/trained"


@router.get("/me", response=Me, summary="Whose token this is")
def me(request: HttpRequest) -> dict[str, Any]:
    """The person, the team that new things belong to, the role there and the token's scope."""
    caller = caller_of(request)
    team = caller.team()
    role = role_in(caller.user, team) if team else None
    return {
        "email": caller.user.email,
        "name": caller.user.name,
        "team": team.name if team else None,
        "team_id": team.public_id if team else None,
        "role": str(role) if role else None,
        "scope": caller.token.scope if caller.token else "session",
    }


@router.get("/projects", response=ProjectsOut, summary="Projects of the team")
def list_projects(request: HttpRequest) -> dict[str, Any]:
    """Oldest first; the first one takes runs that name none."""
    caller, team = caller_in_team(request, "project.view")
    rows = selectors.projects_for(caller.user, team)[:500]
    return {"projects": [{"id": row.public_id, "name": row.name, "slug": row.slug, "note": row.note} for row in rows]}


@router.get("/compare", response=ComparisonOut, summary="Compare runs")
def compare(request: HttpRequest, runs: str, metrics: str = RESULTS) -> dict[str, Any]:
    """`runs`: up to 32 ids by comma. The config fields that differ, and the last value of each series of `metrics`."""
    caller = caller_of(request)
    wanted = list(dict.fromkeys(name for name in runs.split(",") if name))
    if not 1 <= len(wanted) <= MOST_RUNS:
        raise BadInput("not 1 to 32 runs", field="runs", value=len(wanted), cure="run ids by comma")
    names = [check_name(name, "metrics") for name in metrics.split(",") if name]
    if len(names) > MOST_RUNS:
        raise BadInput("too many series", field="metrics", value=len(names), cure="at most 32")
    rows = [named_run(caller, public_id, "runs") for public_id in wanted]
    flats = [loading.flatten(run.config.data) for run in rows]
    table = {path: [flat.get(path) for flat in flats] for path in sorted(set().union(*flats))}
    columns = [
        {"id": run.public_id, "name": run.name, "state": run.state, "preset": run.preset, "seed": run.seed, "results": _last(run, names)}
        for run in rows
    ]
    return {"runs": columns, "differences": {path: values for path, values in table.items() if any(value != values[0] for value in values)}}


def _last(run: Run, names: list[str]) -> dict[str, float | None]:
    """The newest attempt's last finite value of each series; null: no data."""
    found = Series.objects.for_team(run.team_id).filter(attempt__run=run, name__in=names).order_by("attempt__number")
    values = dict(found.values_list("name", "last_value"))
    return {name: values.get(name) for name in names}
