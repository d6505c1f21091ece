"""Runs, for people and their scripts: list, look, start, steer, edit, upload."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest
from ninja import Router, Status

from headrace.api import cursor
from headrace.api.callers import caller_in_team, caller_of, experiment_of, named_run, project_of, run_of
from headrace.api.schemas import Extension, RunDetail, RunEdit, RunIn, RunPage, UploadIn, UploadOut
from headrace.compare import where
from headrace.compare.query import QueryError, parse
from headrace.experiments import control, services
from headrace.experiments import selectors as runs_selectors
from headrace.experiments.budget import budget_of
from headrace.experiments.editions import edition
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput
from headrace.experiments.states import RunState
from headrace.identifiers import new_public_id
from headrace.telemetry import selectors, series
from workers.contract import loading

router = Router(tags=["runs"])
uploads = Router(tags=["uploads"])

LARGEST_PAGE = 200


@router.get("", response=RunPage, summary="List runs")
def list_runs(request: HttpRequest, state: str = "", group: str = "", query: str = "", before: str = "", limit: int = 50) -> dict[str, Any]:
    """Runs of the caller's team that match, newest first or as the query sorts. `query`: as in the runs table, `reward>0.6 sort:-reward`.

    `before`: the `next` of the page before.
    """
    caller, team = caller_in_team(request, "run.view")
    rows = runs_selectors.runs_for(caller.user, team)
    if state:
        if state not in RunState.values:
            raise BadInput("not a state", field="state", value=state, cure=f"one of {', '.join(RunState.values)}")
        rows = rows.filter(state=state)
    if group:
        rows = rows.filter(group=group)
    if not 1 <= limit <= LARGEST_PAGE:
        raise BadInput("out of range", field="limit", value=limit, cure=f"1 to {LARGEST_PAGE}")
    try:
        parsed = parse(query)
        if query:
            rows, _ = where.apply(rows, parsed, team=team, user=caller.user)
    except QueryError as fault:
        fault.field = "query"  # what the pages call q
        raise
    page, more = (cursor.as_sorted if parsed.sort else cursor.newest_first)(rows, before, limit)
    return {"runs": [selectors.run_summary(run) for run in page], "next": more}


@router.post("", response={201: RunDetail}, summary="Start a run")
def start_run(request: HttpRequest, payload: RunIn) -> Status[dict[str, Any]]:
    """Queue a run. The same idempotency key answers the run it made before."""
    caller, team = caller_in_team(request, "run.create")
    project = project_of(caller, team, payload.project)
    experiment = experiment_of(caller, project, payload.experiment)
    parent = named_run(caller, payload.parent, "parent") if payload.parent else None
    if payload.priority > 0 and not caller.may("queue.edit", team):
        raise BadInput("more than 0 is for maintainers", field="priority", value=payload.priority, cure="leave it at 0 or ask a maintainer")
    config = services.create_config(team, loading.resolve(payload.config, payload.preset, payload.set), user=caller.user)
    run = services.start_run(
        team=team,
        user=caller.user,
        config=config,
        project=project,
        experiment=experiment,
        name=payload.name,
        idempotency_key=payload.idempotency_key,
        parent=parent,
        source=Run.Source.API if caller.token else Run.Source.WEB,
        note=payload.note,
        tags=payload.tags,
        group=payload.group,
        priority=payload.priority,
    )
    return Status(201, detail(run))


@router.get("/{run_id}", response=RunDetail, summary="One run")
def get_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """A run with its config and attempts."""
    return detail(run_of(caller_of(request), run_id))


@router.patch("/{run_id}", response=RunDetail, summary="Edit a run's words")
def edit_run(request: HttpRequest, run_id: str, payload: RunEdit) -> dict[str, Any]:
    """Name, note and tags; what the run did stays."""
    caller = caller_of(request)
    run = run_of(caller, run_id, "run.edit")
    services.edit_run(run, caller.user, name=payload.name, note=payload.note, tags=payload.tags, version=payload.version)
    return _fresh(request, run_id)


@router.delete("/{run_id}", response={204: None}, summary="Delete a run")
def delete_run(request: HttpRequest, run_id: str) -> Status[None]:
    """Put a run that is over out of sight."""
    caller = caller_of(request)
    services.delete_run(run_of(caller, run_id, "run.delete"), caller.user)
    return Status(204, None)


@router.post("/{run_id}/cancel", response=RunDetail, summary="Cancel a run")
def cancel_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Ask the run to stop. Cancelling what is over changes nothing."""
    caller = caller_of(request)
    services.cancel_run(run_of(caller, run_id, "run.cancel"), caller.user)
    return _fresh(request, run_id)


