"""/search.json: what the command palette finds. Names of the current team's things, and words of the help; never another team's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.db.models import Q
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from headrace.compare.races.selectors import races_for
from headrace.compare.selectors import views_for
from headrace.compare.services import address
from headrace.experiments.selectors import projects_for, runs_for
from headrace.experiments.sweep_reads import sweeps_for
from headrace.teams.models import Team
from headrace.teams.views import current_team
from workers.contract import axes, metrics, presets

MOST_OF_A_KIND = 6
LONGEST = 100

Entry = dict[str, str]


@login_not_required  # answers 401 in JSON: a redirect to a login page would be of no use to fetch()
@require_safe
def search(request: HttpRequest) -> JsonResponse:
    """?q=: {entries: [{kind, title, note, url}]}. An empty question finds the newest runs."""
    if not request.user.is_authenticated:
        return JsonResponse({"code": "login_required", "message": "sign in first", "cure": "/login/"}, status=401)
    text = request.GET.get("q", "").replace("\x00", "").strip()[:LONGEST]
    team = current_team(request)
    found = list(_of_the_team(request.user, team, text)) if team else []
    if text:
        found += _of_the_help(text.lower())
    return JsonResponse({"entries": found}, json_dumps_params={"separators": (",", ":")})


def _of_the_team(user: Any, team: Team, text: str) -> Iterator[Entry]:
    runs = runs_for(user, team).filter(Q(name__icontains=text) | Q(public_id__startswith=text) | Q(preset__icontains=text))
    for run in runs[:MOST_OF_A_KIND]:
        yield _entry("Run", run.name, f"{run.state}, {run.preset or 'no preset'}", f"/runs/{run.public_id}/")
    if not text:
        return
    for race in races_for(user, team).filter(name__icontains=text)[:MOST_OF_A_KIND]:
        yield _entry("Race", race.name, "", f"/races/{race.public_id}/")
    for sweep in sweeps_for(user, team).filter(name__icontains=text)[:MOST_OF_A_KIND]:
        yield _entry("Sweep", sweep.name, "", f"/sweeps/{sweep.public_id}/")
    for view in views_for(user, team).filter(name__icontains=text)[:MOST_OF_A_KIND]:
        yield _entry("View", view.name, view.get_page_display(), address(view))
    for project in projects_for(user, team).filter(name__icontains=text)[:MOST_OF_A_KIND]:
        yield _entry("Project", project.name, project.note[:80], f"/team/projects/{project.public_id}/")


def _of_the_help(text: str) -> Iterator[Entry]:
    listed = [row for head in presets.catalogue() for row in (head, *head["variants"])]
    hits = (row for row in listed if text in f"{row['name']} {row['title']}".lower())
    for row in _first(hits):
        yield _entry("Preset", row["name"], row["title"], f"/runs/new/?preset={row['name']}")
    kinds = ((axis, kind) for axis, described in axes.DESCRIPTIONS.items() for kind in described)
    for axis, kind in _first(pair for pair in kinds if text in f"{pair[0]} {pair[1]}".lower()):
        yield _entry("Help", f"{axis}: {kind}", axes.DESCRIPTIONS[axis][kind][:100], f"/help/axes/#{axis}")
    for metric in _first(row for row in metrics.CATALOGUE.values() if text in f"{row.name} {row.title}".lower()):
        yield _entry("Metric", metric.title, metric.name, "/help/axes/#metrics")


def _first(rows: Iterator[Any]) -> Iterator[Any]:
    for _, row in zip(range(MOST_OF_A_KIND), rows, strict=False):
        yield row


def _entry(kind: str, title: str, note: str, url: str) -> Entry:
    return {"kind": kind, "title": title, "note": note, "url": url}
