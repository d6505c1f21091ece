"""Runs in the plural: the queue, sweeps, races and saved views."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from django.http import Http404, HttpRequest, HttpResponse
from ninja import Query, Router, Status

from headrace.api import cursor
from headrace.api.callers import caller_in_team, caller_of, project_of, run_of
from headrace.api.description import file_answer
from headrace.api.runs import detail
from headrace.api.schemas import RunDetail
from headrace.api.schemas_several import (
    PriorityIn,
    QueueOut,
    RaceIn,
    RaceOut,
    RacePage,
    SweepIn,
    SweepOut,
    ViewIn,
    ViewOut,
    ViewsOut,
)
from headrace.compare import selectors as views
from headrace.compare import services as view_services
from headrace.compare.models import SavedView
from headrace.compare.races import plan, report, report_csv
from headrace.compare.races import selectors as races
from headrace.compare.races import services as race_services
from headrace.compare.races.models import Race
from headrace.dispatch import queue, queue_page, queue_services
from headrace.experiments import selectors as runs_selectors
from headrace.experiments import sweep_reads, sweeps
from headrace.experiments.models import Run, Sweep
from headrace.experiments.states import RunState
from headrace.streaming import attachment
from headrace.teams.models import User
from headrace.teams.services import NotAllowed
from headrace.telemetry import selectors
from workers.contract import loading

router = Router(tags=["several runs"])

MOST = 200


@router.get("/queue", response=QueueOut, summary="The team's queue")
def read_queue(request: HttpRequest) -> dict[str, Any]:
    """Queued runs in the order of their start, and those under way."""
    caller, team = caller_in_team(request, "run.view")
    rows = runs_selectors.runs_for(caller.user, team)
    seen = queue.look()
    queued = {run.pk: run for run in rows.filter(state=RunState.QUEUED)}
    # In the order of their start, cut after that; what waits for nothing comes last
    order = dict.fromkeys([*(decision.key for decision in seen.decisions if decision.key in queued), *queued])
    waiting = [{"run": selectors.run_summary(queued[key]), **queue_page.place_of(queued[key], seen)} for key in list(order)[:MOST]]
    under_way = rows.filter(state__in=RunState.active() - {RunState.QUEUED})[:MOST]
    return {
        "waiting": waiting,
        "running": [selectors.run_summary(run) for run in under_way],
    }


@router.post("/runs/{run_id}/priority", response=RunDetail, summary="Move a run in the queue")
def set_priority(request: HttpRequest, run_id: str, payload: PriorityIn) -> dict[str, Any]:
    """Higher ones start first; for maintainers."""
    caller = caller_of(request)
    queue_services.set_priority(run_of(caller, run_id, "queue.edit"), caller.user, payload.priority)
    return detail(run_of(caller, run_id))


@router.post("/sweeps", response={201: SweepOut}, summary="Start a sweep")
def start_sweep(request: HttpRequest, payload: SweepIn) -> Status[dict[str, Any]]:
    """Queue every combination, all or none. The same key answers the sweep it made before."""
    caller, team = caller_in_team(request, "run.create")
    axes: list[dict[str, Any]] = []
    for path, values in payload.axes.items():
        axes.append(sweeps.read_axis(path, json.dumps(values), taken=[axis["path"] for axis in axes]))
    found = sweeps.start_sweep(
        team=team,
        user=caller.user,
        config=loading.resolve(payload.config, payload.preset, payload.set),
        plan=sweeps.Plan(seeds=list(dict.fromkeys(payload.seeds)), axes=axes),
        project=project_of(caller, team, payload.project),
        name=payload.name,
        idempotency_key=payload.idempotency_key,
        source=Run.Source.API if caller.token else Run.Source.WEB,
    )
    return Status(201, _sweep(request, found))


@router.get("/sweeps/{sweep_id}", response=SweepOut, summary="One sweep")
def get_sweep(request: HttpRequest, sweep_id: str) -> dict[str, Any]:
    """Its runs, the best held-out score first."""
    return _sweep(request, _sweep_of(request, sweep_id))


@router.post("/sweeps/{sweep_id}/cancel", response=SweepOut, summary="Cancel a sweep")
def cancel_sweep(request: HttpRequest, sweep_id: str) -> dict[str, Any]:
    """Ask every run that is not over to stop."""
    caller, sweep = caller_of(request), _sweep_of(request, sweep_id)
    _allowed(request, "run.create", sweep)
    sweeps.cancel_all(sweep, caller.user)
    return _sweep(request, sweep)


@router.get("/races", response=RacePage, summary="List races")
def list_races(request: HttpRequest, before: str = "", limit: int = Query(50, ge=1, le=MOST)) -> dict[str, Any]:
    """Newest first."""
    caller, team = caller_in_team(request, "race.view")
    page, more = cursor.newest_first(races.races_for(caller.user, team), before, limit)
    return {"races": [{**row, "created": row["created"].isoformat()} for row in races.listed(page)], "next": more}


@router.post("/races", response={201: RaceOut}, summary="Start a race")
def start_race(request: HttpRequest, payload: RaceIn) -> Status[dict[str, Any]]:
    """Store a race; its runs start as they fit. The same key answers the race it made before."""
    caller, team = caller_in_team(request, "race.create")
    race = race_services.create_race(
        team=team,
        user=caller.user,
        project=project_of(caller, team, payload.project),
        name=payload.name,
        spec=plan.read(payload.spec),
        key=payload.idempotency_key,
    )
    return Status(201, _race(races.race_for(caller.user, race.public_id)))


@router.get("/races/{race_id}", response=RaceOut, summary="One race")
def get_race(request: HttpRequest, race_id: str) -> dict[str, Any]:
    """Its spec, its entries as they stand, and the results so far with their intervals."""
    return _race(_race_of(request, race_id))


@router.post("/races/{race_id}/pause", response=RaceOut, summary="Pause a race")
def pause_race(request: HttpRequest, race_id: str) -> dict[str, Any]:
    """Start nothing more; what runs goes on to its end."""
    return _steer(request, race_id, race_services.pause_race)


@router.post("/races/{race_id}/resume", response=RaceOut, summary="Go on with a race")
def resume_race(request: HttpRequest, race_id: str) -> dict[str, Any]:
    """Take the pause back."""
    return _steer(request, race_id, race_services.resume_race)


@router.post("/races/{race_id}/cancel", response=RaceOut, summary="Cancel a race")
def cancel_race(request: HttpRequest, race_id: str) -> dict[str, Any]:
    """Stop its runs; what has finished stays and counts."""
    return _steer(request, race_id, race_services.cancel_race)


def _steer(request: HttpRequest, race_id: str, act: Callable[[Race, User], Race]) -> dict[str, Any]:
    whole = _race_of(request, race_id)
    _allowed(request, "race.edit", whole.race)
    act(whole.race, caller_of(request).user)
    return _race(_race_of(request, race_id))


_FILE = file_answer("text/html", "text/csv")


@router.get("/races/{race_id}/report.{form}", summary="A race's report", openapi_extra=_FILE)
def race_report(request: HttpRequest, race_id: str, form: str) -> HttpResponse:
    """`form`: html, one file that needs nothing else, or csv."""
    whole = _race_of(request, race_id)
    if form not in ("html", "csv"):
        raise Http404(form)
    text = report.page(whole, by=caller_of(request).user.email) if form == "html" else report_csv.table(whole)
    kind = "text/html; charset=utf-8" if form == "html" else "text/csv; charset=utf-8"
    return attachment(request, iter([text.encode()]), name=f"race-{whole.race.public_id}.{form}", content_type=kind)


@router.get("/views", response=ViewsOut, summary="Saved views")
def list_views(request: HttpRequest, page: str = "") -> dict[str, Any]:
    """Of the team, by name."""
    caller, team = caller_in_team(request, "view.view")
    return {"views": [_view(row) for row in views.views_for(caller.user, team, page)[:MOST]]}


@router.post("/views", response={201: ViewOut}, summary="Save a view")
def save_view(request: HttpRequest, payload: ViewIn) -> Status[dict[str, Any]]:
    """A name for a page and its query string; a name of the team's is given once."""
    caller, team = caller_in_team(request, "view.create")
    found = view_services.save_view(team, caller.user, page=payload.page, name=payload.name, query=payload.query)
    return Status(201, _view(found))


