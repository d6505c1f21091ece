"""Pages of races. Thin: selectors read, services write, the policy decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_GET, require_http_methods, require_POST, require_safe

from headrace.compare.races import plan, planning, race_form, report, report_csv, selectors, services
from headrace.compare.races.models import Race
from headrace.compare.races.race_form import Draft
from headrace.experiments import guide
from headrace.experiments import selectors as experiments
from headrace.experiments.problems import BadInput
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.teams.views import current_team
from workers.contract import presets
from workers.contract.errors import ConfigError, HeadraceError

DENIED = "Races are made by maintainers of the team. An owner can change your role."


def race_or_404(request: HttpRequest, public_id: str) -> selectors.Whole:
    """The race, if this user may see it; another team's race answers as one that never was."""
    try:
        whole = selectors.race_for(request.user, public_id)
    except Race.DoesNotExist:
        raise Http404(f"no race {public_id}") from None
    if not can(request.user, "race.view", whole.race):
        raise Http404(f"no race {public_id}")
    return whole


@require_safe
def race_list(request: HttpRequest) -> HttpResponse:
    """?page= turns."""
    team = current_team(request)
    text = request.GET.get("page", "")
    page = max(1, int(text)) if text.isascii() and text.isdigit() and len(text) <= 6 else 1
    first = (page - 1) * selectors.PAGE
    found = list(selectors.races_for(request.user, team)[first : first + selectors.PAGE + 1]) if team else []
    context = {
        "section": "races",
        "team": team,
        "can_create": team is not None and can(request.user, "race.create", team),
        "rows": selectors.listed(found[: selectors.PAGE]),
        "newer": page - 1,
        "older": page + 1 if len(found) > selectors.PAGE else 0,
    }
    return render(request, "races/list.html", context)


@require_http_methods(["GET", "HEAD", "POST"])
def new_race(request: HttpRequest) -> HttpResponse:
    """GET fills the form from ?preset= or ?like=; POST shows the preview, plans the race or starts it, by its button."""
    team = current_team(request)
    if team is None or not can(request.user, "race.create", team):
        raise PermissionDenied(DENIED)
    if request.method != "POST":
        if request.GET.get("like"):
            whole = race_or_404(request, request.GET["like"])
            return _show_form(request, race_form.like(whole.spec, whole.race.name))
        return _show_form(request, race_form.fresh(request.GET.getlist("preset")))
    draft = race_form.read(request.POST, team)
    if request.POST.get("action") != "start" or not draft.sound:
        return _show_form(request, draft)
    return _start(request, draft)


@require_POST
def preview(request: HttpRequest) -> HttpResponse:
    """The form as it stands, judged: the part beside it. Nothing is stored."""
    team = current_team(request)
    if team is None or not can(request.user, "race.create", team):
        raise PermissionDenied(DENIED)
    draft = race_form.read(request.POST, team)
    context = {"draft": draft, "preview": race_form.preview(draft, team), "errors": _error_links(draft)}
    if request.POST.get("action") == "plan":
        context["planned"] = planning.planned(draft, team)
    return render(request, "races/preview.html", context)


@require_safe
def race_detail(request: HttpRequest, public_id: str) -> HttpResponse:
    """The race's page. ?parts=1 answers with what changes while it goes on, for the page's own refresh."""
    whole = race_or_404(request, public_id)
    context = report.context(whole)
    race = whole.race
    context |= {
        "section": "races",
        "can_edit": can(request.user, "race.edit", race),
        "can_create": can(request.user, "race.create", race.team),
        "page_data": {"race": race.public_id, "over": race.closed_at is not None, "live": context["live"]},
    }
    return render(request, "races/parts.html" if request.GET.get("parts") else "races/detail.html", context)


def _json(view: Callable[[HttpRequest, selectors.Whole], dict[str, Any]]) -> Callable[..., HttpResponse]:
    """A GET view of one race that answers in JSON: signed in or 401, visible or 404."""

    @require_GET
    @login_not_required  # answers 401 in JSON: a redirect to a login page would be of no use to fetch()
    @wraps(view)
    def wrapped(request: HttpRequest, public_id: str) -> HttpResponse:
        if not request.user.is_authenticated:
            return JsonResponse({"code": "login_required", "message": "sign in first", "cure": "/login/"}, status=401)
        try:
            body = view(request, race_or_404(request, public_id))
        except Http404:
            return JsonResponse({"code": "not_found", "message": "there is no such race, or not for you"}, status=404)
        response = JsonResponse(body, json_dumps_params={"separators": (",", ":"), "allow_nan": False})
        response.headers["Cache-Control"] = "private, no-store"
        return response

    return wrapped


@_json
def live_json(request: HttpRequest, whole: selectors.Whole) -> dict[str, Any]:
    return selectors.live(whole)


@_json
def results_json(request: HttpRequest, whole: selectors.Whole) -> dict[str, Any]:
    return selectors.result(whole)


