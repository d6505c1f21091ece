"""JSON for the run page. Session login, one team's runs only; what is not visible answers 404."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.contrib.auth.decorators import login_not_required
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_GET

from headrace.experiments.models import Attempt, Run
from headrace.telemetry import selectors, series
from headrace.telemetry.access import run_or_404
from headrace.telemetry.derive import check_name
from headrace.telemetry.queries import BIGINT, BadQuery, integer, number
from workers.contract.errors import HeadraceError
from workers.contract.events import MAX_BATCH_EVENTS


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
    buckets = integer(request, "buckets", 500, 2, series.MAX_BUCKETS)
    lo, hi = number(request, "from"), number(request, "to")
    columns = series.read(run, wanted, x="step" if x == "step" else "time", lo=lo, hi=hi, buckets=buckets)
    return {"series": columns, "through_seq": through, "attempt": attempt.number if attempt else None}


@json_of_run
def events(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?attempt=n&after=seq&limit=2000: what a page missed."""
    attempt = chosen_attempt(request, run)
    limit = integer(request, "limit", MAX_BATCH_EVENTS, 1, MAX_BATCH_EVENTS)
    after = integer(request, "after", 0, 0, BIGINT)
    return {
        "attempt": attempt.number,
        "through_seq": attempt.ingested_through,
        "events": selectors.events(attempt, after, limit),
    }


@json_of_run
def lag(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Tokens trained at each lag, over steps."""
    return series.lag_histogram(run, integer(request, "buckets", 500, 2, series.MAX_BUCKETS))


def chosen_attempt(request: HttpRequest, run: Run) -> Attempt:
    """The attempt that ?attempt= names, or the newest. Raises Http404."""
    if request.GET.get("attempt"):
        found = selectors.attempt_numbered(run, integer(request, "attempt", 1, 1, 2**31 - 1))
    else:
        found = selectors.current_attempt(run)
    if found is None:
        raise Http404("no such attempt")
    return found
