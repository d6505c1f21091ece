"""JSON for the time bar of the run page: the run as it was, and the axis it is chosen on."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest

from headrace.experiments.models import Run
from headrace.telemetry import travel
from headrace.telemetry.queries import BadQuery, number
from headrace.telemetry.views import json_of_run

_LATEST_T = 253_402_300_799.0  # the last second of year 9999, as far as dates go


@json_of_run
def then(request: HttpRequest, run: Run) -> dict[str, Any]:
    """?t=Unix seconds: the page as it was then."""
    t = number(request, "t", "Unix seconds")
    if t is None or not 0 <= t <= _LATEST_T:
        raise BadQuery("not an instant", field="t", value=request.GET.get("t", "")[:80], cure="Unix seconds within the run")
    return travel.at(run, t)


@json_of_run
def axis(request: HttpRequest, run: Run) -> dict[str, Any]:
    """Start, end, attempts and marks."""
    return travel.axis(run)
