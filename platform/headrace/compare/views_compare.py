"""The comparison page: up to 32 runs by id, by group or by query, and the data it draws from."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlencode

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from headrace.compare import board, fields, overlay, query, selectors, spreadsheet, where
from headrace.compare.models import SavedView
from headrace.compare.query import QueryError
from headrace.compare.table import mark
from headrace.compare.values import values
from headrace.experiments import listing
from headrace.experiments.models import Run
from headrace.experiments.selectors import runs_for
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.teams.views import current_team
from headrace.telemetry.derive import check_name
from workers.contract.errors import HeadraceError

MOST_FOUND = 20
MOST_GROUPS = 50


class BadQuery(HeadraceError):
    """A parameter of a data request that cannot be used."""


@dataclass
class Choice:
    """The runs a link asks for. `missing`: ids that are not there, or not for this user; `more`: the query fits more than are shown."""

    runs: list[Run] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)
    more: bool = False
    error: QueryError | None = None
    text: str = ""


def chosen(request: HttpRequest, team: Team | None) -> Choice:
    """By ?runs=a,b (or ?run=a&run=b), else by ?group=, else by ?q=."""
    user: Any = request.user
    ids = [part.strip()[:20] for text in (*request.GET.getlist("runs"), *request.GET.getlist("run")) for part in text.split(",")]
    ids = list(dict.fromkeys(part for part in ids if part))
    if team is None:
        return Choice()
    if ids:
        runs = selectors.runs_by_id(user, team, ids, selectors.MOST_RUNS)
        there = {run.public_id for run in runs}
        return Choice(runs, [part for part in ids[: selectors.MOST_RUNS] if part not in there], len(ids) > selectors.MOST_RUNS)
    group, text = request.GET.get("group", "").replace("\x00", "")[:100], request.GET.get("q", "").replace("\x00", "").strip()
    text = text[: query.LONGEST] or (f"group:{query.quote(group)} sort:created" if group else "")
    if not text:
        return Choice()
    try:
        found = selectors.runs_by_query(user, team, text)
    except QueryError as fault:
        return Choice(error=fault, text=text)
    return Choice(found[: selectors.MOST_RUNS], [], len(found) > selectors.MOST_RUNS, None, text)


@require_safe
def compare_page(request: HttpRequest) -> HttpResponse:
    """The page; ?part=results: the table of results alone, for the page's own change of columns."""
    user: Any = request.user
    team = current_team(request)
    choice = chosen(request, team)
    runs = choice.runs
    columns, unknown = _columns(request, runs)
    context: dict[str, Any] = {"section": "compare", "team": team, "runs": runs, "choice": choice, "columns": columns, "unknown": unknown}
    context |= {
        "rows": listing.rows(runs, columns),
        "keys": ",".join(item.key for item in columns),
        "query_string": request.GET.urlencode(),
    }
    context["ids"] = ",".join(run.public_id for run in runs)
    if request.GET.get("part") == "results":
        return render(request, "compare/results.html", context)
    every = request.GET.get("diff") == "all"
    context |= {
        "fault": mark(choice.text, choice.error) if choice.error else None,
        "can_save": team is not None and can(user, "view.create", team),
        "views": selectors.views_for(user, team, SavedView.Page.COMPARE) if team else [],
        "groups": _groups(user, team),
        "any_runs": bool(runs) or (team is not None and runs_for(user, team).exists()),
        "most": selectors.MOST_RUNS,
        "recent": runs_for(user, team)[:8] if team and not runs else [],
    }
    if runs:
        data = board.board(runs)
        context |= {
            "diff": board.config_diff(runs, every=every) if len(runs) > 1 or every else [],
            "diff_all": every,
            "diff_link": _link(request, diff="" if every else "all"),
            "warned": board.not_comparable(runs),
            "page_data": {**data, "series": board.metric_names(runs), "varied": [item.key for item in board.varied(runs)[:MOST_GROUPS]]},
        }
    return render(request, "compare/compare.html", context)


