"""Runs, for people and their scripts: list, look, start, cancel, upload."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.http import Http404, HttpRequest
from ninja import Field, Router, Schema, Status

from headrace.api.auth import Caller
from headrace.experiments import selectors as runs_selectors
from headrace.experiments import services
from headrace.experiments.models import Project, Run
from headrace.experiments.problems import BadInput
from headrace.experiments.states import RunState
from headrace.identifiers import new_public_id
from headrace.teams.models import Team
from headrace.teams.services import NotAllowed
from headrace.telemetry import selectors, series
from workers.contract import loading

router = Router(tags=["runs"])
uploads = Router(tags=["uploads"])

LARGEST_PAGE = 200


class RunIn(Schema):
    """A run to start. `config` is a RunConfig or a part of one laid over `preset`; `set` holds path=value lines."""

    name: str = Field(min_length=1, max_length=200)
    config: dict[str, Any] = {}
    preset: str | None = None
    set: list[str] = []
    project: str | None = Field(None, description="public id of a project of the team; absent: the oldest one")
    parent: str | None = Field(None, description="public id of the run this one was cloned from")
    idempotency_key: str = Field(min_length=1, max_length=200)
    note: str = ""
    tags: list[str] = []


class UploadIn(Schema):
    """A run that was trained elsewhere and whose spool will be shipped."""

    name: str = Field(min_length=1, max_length=200)
    config: dict[str, Any]
    idempotency_key: str | None = Field(None, min_length=1, max_length=200, description="absent: every request makes a new run")
    project: str | None = None


class RunOut(Schema):
    """A run as the API names it."""

    id: str
    name: str
    state: str
    state_since: str
    created: str
    source: str
    preset: str
    seed: int
    project: str
    config_digest: str
    steps_total: int | None
    outcome_cause: dict[str, Any] | None
    summary: dict[str, Any]
    control: dict[str, Any]


class RunDetail(RunOut):
    """A run with its config and attempts."""

    config: dict[str, Any]
    attempts: list[dict[str, Any]]
    series: list[str]


class RunPage(Schema):
    """Newest first. `next` is the `before` of the next page; null on the last."""

    runs: list[RunOut]
    next: str | None


class UploadOut(Schema):
    """Where to ship: POST the spool to /api/v1/attempts/{attempt}/events with the token. The token is shown this once."""

    run: str
    attempt: str
    number: int
    fence: int
    ingested_through: int
    token: str


@router.get("", response=RunPage, summary="List runs")
def list_runs(request: HttpRequest, state: str = "", before: str = "", limit: int = 50) -> dict[str, Any]:
    """Runs of the caller's team that match, newest first."""
    caller, team = _caller(request, "run.view")
    rows = runs_selectors.runs_for(caller.user, team)
    if state:
        if state not in RunState.values:
            raise BadInput("not a state", field="state", value=state, cure=f"one of {', '.join(RunState.values)}")
        rows = rows.filter(state=state)
    if before:
        rows = rows.filter(created_at__lt=_time(before))
    if not 1 <= limit <= LARGEST_PAGE:
        raise BadInput("out of range", field="limit", value=limit, cure=f"1 to {LARGEST_PAGE}")
    page = list(rows[: limit + 1])
    more = page[limit - 1].created_at.isoformat() if len(page) > limit else None
    return {"runs": [selectors.run_summary(run) for run in page[:limit]], "next": more}


@router.post("", response={201: RunDetail}, summary="Start a run")
def start_run(request: HttpRequest, payload: RunIn) -> Status[dict[str, Any]]:
    """Queue a run. The same idempotency key answers the run it made before."""
    caller, team = _caller(request, "run.create")
    config = services.create_config(team, loading.resolve(payload.config, payload.preset, payload.set), user=caller.user)
    run = services.start_run(
        team=team,
        user=caller.user,
        config=config,
        project=_project(caller, team, payload.project),
        name=payload.name,
        idempotency_key=payload.idempotency_key,
        parent=_run(caller, payload.parent, "run.view", "parent") if payload.parent else None,
        source=Run.Source.API if caller.token else Run.Source.WEB,
        note=payload.note,
        tags=payload.tags,
    )
    return Status(201, _detail(run))


