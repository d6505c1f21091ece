"""What a caller asks about, found or refused: another team's id is answered as one that never was."""

from __future__ import annotations

from datetime import datetime

from django.http import Http404, HttpRequest

from headrace.api.auth import Caller
from headrace.experiments import selectors
from headrace.experiments.models import Experiment, Project, Run
from headrace.experiments.problems import BadInput
from headrace.teams.models import Team
from headrace.teams.services import NotAllowed


def caller_of(request: HttpRequest) -> Caller:
    found: Caller = request.auth  # type: ignore[attr-defined]
    return found


def caller_in_team(request: HttpRequest, action: str) -> tuple[Caller, Team]:
    """The caller and the team that new things belong to. Raises NotAllowed."""
    caller = caller_of(request)
    team = caller.team()
    if team is None or not caller.may(action, team):
        raise NotAllowed("your role or token does not allow this", field="user", value=action, cure="ask an owner of the team")
    return caller, team


def run_of(caller: Caller, public_id: str, action: str = "run.view") -> Run:
    """One run. Raises Http404 for one that the caller may not see, NotAllowed for one it may not do `action` to."""
    run = selectors.runs_for(caller.user).filter(public_id=public_id).select_related("team").first()
    if run is None or not caller.may("run.view", run):
        raise Http404(public_id)
    if not caller.may(action, run):
        word = action.partition(".")[2]
        raise NotAllowed(
            f"you may not {word} this run", field="run", value=public_id, cure="ask a maintainer, or use a token that may write"
        )
    return run


def named_run(caller: Caller, public_id: str, field: str) -> Run:
    """A run that a body names. Raises BadInput on the field."""
    try:
        return run_of(caller, public_id)
    except Http404:
        raise BadInput("no such run", field=field, value=public_id, cure="name one of this team's runs") from None


def project_of(caller: Caller, team: Team, public_id: str | None) -> Project:
    """The named project, or the team's oldest. Raises BadInput."""
    projects = selectors.projects_for(caller.user, team)
    found = (projects.filter(public_id=public_id) if public_id else projects).first()
    if found is None:
        raise BadInput("no such project", field="project", value=public_id, cure="name one of this team's projects")
    return found


def experiment_of(caller: Caller, project: Project, public_id: str | None) -> Experiment | None:
    """The named experiment of this project, or none. Raises BadInput."""
    if public_id is None:
        return None
    found = selectors.experiments_for(caller.user, project).filter(public_id=public_id).first()
    if found is None:
        raise BadInput("no such experiment in this project", field="experiment", value=public_id, cure="name one of this project's")
    return found


def moment(text: str, field: str) -> datetime:
    """A time with zone, in ISO 8601. Raises BadInput."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        found = None
    if found is None or found.tzinfo is None:
        raise BadInput("not a time with zone", field=field, value=text, cure="send the `next` of the page before")
    return found
