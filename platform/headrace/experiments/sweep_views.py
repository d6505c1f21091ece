"""The page of a sweep: its runs side by side, the best by held-out reward, and the button that ends them all."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from headrace.experiments import sweep_reads, sweeps
from headrace.experiments.models import Sweep
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.teams.views import current_team


@require_safe
def sweep_list(request: HttpRequest) -> HttpResponse:
    """The team's sweeps, newest first; ?page= turns."""
    team = current_team(request)
    text = request.GET.get("page", "")
    page = max(1, int(text)) if text.isascii() and text.isdigit() and len(text) <= 6 else 1
    context = {"section": "runs", "team": team, "can_create": team is not None and can(request.user, "run.create", team)}
    if team is not None and can(request.user, "run.view", team):
        context |= sweep_reads.listed(request.user, team, page)
    return render(request, "sweeps/list.html", context)


@require_safe
def sweep(request: HttpRequest, public_id: str) -> HttpResponse:
    """?rows=1 answers with the table alone, for the page's own refresh."""
    found = _sweep_or_404(request, public_id)
    context = {"section": "runs", "sweep": found, **sweep_reads.context(request.user, found)}
    return render(request, "sweeps/rows.html" if request.GET.get("rows") else "sweeps/sweep.html", context)


@require_POST
def cancel(request: HttpRequest, public_id: str) -> HttpResponse:
    """Asks every run of the sweep that is not over to stop."""
    found = _sweep_or_404(request, public_id)
    user: Any = request.user
    try:
        count = sweeps.cancel_all(found, user)
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    messages.success(request, f"{count} {'run was' if count == 1 else 'runs were'} asked to stop; those in the queue are over already.")
    return redirect(f"/sweeps/{found.public_id}/")


def _sweep_or_404(request: HttpRequest, public_id: str) -> Sweep:
    found = sweep_reads.sweeps_for(request.user).filter(public_id=public_id).first()
    if found is None or not can(request.user, "run.view", found):
        raise Http404(f"no sweep {public_id}")
    return found
