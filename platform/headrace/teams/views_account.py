"""A person's own page: profile, password, sessions and API tokens. Reads and writes go through this app's services and selectors."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import update_session_auth_hash
from django.core.exceptions import PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from headrace.teams import selectors, services, sessions
from headrace.teams.forms import PasswordForm, ProfileForm, TokenForm
from headrace.teams.models import ApiToken, User
from headrace.teams.policy import can
from headrace.teams.views import current_team

TOKEN_IDS = "token_%s"  # two forms of this page have a field `name`


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """Profile, sessions and tokens. A POST makes a token and answers with its secret, which no later page shows."""
    user: Any = request.user
    team = current_team(request)
    if request.method != "POST":
        return _page(request)
    if team is None or not can(user, "token.create", team):
        raise PermissionDenied("Your role in this team does not allow API tokens. An owner of the team can change it.")
    form = TokenForm(request.POST, auto_id=TOKEN_IDS)
    if not form.is_valid():
        return _page(request, form=form)
    made, secret = services.issue_api_token(user=user, team=team, **form.cleaned_data)
    return _page(request, made=made, secret=secret)


@require_POST
def edit_profile(request: HttpRequest) -> HttpResponse:
    """The name that others see."""
    user: Any = request.user
    form = ProfileForm(request.POST)
    if form.is_valid():
        try:
            services.edit_profile(user, name=form.cleaned_data["name"])
        except services.NotAllowed as fault:
            form.add_error("name", f"{fault.message[:1].upper()}{fault.message[1:]}. To do: {fault.cure}.")
    if form.errors:
        return _page(request, profile=form)
    messages.success(request, "Your name is saved.")
    return redirect("/account/")


@sensitive_post_parameters("old", "new", "again")
@require_POST
def change_password(request: HttpRequest) -> HttpResponse:
    """A new password. This session goes on; every other one ends."""
    user: Any = request.user
    form = PasswordForm(request.POST)
    if form.is_valid():
        try:
            services.change_password(user, old=form.cleaned_data["old"], new=form.cleaned_data["new"])
        except ValidationError as fault:
            form.add_error(None, fault)
    if form.errors:
        return _page(request, password=form)
    sessions.end_others(user, request.session.session_key)
    sessions.forgotten(request)
    update_session_auth_hash(request, user)
    sessions.noted(request, user)
    messages.success(request, "Your password is changed. Every other session of yours has ended.")
    return redirect("/account/")


@require_POST
def end_session(request: HttpRequest, public_id: str) -> HttpResponse:
    """Ends one of one's own sessions."""
    user: Any = request.user
    if not sessions.end_session(user, public_id):
        raise Http404("no such session")
    messages.success(request, "That session has ended.")
    return redirect("/account/")


@require_POST
def end_other_sessions(request: HttpRequest) -> HttpResponse:
    """Logs out everywhere but here."""
    user: Any = request.user
    ended = sessions.end_others(user, request.session.session_key)
    messages.success(request, f"Logged out everywhere else: {ended} other session{'' if ended == 1 else 's'} ended.")
    return redirect("/account/")


@require_POST
def revoke_token(request: HttpRequest, public_id: str) -> HttpResponse:
    """Stops one of one's own tokens at once."""
    token = _own_token(request, public_id)
    user: Any = request.user
    try:
        services.revoke_api_token(by=user, token=token)
    except services.NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    messages.success(request, f"The token “{token.name}” no longer works.")
    return redirect("/account/")


@never_cache
@require_POST
def rotate_token(request: HttpRequest, public_id: str) -> HttpResponse:
    """A new secret for one of one's own tokens, shown this once; the old one stops at once."""
    token = _own_token(request, public_id)
    user: Any = request.user
    try:
        secret = services.rotate_api_token(by=user, token=token)
    except services.NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    return _page(request, made=token, secret=secret)


def _own_token(request: HttpRequest, public_id: str) -> ApiToken:
    user: Any = request.user
    token = selectors.tokens_of(user).filter(public_id=public_id).first()
    if token is None:
        raise Http404("no such token")
    return token


def _page(
    request: HttpRequest,
    *,
    form: TokenForm | None = None,
    profile: ProfileForm | None = None,
    password: PasswordForm | None = None,
    made: ApiToken | None = None,
    secret: str | None = None,
) -> HttpResponse:
    user: Any = request.user
    assert isinstance(user, User)
    team = current_team(request)
    context = {
        "section": "account",
        "team": team,
        "form": form or TokenForm(auto_id=TOKEN_IDS),
        "profile": profile or ProfileForm(initial={"name": user.name}),
        "password": password or PasswordForm(),
        "sessions": sessions.sessions_of(user, request.session.session_key),
        "may": team is not None and can(user, "token.create", team),
        "made": made,
        "secret": secret,
        "tokens": selectors.tokens_of(user),
        "now": timezone.now(),
        "server": request.build_absolute_uri("/").rstrip("/"),
    }
    wrong = any(item is not None and item.errors for item in (form, profile, password))
    return render(request, "account/account.html", context, status=422 if wrong else 200)
