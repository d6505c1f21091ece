"""The teaching page: four sliders, and the real flow simulated by the engine in a process of its own."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from django.http import HttpRequest, HttpResponse, JsonResponse
from django.views.decorators.http import require_safe

from headrace.experiments import planner
from headrace.experiments.guide import page
from workers.contract.lesson import KNOBS


@require_safe
def lesson_page(request: HttpRequest) -> HttpResponse:
    """Drawn for what the address asks for; without a query for where the sliders stand at first."""
    asked, _ = _asked(request)
    sliders = [{**knob._asdict(), "value": f"{asked[knob.name]:g}"} for knob in KNOBS]
    try:
        found, trouble = both(asked), ""
    except (planner.PlannerFailed, planner.PlannerBusy) as error:
        found, trouble = None, str(error)
    return page(request, "async", {"sliders": sliders, "page_data": found, "trouble": trouble})


@require_safe
def lesson_json(request: HttpRequest) -> JsonResponse:
    """The same for one position of the sliders. 400 names what is out of its range, 503 says why nothing was simulated."""
    asked, wrong = _asked(request)
    if wrong:
        return JsonResponse({"errors": wrong}, status=400)
    try:
        return JsonResponse(both(asked))
    except (planner.PlannerFailed, planner.PlannerBusy) as error:
        return JsonResponse({"errors": [str(error)]}, status=503)


def both(asked: dict[str, float]) -> dict[str, Any]:
    """{now, turns}: the design of the sliders, and the same workload in turns. Raises PlannerFailed, PlannerBusy."""
    return {"now": simulated(**asked), "turns": simulated(**{**asked, "ahead": 0.0})}


@lru_cache(maxsize=512)
def simulated(ahead: float, max_lag: float, sync_s: float, spread: float) -> dict[str, Any]:
    """What `python -m workers lesson` says. Raises PlannerFailed, PlannerBusy."""
    return planner.lesson({"ahead": ahead, "max_lag": max_lag, "sync_s": sync_s, "spread": spread})


def _asked(request: HttpRequest) -> tuple[dict[str, float], list[str]]:
    """Every slider's value, and a sentence for each that was given and cannot be. Values lie on the slider's own steps."""
    values, wrong = {}, []
    for name, title, _, least, most, step, first in KNOBS:
        given = request.GET.get(name)
        values[name] = float(first)
        if given is None:
            continue
        try:
            value = float(given)
        except ValueError:
            value = float("nan")
        if least <= value <= most:
            values[name] = round(value / step) * step
        else:
            wrong.append(f"{name}: {title} is {given[:20]!r} -> give a number from {least:g} to {most:g}")
    return values, wrong