@require_safe
def report_html(request: HttpRequest, public_id: str) -> HttpResponse:
    """One file with everything in it: no script, nothing fetched from anywhere."""
    whole = race_or_404(request, public_id)
    page = report.page(whole, by=str(request.user))
    return _file(page, f"race-{whole.race.public_id}.html", "text/html; charset=utf-8")


@require_safe
def results_csv(request: HttpRequest, public_id: str) -> HttpResponse:
    """A row for each figure of each entry."""
    whole = race_or_404(request, public_id)
    return _file(report_csv.table(whole), f"race-{whole.race.public_id}.csv", "text/csv; charset=utf-8")


def _file(text: str, name: str, content_type: str) -> HttpResponse:
    response = HttpResponse(text.encode(), content_type=content_type)
    response.headers["Content-Disposition"] = f'attachment; filename="{name}"'
    response.headers["Cache-Control"] = "private, no-store"
    response.headers["Content-Security-Policy"] = "sandbox; default-src 'none'; style-src 'unsafe-inline'"
    return response


@require_POST
def control(request: HttpRequest, public_id: str, action: str) -> HttpResponse:
    """The buttons: pause, resume, cancel, and `again` for one entry."""
    whole = race_or_404(request, public_id)
    acts = {"pause": services.pause_race, "resume": services.resume_race, "cancel": services.cancel_race}
    said = {
        "pause": "Nothing more is started. What runs goes on to its end.",
        "resume": "The race goes on.",
        "cancel": "The race is being cancelled. What has finished stays.",
        "again": "The entry is run again.",
    }
    try:
        if action == "again":
            place = request.POST.get("entry", "")
            services.run_again(whole.race, request.user, int(place) if place.isascii() and place.isdigit() and len(place) < 6 else -1)
        else:
            acts[action](whole.race, request.user)
        messages.success(request, said[action])
    except NotAllowed:
        raise PermissionDenied(DENIED) from None
    except HeadraceError as error:
        messages.error(request, f"{error.message[:1].upper()}{error.message[1:]}. {(error.cure or '').capitalize()}".strip())
    return redirect(f"/races/{whole.race.public_id}/")


def _start(request: HttpRequest, draft: Draft) -> HttpResponse:
    team = current_team(request)
    projects = {project.public_id: project for project in experiments.projects_for(request.user, team)}
    project = projects.get(draft.project) or next(iter(projects.values()), None)
    if team is None or project is None or draft.spec is None:
        draft.errors.setdefault("project", []).append("This team has no project. Make one first.")
        return _show_form(request, draft)
    name = draft.name.strip() or " and ".join(one.label for one in draft.spec.contenders[:3])
    try:
        race = services.create_race(team=team, user=request.user, project=project, name=name, spec=draft.spec, key=draft.key)
    except (BadInput, ConfigError) as error:
        draft.errors.setdefault(error.field if error.field == "name" else "", []).append(f"{error.message}. {error.cure or ''}".strip())
        return _show_form(request, draft)
    messages.success(request, "The race is on its way.")
    return redirect(f"/races/{race.public_id}/")


def _error_links(draft: Draft) -> list[dict[str, str]]:
    """Every fault with the input it belongs to."""
    fields = {item.path: item for items in race_form.workload_fields(draft) for item in items}
    own = {"contenders": "Contenders", "own": "Own variants", "seeds": "Seeds", "stop_value": "Stop rule", "stop_kind": "Stop rule"}
    own |= {
        "limit_s": "Time limit",
        "devices": "Devices",
        "at_once": "Side by side",
        "retries": "Tries",
        "name": "Name",
        "equal": "Settings",
    }
    links = []
    for name, faults in draft.errors.items():
        item = fields.get(name)
        anchor = item.input_id if item else f"race-{name.replace('_', '-')}"
        links += [{"id": anchor, "title": item.title if item else own.get(name, "Race"), "error": text} for text in faults]
    return links


def _show_form(request: HttpRequest, draft: Draft) -> HttpResponse:
    team = current_team(request)
    if draft.spec is None and draft.submitted is None and team is not None:
        draft = race_form.judged(draft, team)
    shown, folded = race_form.workload_fields(draft)
    columns = [{"name": axis, "title": guide.SHORT_AXES.get(axis, guide.axis_title(axis))} for axis in report.SHOWN_AXES]
    context = {
        "section": "races",
        "team": team,
        "draft": draft,
        "catalogue": presets.catalogue(everything=True),
        "columns": columns,
        "preset_names": presets.names(),
        "workload": shown,
        "workload_more": folded,
        "more_has_errors": any(item.errors for item in folded),
        "stops": [{"name": name, "title": title, "unit": unit} for name, (title, unit) in plan.STOP_WORDS.items()],
        "projects": list(experiments.projects_for(request.user, team)),
        "preview": race_form.preview(draft, team) if team else {},
        "errors": _error_links(draft),
    }
    if request.method == "POST" and request.POST.get("action") == "plan" and team is not None:
        context["planned"] = planning.planned(draft, team)
    return render(request, "races/new.html", context)