@router.get("/{run_id}", response=RunDetail, summary="One run")
def get_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """A run with its config and attempts."""
    caller: Caller = request.auth  # type: ignore[attr-defined]
    return _detail(_run(caller, run_id, "run.view"))


@router.post("/{run_id}/cancel", response=RunDetail, summary="Cancel a run")
def cancel_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Ask the run to stop. Cancelling what is over changes nothing."""
    caller: Caller = request.auth  # type: ignore[attr-defined]
    run = _run(caller, run_id, "run.view")
    if not caller.may("run.cancel", run):
        raise NotAllowed("you may not cancel this run", field="run", value=run_id, cure="ask a maintainer, or use a token that may write")
    services.cancel_run(run, caller.user)
    return _detail(_run(caller, run_id, "run.view"))


@router.post("/{run_id}/resume", response=RunDetail, summary="Resume a run")
def resume_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Queue a new attempt that goes on from the last complete checkpoint, or from the start if there is none."""
    caller: Caller = request.auth  # type: ignore[attr-defined]
    run = _run(caller, run_id, "run.view")
    if not caller.may("run.resume", run):
        raise NotAllowed("you may not resume this run", field="run", value=run_id, cure="ask a maintainer, or use a token that may write")
    services.resume_run(run, caller.user)
    return _detail(_run(caller, run_id, "run.view"))


@uploads.post("", response={201: UploadOut}, summary="Announce an upload")
def create_upload(request: HttpRequest, payload: UploadIn) -> Status[dict[str, Any]]:
    """Make the run and attempt that a spool is shipped to. The same key answers the same attempt with a fresh token."""
    caller, team = _caller(request, "run.create")
    run, attempt, token = services.create_upload(
        team=team,
        user=caller.user,
        data=payload.config,
        name=payload.name,
        idempotency_key=payload.idempotency_key or f"upload-{new_public_id()}",
        project=_project(caller, team, payload.project) if payload.project else None,
    )
    answer = {
        "run": run.public_id,
        "attempt": attempt.public_id,
        "number": attempt.number,
        "fence": attempt.fence,
        "ingested_through": attempt.ingested_through,
        "token": token,
    }
    return Status(201, answer)


def _caller(request: HttpRequest, action: str) -> tuple[Caller, Team]:
    caller: Caller = request.auth  # type: ignore[attr-defined]
    team = caller.team()
    if team is None or not caller.may(action, team):
        raise NotAllowed("your role or token does not allow this", field="user", value=action, cure="ask an owner of the team")
    return caller, team


def _run(caller: Caller, public_id: str, action: str, field: str = "run") -> Run:
    run = runs_selectors.runs_for(caller.user).filter(public_id=public_id).select_related("team").first()
    if run is None or not caller.may(action, run):
        if field != "run":
            raise BadInput("no such run", field=field, value=public_id, cure="name one of this team's runs")
        raise Http404(public_id)
    return run


def _project(caller: Caller, team: Team, public_id: str | None) -> Project:
    projects = runs_selectors.projects_for(caller.user, team)
    found = (projects.filter(public_id=public_id) if public_id else projects).first()
    if found is None:
        raise BadInput("no such project", field="project", value=public_id, cure="name one of this team's projects")
    return found


def _detail(run: Run) -> dict[str, Any]:
    attempts = [selectors.attempt_summary(row) for row in runs_selectors.attempts_of(run)]
    return {**selectors.run_summary(run), "config": run.config.data, "attempts": attempts, "series": series.names(run)}


def _time(text: str) -> datetime:
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput("not a time with zone", field="before", value=text, cure="send the `next` of the page before")
    return found
