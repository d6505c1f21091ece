"""The queue: who waits for what, and the buttons that change it. Thin: selectors read, services write, the policy decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from headrace.dispatch import queue_page as reads
from headrace.dispatch import queue_services
from headrace.dispatch.capacity import cluster_of
from headrace.experiments.forms import sentence
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.teams.views import current_team
from headrace.telemetry.access import run_or_404
from workers.contract.errors import HeadraceError


@require_safe
def queue_page(request: HttpRequest) -> HttpResponse:
    """?rows=1 answers with the tables alone, for the page's own refresh."""
    user: Any = request.user
    team = current_team(request)
    if team is None or not can(user, "cluster.view", team):
        return render(request, "queue/queue.html", {"section": "queue", "team": None})
    context = {
        "section": "queue",
        "team": team,
        **reads.context(user, team),
        "can_create": can(user, "run.create", team),
        "can_quota": can(user, "quota.edit", team),
        "can_price": queue_services.may_price(user, team, cluster_of(team)),
    }
    return render(request, "queue/rows.html" if request.GET.get("rows") else "queue/queue.html", context)


@require_safe
def place(request: HttpRequest, public_id: str) -> JsonResponse:
    """Why a run waits, and since when it will not."""
    return JsonResponse(reads.place_of(run_or_404(request.user, public_id)))


@require_POST
def priority(request: HttpRequest, public_id: str) -> HttpResponse:
    """Moves a queued run up or down."""
    run = run_or_404(request.user, public_id)
    user: Any = request.user
    text = request.POST.get("priority", "").strip()
    wanted: Any = int(text) if text.removeprefix("-").isdigit() and len(text) <= 5 and text.isascii() else text
    return _press(request, lambda: queue_services.set_priority(run, user, wanted))


@require_POST
def quota(request: HttpRequest) -> HttpResponse:
    """What the team may have under way; owners only."""
    user: Any = request.user
    team = _team(request)
    names = ("most_running", "most_queued", "device_hours_month")
    values = {name: request.POST.get(name, "") for name in names}
    return _press(request, lambda: queue_services.set_quota(team, user, **values), done="The quota is saved.")


@require_POST
def price(request: HttpRequest) -> HttpResponse:
    """What a device-hour costs; owners of the team's own cluster, staff for the server's."""
    user: Any = request.user
    team = _team(request)
    values = {"price": request.POST.get("price", ""), "currency": request.POST.get("currency", "")}
    return _press(request, lambda: queue_services.set_price(team, user, **values), done="The price is saved.")


def _team(request: HttpRequest) -> Team:
    team = current_team(request)
    if team is None:
        raise PermissionDenied("You belong to no team yet.")
    return team


def _press(request: HttpRequest, action: Callable[[], Any], *, done: str = "") -> HttpResponse:
    try:
        action()
    except NotAllowed as fault:
        raise PermissionDenied(sentence(fault.message, fault.cure)) from None
    except HeadraceError as fault:
        messages.error(request, f"{(fault.field or 'value').replace('_', ' ').capitalize()}: {sentence(fault.message, fault.cure)}")
        return redirect("/queue/")
    if done:
        messages.success(request, done)
    return redirect("/queue/")