@router.post("/{run_id}/resume", response=RunDetail, summary="Resume a run")
def resume_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Queue a new attempt that goes on from the last complete checkpoint, or from the start if there is none."""
    caller = caller_of(request)
    services.resume_run(run_of(caller, run_id, "run.resume"), caller.user)
    return _fresh(request, run_id)


@router.post("/{run_id}/pause", response=RunDetail, summary="Pause a run")
def pause_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Hold at the end of the step; nothing is lost, the processes stay."""
    caller = caller_of(request)
    control.pause_run(run_of(caller, run_id, "run.edit"), caller.user)
    return _fresh(request, run_id)


@router.post("/{run_id}/continue", response=RunDetail, summary="Go on with a paused run")
def continue_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Take the pause back."""
    caller = caller_of(request)
    control.go_on(run_of(caller, run_id, "run.edit"), caller.user)
    return _fresh(request, run_id)


@router.post("/{run_id}/stop", response=RunDetail, summary="Stop after this step")
def stop_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """End the run, as succeeded, after the step it is in."""
    caller = caller_of(request)
    control.stop_after_step(run_of(caller, run_id, "run.cancel"), caller.user)
    return _fresh(request, run_id)


@router.post("/{run_id}/checkpoint", response=RunDetail, summary="Checkpoint now")
def checkpoint_run(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Write a checkpoint at the end of the step."""
    caller = caller_of(request)
    control.checkpoint_now(run_of(caller, run_id, "run.edit"), caller.user)
    return _fresh(request, run_id)


@router.post("/{run_id}/extend", response=RunDetail, summary="Change the budget")
def extend_run(request: HttpRequest, run_id: str, payload: Extension) -> dict[str, Any]:
    """More steps or time, or fewer, but never less than what is done; what is not named stays.

    A run that is over keeps it for its resume.
    """
    caller = caller_of(request)
    run = run_of(caller, run_id, "run.edit")
    now = budget_of(run)
    steps = now.steps if payload.steps is None else payload.steps
    control.extend_budget(run, caller.user, steps=steps, wall_s=now.wall_s if payload.wall_s is None else payload.wall_s)
    return _fresh(request, run_id)


@uploads.post("", response={201: UploadOut}, summary="Announce an upload")
def create_upload(request: HttpRequest, payload: UploadIn) -> Status[dict[str, Any]]:
    """Make the run and attempt that a spool is shipped to. The same key answers the same attempt with a fresh token."""
    caller, team = caller_in_team(request, "run.create")
    run, attempt, token = services.create_upload(
        team=team,
        user=caller.user,
        data=payload.config,
        name=payload.name,
        idempotency_key=payload.idempotency_key or f"upload-{new_public_id()}",
        project=project_of(caller, team, payload.project) if payload.project else None,
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


def _fresh(request: HttpRequest, run_id: str) -> dict[str, Any]:
    return detail(run_of(caller_of(request), run_id))


def detail(run: Run) -> dict[str, Any]:
    """The answer about one run."""
    attempts = [selectors.attempt_summary(row) for row in runs_selectors.attempts_of(run)]
    return {
        **selectors.run_summary(run),
        "version": edition(run),
        "config": run.config.data,
        "attempts": attempts,
        "series": series.names(run),
    }
