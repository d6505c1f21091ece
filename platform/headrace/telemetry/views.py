"""JSON for the run page. Session login, one team's runs only; what is not visible answers 404."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET

from headrace.experiments.models import Attempt, Run
from headrace.telemetry import selectors, series
from headrace.telemetry.access import run_or_404
from headrace.telemetry.derive import OUTCOMES, check_name
from workers.contract.errors import HeadraceError
from workers.contract.events import MAX_BATCH_EVENTS

_BIGINT = 2**63 - 1


class BadQuery(HeadraceError):
    """A query parameter that cannot be used."""


def json_of_run(view: Callable[..., dict[str, Any]]) -> Callable[..., HttpResponse]:
    """A GET view of one run that returns a JSON object: signed in or 401, visible or 404, usable query or 400."""

    @require_GET
    @login_not_required  # answers 401 in JSON: a redirect to a login page would be of no use to fetch()
    @wraps(view)
    def wrapped(request: HttpRequest, public_id: str, **kwargs: Any) -> HttpResponse:
        if not request.user.is_authenticated:
            return JsonResponse({"code": "login_required", "message": "sign in first", "cure": "/login/"}, status=401)
        try:
            body = view(request, run_or_404(request.user, public_id), **kwargs)
        except Http404:
            return JsonResponse({"code": "not_found", "message": "there is no such run, or not for you"}, status=404)
        except HeadraceError as error:
            return JsonResponse({"code": "bad_query", **error.as_dict()}, status=400)
        response = JsonResponse(body, json_dumps_params={"separators": (",", ":"), "allow_nan": False})
        response.headers["Cache-Control"] = "private, no-store"
        return response

    return cast("Callable[..., HttpResponse]", wrapped)


@json_of_run
def snapshot(request: HttpRequest, run: Run) -> dict[str, Any]:
    """What the page shows first."""
    return selectors.snapshot(run)


@json_of_run
def series_columns(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?names=a,b&x=step|time&from=&to=&buckets=500; without names: the list of names."""
    attempt = selectors.current_attempt(run)
    through = attempt.ingested_through if attempt else 0
    wanted = [check_name(name, "names") for name in request.GET.get("names", "").split(",") if name]
    if not wanted:
        return {"names": series.names(run), "series": {}, "through_seq": through}
    if len(wanted) > series.MAX_NAMES:
        raise BadQuery("too many names", field="names", value=len(wanted), cure=f"at most {series.MAX_NAMES} a request")
    x = request.GET.get("x", "step")
    if x not in ("step", "time"):
        raise BadQuery("not an axis", field="x", value=x, cure="step or time")
    buckets = _integer(request, "buckets", 500, 2, series.MAX_BUCKETS)
    lo, hi = _number(request, "from"), _number(request, "to")
    columns = series.read(run, wanted, x="step" if x == "step" else "time", lo=lo, hi=hi, buckets=buckets)
    return {"series": columns, "through_seq": through, "attempt": attempt.number if attempt else None}


@json_of_run
def events(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?attempt=n&after=seq&limit=2000: what a page missed."""
    attempt = _attempt(request, run)
    limit = _integer(request, "limit", MAX_BATCH_EVENTS, 1, MAX_BATCH_EVENTS)
    after = _integer(request, "after", 0, 0, _BIGINT)
    return {
        "attempt": attempt.number,
        "through_seq": attempt.ingested_through,
        "events": selectors.events(attempt, after, limit),
    }


@json_of_run
def lag(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Tokens trained at each lag, over steps."""
    return series.lag_histogram(run, _integer(request, "buckets", 500, 2, series.MAX_BUCKETS))


@json_of_run
def samples(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?step=&outcome=&q=&limit=: the newest samples that fit."""
    outcome = request.GET.get("outcome", "")
    if outcome and outcome not in OUTCOMES:
        raise BadQuery("not an outcome", field="outcome", value=outcome, cure=f"one of {', '.join(OUTCOMES)}")
    step = _integer(request, "step", 0, 0, _BIGINT) if request.GET.get("step") else None
    limit = _integer(request, "limit", selectors.MAX_SAMPLES, 1, selectors.MAX_SAMPLES)
    text = request.GET.get("q", "").replace("\x00", "")[:200]
    return {"samples": selectors.samples(run, step=step, outcome=outcome, text=text, limit=limit)}


@json_of_run
def sample(request: HttpRequest, run: Run, number: int, seq: int) -> dict[str, Any]:
    """One sample with its tokens, log-probs and versions."""
    attempt = selectors.attempt_numbered(run, number)
    event = selectors.sample_event(attempt, seq) if attempt else None
    if event is None:
        raise Http404("no such sample")
    return {"attempt": number, **event}


@json_of_run
def logs(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?attempt=n&after=seq&limit=: log lines, oldest first; without `after` the last ones."""
    if selectors.current_attempt(run) is None:
        return {"attempt": None, "logs": []}
    attempt = _attempt(request, run)
    after = _integer(request, "after", 0, 0, _BIGINT) if request.GET.get("after") else None
    limit = _integer(request, "limit", selectors.MAX_LOG_LINES, 1, selectors.MAX_LOG_LINES)
    return {"attempt": attempt.number, "logs": selectors.logs(attempt, after=after, limit=limit)}


def _attempt(request: HttpRequest, run: Run) -> Attempt:
    if request.GET.get("attempt"):
        found = selectors.attempt_numbered(run, _integer(request, "attempt", 1, 1, 2**31 - 1))
    else:
        found = selectors.current_attempt(run)
    if found is None:
        raise Http404("no such attempt")
    return found


def _integer(request: HttpRequest, name: str, default: int, low: int, high: int) -> int:
    text = request.GET.get(name, "")
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 19 and low <= int(text) <= high):
        raise BadQuery("not a whole number in range", field=name, value=text, cure=f"{low} to {high}")
    return int(text)


def _number(request: HttpRequest, name: str) -> float | None:
    text = request.GET.get(name, "")
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e18:
        raise BadQuery("not a finite number", field=name, value=text, cure="a step or Unix seconds")
    return value
