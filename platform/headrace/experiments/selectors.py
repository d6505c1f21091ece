"""All reads of this app. What a user may not see does not exist: DoesNotExist, as for an id that never was."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from headrace.experiments.models import Artifact, Attempt, Config, Experiment, Project, Run, RunTransition
from headrace.teams.models import Team


def runs_for(user: Any, team: Team | None = None) -> QuerySet[Run]:
    """Runs the user may see, newest first; of one team if given."""
    runs = Run.objects.for_user(user).filter(deleted_at=None)
    if team is not None:
        runs = runs.filter(team=team)
    return runs.select_related("config", "project", "created_by").order_by("-created_at", "-pk")


def run_for(user: Any, public_id: str) -> Run:
    """One run. Raises Run.DoesNotExist."""
    return runs_for(user).select_related("team").get(public_id=public_id)


def projects_for(user: Any, team: Team | None = None) -> QuerySet[Project]:
    projects = Project.objects.for_user(user).filter(archived_at=None)
    return (projects if team is None else projects.filter(team=team)).order_by("created_at", "pk")


def experiments_for(user: Any, project: Project) -> QuerySet[Experiment]:
    return Experiment.objects.for_user(user).filter(project=project, archived_at=None).order_by("-created_at")


def config_for(user: Any, public_id: str) -> Config:
    """One config. Raises Config.DoesNotExist."""
    return Config.objects.for_user(user).get(public_id=public_id)


def attempts_of(run: Run) -> QuerySet[Attempt]:
    """Every attempt of a run the caller may see, first one first."""
    return Attempt.objects.for_team(run.team).filter(run=run).order_by("number")


def current_attempt(run: Run) -> Attempt | None:
    return attempts_of(run).last()


def transitions_of(run: Run) -> QuerySet[RunTransition]:
    return RunTransition.objects.for_team(run.team).filter(run=run).select_related("attempt").order_by("at", "pk")


def artifacts_of(run: Run) -> QuerySet[Artifact]:
    return Artifact.objects.for_team(run.team).filter(run=run).select_related("attempt").order_by("-created_at", "-pk")
