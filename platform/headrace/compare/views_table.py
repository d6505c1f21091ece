"""The runs table: the page, its rows alone, its CSV, the list of fields, and what is done to several runs at once."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from headrace.compare import fields, selectors, services, spreadsheet
from headrace.compare.models import SavedView
from headrace.compare.table import Table, mark
from headrace.compare.values import values
from headrace.experiments import listing
from headrace.experiments.models import Experiment
from headrace.experiments.problems import BadInput
from headrace.experiments.selectors import projects_for, runs_for
from headrace.experiments.states import RunState
from headrace.teams.policy import can
from headrace.teams.views import current_team

MOST_CSV = 5000
MOST_CHOICES = 200
CHUNK = 500
WORDS = {
    "tag": ("Tagged", "tag"),
    "untag": ("Tag taken off", "take the tag off"),
    "cancel": ("Asked to stop", "cancel"),
    "archive": ("Put away", "put away"),
    "unarchive": ("Taken back", "take back"),
    "delete": ("Deleted", "delete"),
}


@require_safe
def runs_page(request: HttpRequest) -> HttpResponse:
    """?q=&state=&project=&experiment=&archived=1 choose, ?cols=&sort=&page= show; ?rows=1: the table alone, for the page's refresh."""
    user: Any = request.user
    team = current_team(request)
    table = Table(user, team, request.GET)
    first = (table.page - 1) * listing.PAGE
    found = list(table.runs()[first : first + listing.PAGE + 1])
    heads = table.heads()
    context = {
        "section": "runs",
        "team": team,
        "table": table,
        "heads": heads,
        "sorts": heads if table.error is None else [],
        "rows": listing.rows(found[: listing.PAGE], table.columns),
        "fault": mark(table.q, table.error) if table.error else None,
        "newer": table.link(page=table.page - 1) if table.page > 1 else "",
        "older": table.link(page=table.page + 1) if len(found) > listing.PAGE else "",
        "first": first + 1,
        "last": first + min(len(found), listing.PAGE),
    }
    if request.GET.get("rows"):
        return render(request, "runs/rows.html", context)
    return render(request, "runs/list.html", {**context, **_around(user, team, table, bool(found))})


def _around(user: Any, team: Any, table: Table, found: bool) -> dict[str, Any]:
    """What stands around the rows: choices, chips, what this user may press."""
    experiments: Any = Experiment.objects.for_team(team).filter(archived_at=None).order_by("-created_at") if team else []
    return {
        "can_create": team is not None and can(user, "run.create", team),
        "can_save": team is not None and can(user, "view.create", team),
        "any_runs": found or runs_for(user, team).exists(),
        "states": RunState.choices,
        "projects": projects_for(user, team)[:MOST_CHOICES],
        "experiments": experiments[:MOST_CHOICES],
        "given": table.given,
        "views": selectors.views_for(user, team, SavedView.Page.RUNS) if team else [],
        "query_string": table.link().removeprefix("?"),
        "column_keys": ",".join(item.key for item in table.columns),
        "csv_link": "/runs/table.csv" + table.link(),
    }


@require_safe
def table_csv(request: HttpRequest) -> HttpResponse:
    """The chosen columns of every run that fits, at most MOST_CSV, name and id first."""
    table = Table(request.user, current_team(request), request.GET)
    runs = list(table.runs()[:MOST_CSV])
    if table.error:
        return HttpResponse(f"{table.error}\n", status=400, content_type="text/plain; charset=utf-8")
    rows = []
    for start in range(0, len(runs), CHUNK):
        part = runs[start : start + CHUNK]
        found = values(part, table.columns)
        rows += [[run.public_id, run.name, *(found[run.pk][item.key] for item in table.columns)] for run in part]
    return spreadsheet.answer("runs.csv", ["id", "name", *(item.key for item in table.columns)], rows)


@require_safe
def fields_json(request: HttpRequest) -> HttpResponse:
    """Every field there is, for completion and for the pickers."""
    response = JsonResponse({"fields": [item.as_dict() for item in fields.every(current_team(request))]})
    response["Cache-Control"] = "private, max-age=60"
    return response


@require_POST
def bulk(request: HttpRequest) -> HttpResponse:
    """`run` (several), `action`, `tag`, `back` (the table's query string). What cannot be undone is asked once more first."""
    user: Any = request.user
    team = current_team(request)
    back = _back(request)
    action = request.POST.get("action", "")
    chosen = request.POST.getlist("run")
    runs = selectors.runs_by_id(user, team, chosen, services.MOST_AT_ONCE) if team else []
    if not runs:
        messages.error(request, "Choose at least one run first.")
        return redirect(back)
    if action == "compare":
        return redirect("/compare/?runs=" + ",".join(run.public_id for run in runs[: selectors.MOST_RUNS]))
    if action in services.ASKS_FIRST and not request.POST.get("sure"):
        fit = [run for run in runs if run.is_over == (action == "delete")]
        context = {"section": "runs", "action": action, "fit": fit, "unfit": [run for run in runs if run not in fit], "back": back}
        return render(request, "runs/bulk.html", context | {"query_string": back.partition("?")[2]})
    try:
        outcome = services.apply_to(runs, user, action, tag=request.POST.get("tag", ""))
    except BadInput as fault:
        messages.error(request, f"{str(fault.field).capitalize()}: {fault.message}. To do: {fault.cure}.")
        return redirect(back)
    done, verb = WORDS[action]
    if outcome.done:
        messages.success(request, f"{done}: {_named([run.name for run in outcome.done])}.")
    for run, why in outcome.refused[:5]:
        messages.error(request, f"Could not {verb} {run.name}: {why}.")
    if len(outcome.refused) > 5:
        messages.error(request, f"And {len(outcome.refused) - 5} more could not be changed.")
    return redirect(back)


def _named(names: list[str]) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} runs"


def _back(request: HttpRequest) -> str:
    """The table as it was; only its query string is taken from the form, never an address."""
    try:
        kept = services.clean_query(request.POST.get("back", ""))
    except BadInput:
        kept = ""
    return "/runs/" + (f"?{kept}" if kept else "")
