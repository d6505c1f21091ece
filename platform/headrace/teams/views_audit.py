"""The audit trail's pages, for owners: read and filtered, verified, exported."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from django.http.response import HttpResponseBase
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.http import require_POST, require_safe

from headrace.streaming import attachment
from headrace.teams import audit, trail
from headrace.teams.forms import AuditForm
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.teams.views import current_team


@require_safe
def audit_page(request: HttpRequest) -> HttpResponse:
    """?person=&action=&object=&since=&until= filter, ?page= turns."""
    team = _team(request)
    form = AuditForm(request.GET, choices=trail.choices(team))
    filters = form.filters()
    text = request.GET.get("page", "")
    page = min(max(1, int(text)), 100_000) if text.isascii() and text.isdigit() and len(text) <= 6 else 1
    first = (page - 1) * trail.PAGE
    rows = list(trail.rows_of(team, filters)[first : first + trail.PAGE + 1])
    kept = {name: value for name, value in request.GET.items() if name in form.fields and value}
    context = {
        "section": "team",
        "tab": "audit",
        "team": team,
        "form": form,
        "lines": trail.lines(team, rows[: trail.PAGE]),
        "filtered": bool(kept),
        "newer": urlencode({**kept, "page": page - 1}) if page > 1 else "",
        "older": urlencode({**kept, "page": page + 1}) if len(rows) > trail.PAGE else "",
        "export": urlencode(kept),
        "first": first + 1,
        "last": first + min(len(rows), trail.PAGE),
    }
    return render(request, "team/audit.html", context, status=422 if form.errors else 200)


@require_POST
def verify(request: HttpRequest) -> HttpResponse:
    """Follows the hash chain and says what it found."""
    team = _team(request)
    user: Any = request.user
    check = trail.verify()
    if check.broken is not None:
        at = check.broken.created_at.strftime("%Y-%m-%d %H:%M:%S UTC")
        messages.error(request, f"The chain is broken after {check.rows} rows, at {at}: a row was changed or removed past the server.")
    elif check.complete:
        messages.success(request, f"The chain is whole: each of {check.rows} rows fits the row before it.")
    else:
        messages.warning(request, f"The first {check.rows} rows fit; time ran out before the end of the trail.")
    audit.record("audit.verify", user=user, team=team, detail={"rows": check.rows, "whole": check.broken is None})
    return redirect("/team/audit/")


@require_safe
def export(request: HttpRequest) -> HttpResponseBase:
    """The filtered trail as CSV."""
    team = _team(request)
    user: Any = request.user
    form = AuditForm(request.GET, choices=trail.choices(team))
    rows = trail.rows_of(team, form.filters())
    audit.record("audit.export", user=user, team=team)
    name = f"audit-{team.slug}-{timezone.now():%Y-%m-%d}.csv"
    return attachment(request, trail.as_csv(team, rows), name=name, content_type="text/csv; charset=utf-8")


def _team(request: HttpRequest) -> Team:
    team = current_team(request)
    if team is None or not can(request.user, "audit.view", team):
        raise PermissionDenied("The audit trail is for the owners of a team.")
    return team
