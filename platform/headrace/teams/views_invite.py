"""/invite/<secret>/: GET shows team and role, only a good POST spends the link. A link that does not work never says why."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ValidationError
from django.http import HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods

from headrace.teams import invitations, services
from headrace.teams.forms import SetupForm
from headrace.teams.models import Invitation, User
from headrace.teams.policy import role_in
from headrace.teams.roles import SUMMARIES
from headrace.teams.selectors import SESSION_TEAM
from headrace.teams.views import show_faults


@login_not_required
@never_cache
@csrf_protect
@sensitive_post_parameters("password", "again")
@require_http_methods(["GET", "HEAD", "POST"])
def invite(request: HttpRequest, secret: str) -> HttpResponse:
    """A signed-in person joins with one press; a new one gives name and password and joins."""
    try:
        row = invitations.look(secret, request.META.get("REMOTE_ADDR", ""))
        if isinstance(request.user, User):
            return _signed_in(request, row, secret)
        return _newcomer(request, row, secret)
    except invitations.TooManyTries:
        return render(request, "account/invite_spent.html", status=429)
    except services.LinkSpent:
        return render(request, "account/invite_spent.html", status=410)


def _signed_in(request: HttpRequest, row: Invitation, secret: str) -> HttpResponse:
    user: Any = request.user
    for_other = bool(row.email) and row.email != user.email
    if request.method == "POST":
        try:
            done = invitations.accept(secret, user)
        except services.NotAllowed:
            invitations.refused(row)
            return render(request, "account/invite.html", _context(request, row) | {"for_other": True}, status=422)
        return _welcome(request, done)
    already = role_in(user, row.team) is not None
    return render(request, "account/invite.html", _context(request, row) | {"for_other": for_other, "already": already})


def _newcomer(request: HttpRequest, row: Invitation, secret: str) -> HttpResponse:
    form = SetupForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            done = invitations.accept_as_new(secret, email=data["email"], name=data["name"], password=data["password"])
        except ValidationError as fault:
            show_faults(form, fault)
        else:
            login(request, done.user, backend="headrace.teams.backends.LimitedLogin")
            return _welcome(request, done)
    if form.errors:
        invitations.refused(row)
    return render(request, "account/invite.html", _context(request, row) | {"form": form}, status=422 if form.errors else 200)


def _welcome(request: HttpRequest, done: invitations.Accepted) -> HttpResponse:
    request.session[SESSION_TEAM] = done.team.public_id
    word = "Welcome to" if done.joined else "You are in this team already:"
    messages.success(request, f"{word} {done.team.name}.")
    return redirect("/runs/")


def _context(request: HttpRequest, row: Invitation) -> dict[str, Any]:
    return {
        "invitation": row,
        "team": row.team,
        "summary": next(text for role, text in SUMMARIES.items() if role == row.role),
        "by": row.created_by.get_full_name() if row.created_by else "",
        "login": f"/login/?next={quote(request.path)}",
    }
