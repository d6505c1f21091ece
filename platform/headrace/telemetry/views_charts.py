"""JSON and files behind the run page's charts and timeline. Session login, one team's runs only."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET

from headrace.dispatch.capacity import price_of
from headrace.experiments.models import Run
from headrace.streaming import attachment
from headrace.telemetry import bands, export, selectors, series, timeline
from headrace.telemetry.access import run_or_404
from headrace.telemetry.derive import check_name
from headrace.telemetry.queries import BadQuery, choice, integer, number
from headrace.telemetry.views import json_of_run
from workers.contract.errors import HeadraceError


@json_of_run
def catalogue(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Every series of the run with its title, unit, meaning and last value."""
    return {"series": series.described(run)}


@json_of_run
def lanes(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?from=&to=&buckets=: what every lane did between two Unix seconds, every attempt's ledger, and what a device-hour costs."""
    buckets = integer(request, "buckets", 600, 10, series.MAX_BUCKETS)
    found = timeline.timeline(run, number(request, "from"), number(request, "to"), buckets=buckets)
    price = price_of(run)
    cost = {"per_device_hour": float(price.per_device_hour), "currency": price.currency} if price else None
    attempt = selectors.current_attempt(run)
    return {**found, "ledgers": timeline.ledgers(run), "price": cost, "through_seq": attempt.ingested_through if attempt else 0}


@json_of_run
def syncs(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?limit=: the newest publishes, oldest first."""
    return {"syncs": timeline.syncs(run, integer(request, "limit", 100, 1, timeline.SYNCS))}


@json_of_run
def seeds(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?names=a,b&x=step|time|samples|tokens&buckets=: the band over this run and its siblings. Without names: the siblings alone."""
    others = bands.siblings(run)
    names = _names(request, bands.MOST_NAMES)
    x: Any = choice(request, "x", ("step", "time", "samples", "tokens"), "step")
    buckets = integer(request, "buckets", 300, 2, series.MAX_BUCKETS)
    rows = [{"id": other.public_id, "name": other.name, "seed": other.seed, "state": other.state} for other in others]
    found = bands.read(run, others, names, x=x, buckets=buckets) if names and others else {}
    return {"runs": rows, "bands": found}


@require_GET
@login_not_required  # as the other data of a run: 401, not a page
def series_csv(request: HttpRequest, public_id: str) -> HttpResponse:
    """?names=a,b: every stored point of these series, as a file; without names: of all of them."""
    if not request.user.is_authenticated:
        return JsonResponse({"code": "login_required", "message": "sign in first", "cure": "/login/"}, status=401)
    try:
        run = run_or_404(request.user, public_id)
        pieces = export.export(run, "series", "csv", _names(request, series.MAX_NAMES))
        return attachment(request, pieces, name=f"{run.public_id}-series.csv", content_type=export.content_type("csv"))
    except Http404:
        return JsonResponse({"code": "not_found", "message": "there is no such run, or not for you"}, status=404)
    except HeadraceError as error:
        return JsonResponse({"code": "bad_query", **error.as_dict()}, status=400)


def _names(request: HttpRequest, most: int) -> list[str]:
    wanted = [check_name(name, "names") for name in request.GET.get("names", "").split(",") if name]
    if len(wanted) > most:
        raise BadQuery("too many names", field="names", value=len(wanted), cure=f"at most {most} a request")
    return wanted
