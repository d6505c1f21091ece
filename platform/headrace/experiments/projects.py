"""Writes and reads of projects and experiments: what groups a team's runs and says what they are for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.db import IntegrityError, transaction
from django.db.models import Count, Q, QuerySet
from django.utils import timezone
from django.utils.text import slugify

from headrace.experiments.models import Experiment, Project
from headrace.experiments.problems import BadInput, WrongState
from headrace.experiments.text import clean_line, clean_text
from headrace.teams import audit
from headrace.teams.models import Team, User
from headrace.teams.services import require

MOST_PROJECTS, MOST_EXPERIMENTS = 500, 1000
_ALIVE = Q(runs__deleted_at=None)


@dataclass(frozen=True)
class Folder:
    """A project with its experiments, as the page lists them. Each row carries `run_count`."""

    project: Project
    experiments: list[Experiment]


def projects_of(user: Any, team: Team, *, archived: bool = False) -> QuerySet[Project]:
    """The team's projects with `run_count`, oldest first; the first one takes runs that name none."""
    rows = Project.objects.for_user(user).filter(team=team)
    rows = rows if archived else rows.filter(archived_at=None)
    return rows.annotate(run_count=Count("runs", filter=_ALIVE)).order_by("created_at", "pk")


def project_for(user: Any, team: Team, public_id: str) -> Project:
    """One project of the team in view. Raises Project.DoesNotExist."""
    return projects_of(user, team, archived=True).get(public_id=public_id)


def experiments_of(user: Any, projects: list[Project], *, archived: bool = False) -> list[Experiment]:
    """Experiments of these projects with `run_count`, newest first."""
    rows = Experiment.objects.for_user(user).filter(project__in=projects)
    rows = rows if archived else rows.filter(archived_at=None)
    return list(
        rows.annotate(run_count=Count("runs", filter=_ALIVE)).select_related("created_by").order_by("-created_at", "-pk")[:MOST_EXPERIMENTS]
    )


def experiment_for(user: Any, project: Project, public_id: str) -> Experiment:
    """One experiment of a project. Raises Experiment.DoesNotExist."""
    return Experiment.objects.for_user(user).filter(project=project).get(public_id=public_id)


def folders(user: Any, team: Team, *, archived: bool = False) -> list[Folder]:
    """Every project of the team with its experiments, with two queries."""
    projects = list(projects_of(user, team, archived=archived)[:MOST_PROJECTS])
    inside: dict[int, list[Experiment]] = {}
    for experiment in experiments_of(user, projects):
        inside.setdefault(experiment.project_id, []).append(experiment)  # type: ignore[attr-defined]
    return [Folder(project, inside.get(project.pk, [])) for project in projects]


def create_project(*, team: Team, user: User, name: str, note: str = "") -> Project:
    """Raises BadInput for a name that is empty, odd or taken."""
    require(user, "project.create", team)
    name, note = clean_line(name, field="name"), clean_text(note, field="note")
    if Project.objects.for_team(team).count() >= MOST_PROJECTS:
        raise BadInput(f"{MOST_PROJECTS} projects exist", field="name", value=name, cure="use one of them")
    _check_free(team, name)
    try:
        with transaction.atomic():
            project = Project.objects.create(team=team, name=name, note=note, slug=_slug(team, name))
            audit.record("project.create", user=user, team=team, obj=project, detail={"name": name})
    except IntegrityError:  # the same name at the same moment
        raise BadInput("is taken", field="name", value=name, cure="choose another name") from None
    return project


@transaction.atomic
def edit_project(project: Project, user: User, *, name: str, note: str) -> Project:
    """Another name, another note. The slug stays: scripts may use it."""
    require(user, "project.edit", project)
    name = clean_line(name, field="name")
    if name != project.name:
        _check_free(project.team, name)
    project.name, project.note = name, clean_text(note, field="note")
    project.save(update_fields=["name", "note"])
    audit.record("project.edit", user=user, team=project.team, obj=project, detail={"name": name})
    return project


@transaction.atomic
def archive_project(project: Project, user: User, *, archived: bool = True) -> None:
    """Out of the lists, and back. Its runs stay as they are. The last project of a team stays in."""
    require(user, "project.edit", project)
    others = Project.objects.for_team(project.team).select_for_update().filter(archived_at=None).exclude(pk=project.pk)
    if archived and not others:
        raise WrongState("a team needs a project", field="project", value=project.name, cure="make another one first")
    project.archived_at = timezone.now() if archived else None
    project.save(update_fields=["archived_at"])
    audit.record("project.archive" if archived else "project.restore", user=user, team=project.team, obj=project)


@transaction.atomic
def create_experiment(*, project: Project, user: User, name: str, note: str = "") -> Experiment:
    """Raises BadInput for a name that is empty, odd or taken in the project."""
    require(user, "experiment.create", project)
    name, note = clean_line(name, field="name"), clean_text(note, field="note")
    here = Experiment.objects.for_team(project.team).filter(project=project)
    if here.count() >= MOST_EXPERIMENTS:
        raise BadInput(f"{MOST_EXPERIMENTS} experiments exist here", field="name", value=name, cure="use another project")
    if here.filter(name__iexact=name).exists():
        raise BadInput("is taken in this project", field="name", value=name, cure="choose another name")
    experiment = Experiment.objects.create(team=project.team, project=project, name=name, note=note, created_by=user)
    audit.record("experiment.create", user=user, team=project.team, obj=experiment, detail={"name": name})
    return experiment


@transaction.atomic
def edit_experiment(experiment: Experiment, user: User, *, name: str, note: str) -> Experiment:
    """Another name, another note."""
    require(user, "experiment.edit", experiment)
    experiment.name, experiment.note = clean_line(name, field="name"), clean_text(note, field="note")
    experiment.save(update_fields=["name", "note"])
    audit.record("experiment.edit", user=user, team=experiment.team, obj=experiment, detail={"name": experiment.name})
    return experiment


@transaction.atomic
def archive_experiment(experiment: Experiment, user: User, *, archived: bool = True) -> None:
    """Out of the lists, and back. Its runs stay as they are."""
    require(user, "experiment.edit", experiment)
    experiment.archived_at = timezone.now() if archived else None
    experiment.save(update_fields=["archived_at"])
    audit.record("experiment.archive" if archived else "experiment.restore", user=user, team=experiment.team, obj=experiment)


def _check_free(team: Team, name: str) -> None:
    if Project.objects.for_team(team).filter(name__iexact=name).exists():
        raise BadInput("is taken", field="name", value=name, cure="choose another name")


def _slug(team: Team, name: str) -> str:
    """A slug that is free in the team; names without a letter or digit of ASCII get "project"."""
    base = slugify(name)[:50] or "project"
    taken = set(Project.objects.for_team(team).filter(slug__startswith=base).values_list("slug", flat=True))
    return next(slug for number in range(1, MOST_PROJECTS + 2) if (slug := base if number == 1 else f"{base}-{number}") not in taken)