@require_safe
def series_json(request: HttpRequest) -> HttpResponse:
    """?runs=&names=a,b&x=step|samples|tokens|time&by=field&band=sd|ci|range: every curve of the page in one answer."""
    try:
        choice, names, x = _asked(request)
        by = fields.resolve(request.GET["by"][:300]) if request.GET.get("by") else None
        kind = request.GET.get("band") or "sd"
        if kind not in overlay.BANDS:
            raise BadQuery("not a band", field="band", value=kind, cure=f"one of {', '.join(overlay.BANDS)}")
        body = overlay.overlay(choice.runs, names, x, by, kind)
    except HeadraceError as fault:
        return JsonResponse({"code": "bad_query", **fault.as_dict()}, status=400)
    body["active"] = any(not run.is_over for run in choice.runs)
    response = JsonResponse(body, json_dumps_params={"separators": (",", ":"), "allow_nan": False})
    response["Cache-Control"] = "private, no-store"
    return response


@require_safe
def data_json(request: HttpRequest) -> HttpResponse:
    """The values of every field of the runs, as the page holds them: for its refresh while runs go on."""
    choice = chosen(request, current_team(request))
    response = JsonResponse(board.board(choice.runs))
    response["Cache-Control"] = "private, no-store"
    return response


@require_safe
def series_csv(request: HttpRequest) -> HttpResponse:
    """The chosen curves, a line a point: run, name, series, x, value."""
    try:
        choice, names, x = _asked(request)
    except HeadraceError as fault:
        return HttpResponse(f"{fault}\n", status=400, content_type="text/plain; charset=utf-8")
    drawn = overlay.lines(choice.runs, names, x)
    rows = []
    for name, mine in drawn.items():
        for run in choice.runs:
            if run.pk in mine:
                places, found = mine[run.pk]
                rows += [
                    [run.public_id, run.name, name, place, value] for place, value in zip(places.tolist(), found.tolist(), strict=True)
                ]
    return spreadsheet.answer("comparison-series.csv", ["run", "name", "series", x if x != "time" else "minutes", "value"], rows)


@require_safe
def results_csv(request: HttpRequest) -> HttpResponse:
    """The table of results with its chosen columns."""
    runs = chosen(request, current_team(request)).runs
    columns, _ = _columns(request, runs)
    found = values(runs, columns)
    rows = [[run.public_id, run.name, *(found[run.pk][item.key] for item in columns)] for run in runs]
    return spreadsheet.answer("comparison.csv", ["id", "name", *(item.key for item in columns)], rows)


@require_safe
def search_json(request: HttpRequest) -> HttpResponse:
    """?q=: runs to add, the newest first; a query that is not finished yet finds nothing."""
    user: Any = request.user
    team = current_team(request)
    if team is None:
        return JsonResponse({"runs": []})
    runs = runs_for(user, team).filter(archived_at=None)
    try:
        parsed = query.parse(request.GET.get("q", "").replace("\x00", "").strip())
        runs, _ = where.apply(runs, parsed, team=team, user=user)
    except QueryError as fault:
        return JsonResponse({"runs": [], "error": {**fault.as_dict()}})
    found = [
        {"id": run.public_id, "name": run.name, "state": run.state, "preset": run.preset.partition("@")[0], "group": run.group}
        for run in runs[:MOST_FOUND]
    ]
    return JsonResponse({"runs": found})


def _asked(request: HttpRequest) -> tuple[Choice, list[str], str]:
    names = [check_name(name, "names") for name in request.GET.get("names", "").split(",") if name]
    if not 1 <= len(names) <= overlay.MOST_NAMES:
        raise BadQuery("not a number of series that can be drawn", field="names", value=len(names), cure=f"1 to {overlay.MOST_NAMES} names")
    x = request.GET.get("x") or "step"
    if x not in overlay.AXES:
        raise BadQuery("not an axis", field="x", value=x, cure=f"one of {', '.join(overlay.AXES)}")
    return chosen(request, current_team(request)), names, x


def _columns(request: HttpRequest, runs: list[Run]) -> tuple[list[fields.RunField], list[str]]:
    given = request.GET.get("cols", "")[:2000]
    columns, unknown = fields.columns(given, board.default_columns(runs) if not given else (), listing.MOST_COLUMNS)
    return [item for item in columns if item.key != "name"], unknown


def _groups(user: Any, team: Team | None) -> list[str]:
    """Names of the newest groups and sweeps of the team."""
    if team is None:
        return []
    named = runs_for(user, team).exclude(group="").order_by("-created_at").values_list("group", flat=True)[:500]
    return list(dict.fromkeys(named))[:MOST_GROUPS]


def _link(request: HttpRequest, **changes: str) -> str:
    """This link with some parameters changed; an empty value takes one out."""
    kept = {name: value for name, value in request.GET.dict().items() if name != "part"} | changes
    return "?" + urlencode({name: value for name, value in kept.items() if value})
