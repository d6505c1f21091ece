"""Pages of projects and their experiments, under the team."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from headrace.experiments import projects
from headrace.experiments.models import Experiment, Project
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.teams.views_team import team_or_403
from workers.contract.errors import HeadraceError


class NamedForm(forms.Form):
    """Name and note of a project or an experiment."""

    name = forms.CharField(label="Name", max_length=200, widget=forms.TextInput(attrs={"class": "input", "autocomplete": "off"}))
    note = forms.CharField(
        label="Note",
        max_length=20_000,
        required=False,
        help_text="What it is for. May be empty.",
        widget=forms.Textarea(attrs={"class": "input prose-input", "rows": 3}),
    )


@require_http_methods(["GET", "HEAD", "POST"])
def project_list(request: HttpRequest) -> HttpResponse:
    """Every project with its experiments. ?archived=1 shows those out of the lists. A POST makes a project."""
    user: Any = request.user
    team = team_or_403(request, "project.view" if request.method != "POST" else "project.create")
    form = NamedForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        made = _try(form, lambda: projects.create_project(team=team, user=user, **form.cleaned_data))
        if made:
            messages.success(request, f"The project “{made.name}” is there.")
            return redirect(f"/team/projects/{made.public_id}/")
    archived = request.GET.get("archived") == "1"
    context = {
        "section": "team",
        "tab": "projects",
        "team": team,
        "folders": projects.folders(user, team, archived=archived),
        "archived": archived,
        "form": form,
        "may_create": can(user, "project.create", team),
    }
    return render(request, "team/projects.html", context, status=422 if form.errors else 200)


@require_http_methods(["GET", "HEAD", "POST"])
def project(request: HttpRequest, public_id: str) -> HttpResponse:
    """One project. POST by its button's name: `save` edits it, `create` makes an experiment inside."""
    user: Any = request.user
    team, row = _project(request, public_id)
    posted = request.POST if request.method == "POST" else None
    edit = NamedForm(posted if posted and "save" in posted else None, initial={"name": row.name, "note": row.note})
    create = NamedForm(posted if posted and "create" in posted else None, prefix="new")
    if edit.is_bound and _may(user, "project.edit", row) and edit.is_valid():
        if _try(edit, lambda: projects.edit_project(row, user, **edit.cleaned_data)):
            messages.success(request, "The project is saved.")
            return redirect(f"/team/projects/{row.public_id}/")
    elif create.is_bound and _may(user, "experiment.create", row) and create.is_valid():
        made = _try(create, lambda: projects.create_experiment(project=row, user=user, **create.cleaned_data))
        if made:
            messages.success(request, f"The experiment “{made.name}” is there.")
            return redirect(f"/team/projects/{row.public_id}/")
    inside = projects.experiments_of(user, [row], archived=True)
    context = {
        "section": "team",
        "tab": "projects",
        "team": team,
        "project": row,
        "edit": edit,
        "create": create,
        "experiments": [{"row": item, "may": can(user, "experiment.edit", item)} for item in inside],
        "may_edit": can(user, "project.edit", row),
        "may_create": can(user, "experiment.create", row),
    }
    return render(request, "team/project.html", context, status=422 if edit.errors or create.errors else 200)


@require_POST
def archive_project(request: HttpRequest, public_id: str) -> HttpResponse:
    """`archived=1` takes the project out of the lists, anything else brings it back."""
    user: Any = request.user
    _, row = _project(request, public_id)
    _press(request, lambda: projects.archive_project(row, user, archived=request.POST.get("archived") == "1"))
    return redirect(f"/team/projects/{row.public_id}/")


@require_http_methods(["GET", "HEAD", "POST"])
def experiment(request: HttpRequest, public_id: str, experiment_id: str) -> HttpResponse:
    """Name and note of one experiment."""
    user: Any = request.user
    team, row, item = _experiment(request, public_id, experiment_id)
    _may(user, "experiment.edit", item)
    form = NamedForm(request.POST or None, initial={"name": item.name, "note": item.note})
    if request.method == "POST" and form.is_valid() and _try(form, lambda: projects.edit_experiment(item, user, **form.cleaned_data)):
        messages.success(request, "The experiment is saved.")
        return redirect(f"/team/projects/{row.public_id}/")
    context = {"section": "team", "tab": "projects", "team": team, "project": row, "experiment": item, "form": form}
    return render(request, "team/experiment.html", context, status=422 if form.errors else 200)


@require_POST
def archive_experiment(request: HttpRequest, public_id: str, experiment_id: str) -> HttpResponse:
    """As `archive_project`."""
    user: Any = request.user
    _, row, item = _experiment(request, public_id, experiment_id)
    _press(request, lambda: projects.archive_experiment(item, user, archived=request.POST.get("archived") == "1"))
    return redirect(f"/team/projects/{row.public_id}/")


def _project(request: HttpRequest, public_id: str) -> tuple[Team, Project]:
    team = team_or_403(request, "project.view")
    try:
        return team, projects.project_for(request.user, team, public_id)
    except Project.DoesNotExist:
        raise Http404("no such project") from None


def _experiment(request: HttpRequest, public_id: str, experiment_id: str) -> tuple[Team, Project, Experiment]:
    team, row = _project(request, public_id)
    try:
        return team, row, projects.experiment_for(request.user, row, experiment_id)
    except Experiment.DoesNotExist:
        raise Http404("no such experiment") from None


def _may(user: Any, action: str, row: Any) -> bool:
    if not can(user, action, row):
        raise PermissionDenied("Your role in this team does not allow this. An owner of the team can change it.")
    return True


def _try(form: forms.Form, act: Callable[[], Any]) -> Any:
    """What the service made, or None with its refusal at the form's field."""
    try:
        return act()
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    except HeadraceError as fault:
        text = f"{fault.message[:1].upper()}{fault.message[1:]}. To do: {fault.cure}."
        form.add_error(fault.field if fault.field in form.fields else None, text)
        return None


def _press(request: HttpRequest, act: Callable[[], None]) -> None:
    try:
        act()
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    except HeadraceError as fault:
        messages.error(request, f"{fault.message[:1].upper()}{fault.message[1:]}. To do: {fault.cure}.")