@router.delete("/views/{view_id}", response={204: None}, summary="Delete a saved view")
def delete_view(request: HttpRequest, view_id: str) -> Status[None]:
    """The runs it showed stay."""
    caller = caller_of(request)
    view = views.views_for(caller.user).filter(public_id=view_id).first()
    if view is None or not caller.may("view.view", view):
        raise Http404(view_id)
    _allowed(request, "view.edit", view)
    view_services.delete_view(view, caller.user)
    return Status(204, None)


def _allowed(request: HttpRequest, action: str, obj: Any) -> None:
    if not caller_of(request).may(action, obj):
        raise NotAllowed("your role or token does not allow this", field="user", value=action, cure="ask a maintainer of the team")


def _sweep_of(request: HttpRequest, public_id: str) -> Sweep:
    caller = caller_of(request)
    found = sweep_reads.sweeps_for(caller.user).filter(public_id=public_id).first()
    if found is None or not caller.may("run.view", found):
        raise Http404(public_id)
    return found


def _sweep(request: HttpRequest, sweep: Sweep) -> dict[str, Any]:
    found = sweep_reads.context(caller_of(request).user, sweep)
    return {
        "id": sweep.public_id,
        "name": sweep.name,
        "state": found["state"],
        "seeds": sweep.seeds,
        "axes": sweep.axes,
        "runs": [selectors.run_summary(row["run"]) for row in found["rows"]],
    }


def _race_of(request: HttpRequest, public_id: str) -> races.Whole:
    caller = caller_of(request)
    try:
        whole = races.race_for(caller.user, public_id)
    except Race.DoesNotExist:
        raise Http404(public_id) from None
    if not caller.may("race.view", whole.race):
        raise Http404(public_id)
    return whole


def _race(whole: races.Whole) -> dict[str, Any]:
    told = races.live(whole)
    return {
        "id": whole.race.public_id,
        "name": whole.race.name,
        "state": told["state"],
        "spec": whole.spec.model_dump(mode="json"),
        "live": told,
        "result": races.result(whole),
    }


def _view(row: SavedView) -> dict[str, Any]:
    return {"id": row.public_id, "page": row.page, "name": row.name, "query": row.query}
