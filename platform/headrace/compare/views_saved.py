"""Saved views: the list, the permalink, and the buttons that make, rename and delete them."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from headrace.compare import selectors, services
from headrace.compare.models import SavedView
from headrace.experiments.problems import BadInput
from headrace.teams.policy import can_each
from headrace.teams.selectors import SESSION_TEAM
from headrace.teams.services import NotAllowed
from headrace.teams.views import current_team


@require_safe
def view_list(request: HttpRequest) -> HttpResponse:
    """Every saved view of the team."""
    user: Any = request.user
    team = current_team(request)
    views = list(selectors.views_for(user, team)) if team else []
    editable = can_each(user, "view.edit", views)
    rows = [{"view": view, "can_edit": may, "address": services.address(view)} for view, may in zip(views, editable, strict=True)]
    return render(request, "compare/views.html", {"section": "runs", "team": team, "rows": rows})


@require_safe
def open_view(request: HttpRequest, public_id: str) -> HttpResponse:
    """The permalink: to the page as it was saved, in the view's own team."""
    view = _view(request, public_id)
    if (team := current_team(request)) is None or team.pk != view.team.pk:
        request.session[SESSION_TEAM] = view.team.public_id
    return redirect(services.address(view))


@require_POST
def save(request: HttpRequest) -> HttpResponse:
    """`page`, `name`, `query`: keeps the link and goes back to the page."""
    user: Any = request.user
    team = current_team(request)
    if team is None:
        raise PermissionDenied("You are in no team yet.")
    page, name, query = (request.POST.get(key, "") for key in ("page", "name", "query"))
    try:
        view = services.save_view(team, user, page=page, name=name, query=query)
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    except BadInput as fault:
        messages.error(request, f"The view was not saved. {_said(fault)}")
        return redirect(_page(page, query))
    messages.success(request, f"Saved as “{view.name}”. Its link is /views/{view.public_id}/.")
    return redirect(services.address(view))


@require_POST
def rename(request: HttpRequest, public_id: str) -> HttpResponse:
    """`name`: the view is called that from now on."""
    return _press(request, public_id, lambda view, user: services.rename_view(view, user, request.POST.get("name", "")), "Renamed.")


@require_POST
def delete(request: HttpRequest, public_id: str) -> HttpResponse:
    """Forgets the view; its runs stay."""
    return _press(request, public_id, services.delete_view, "The view is deleted; its runs stay.")


def _press(request: HttpRequest, public_id: str, action: Any, done: str) -> HttpResponse:
    view = _view(request, public_id)
    try:
        action(view, request.user)
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    except BadInput as fault:
        messages.error(request, _said(fault))
    else:
        messages.success(request, done)
    return redirect("/views/")


def _view(request: HttpRequest, public_id: str) -> SavedView:
    try:
        return selectors.view_for(request.user, public_id)
    except SavedView.DoesNotExist:
        raise Http404(f"no view {public_id}") from None


def _page(page: str, query: str) -> str:
    """Back to where the form stood; of what was sent only a well-formed query string is used."""
    try:
        kept = services.clean_query(query)
    except BadInput:
        kept = ""
    return services.ADDRESSES.get(SavedView.Page(page) if page in SavedView.Page.values else SavedView.Page.RUNS, "/runs/") + (
        f"?{kept}" if kept else ""
    )


def _said(fault: BadInput) -> str:
    return f"{str(fault.field).capitalize()} {fault.message}: {fault.cure}."
