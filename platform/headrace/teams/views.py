"""Set-up, log in, log out; a person's API tokens and team in view. Reads and writes go through this app's services and selectors."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import NON_FIELD_ERRORS, PermissionDenied, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from headrace.teams import selectors, services
from headrace.teams.forms import LoginForm, MemberForm, SetupForm, TokenForm
from headrace.teams.models import Team, User
from headrace.teams.policy import can
from headrace.teams.selectors import SESSION_TEAM


@login_not_required
@never_cache
@csrf_protect
@sensitive_post_parameters("password", "again")
@require_http_methods(["GET", "HEAD", "POST"])
def setup(request: HttpRequest, token: str) -> HttpResponse:
    """The one-time link of the first administrator. GET shows the form, only a good POST spends the link."""
    link = services.setup_link(token)
    if link is None or not services.needs_first_admin():
        return render(request, "account/setup_spent.html", status=410)
    form = SetupForm(request.POST or None)
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        try:
            user = services.spend_setup_link(token, email=data["email"], password=data["password"], name=data["name"])
        except services.LinkSpent:
            return render(request, "account/setup_spent.html", status=410)
        except ValidationError as fault:
            _show(form, fault)
        else:
            login(request, user)
            return redirect("/runs/")
    return render(request, "account/setup.html", {"form": form, "team": link.team})


def _show(form: SetupForm, fault: ValidationError) -> None:
    """A model's faults carry field names; the password's validators carry none."""
    if not hasattr(fault, "error_dict"):
        form.add_error("password", fault)
        return
    for name, errors in fault.error_dict.items():
        form.add_error(name if name in form.fields else None if name == NON_FIELD_ERRORS else "email", errors)


@method_decorator(login_not_required, name="dispatch")
class Login(LoginView):
    """E-mail and password; goes on to the page that was asked for."""

    template_name = "account/login.html"
    authentication_form = LoginForm
    redirect_authenticated_user = True


class Logout(LogoutView):
    """POST only, as Django has it."""


def current_team(request: HttpRequest) -> Team | None:
    """The team this browser works in: the one chosen in the session, else the user's first."""
    user: Any = request.user
    return selectors.current_team(user, request.session.get(SESSION_TEAM)) if isinstance(user, User) else None


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def account(request: HttpRequest) -> HttpResponse:
    """One's own API tokens. A POST makes one and answers with its secret, which no later page shows."""
    user: Any = request.user
    team = current_team(request)
    may = team is not None and can(user, "token.create", team)
    form = TokenForm(request.POST or None)
    made = secret = None
    if request.method == "POST":
        if team is None or not may:
            raise PermissionDenied("Your role in this team does not allow API tokens. An owner of the team can change it.")
        if form.is_valid():
            made, secret = services.issue_api_token(user=user, team=team, **form.cleaned_data)
            form = TokenForm()
    context = {
        "section": "account",
        "team": team,
        "form": form,
        "may": may,
        "made": made,
        "secret": secret,
        "tokens": selectors.tokens_of(user),
        "now": timezone.now(),
        "server": request.build_absolute_uri("/").rstrip("/"),
    }
    return render(request, "account/account.html", context, status=422 if form.errors else 200)


@require_POST
def revoke_token(request: HttpRequest, public_id: str) -> HttpResponse:
    """Stops one of one's own tokens at once."""
    user: Any = request.user
    token = selectors.tokens_of(user).filter(public_id=public_id).first()
    if token is None:
        raise Http404("no such token")
    try:
        services.revoke_api_token(by=user, token=token)
    except services.NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    messages.success(request, f"The token “{token.name}” no longer works.")
    return redirect("/account/")


@require_POST
def choose_team(request: HttpRequest) -> HttpResponse:
    """The team that this browser shows from now on."""
    user: Any = request.user
    team = selectors.teams_of(user).filter(public_id=request.POST.get("team", "")).first()
    if team is None:
        raise Http404("no such team")
    request.session[SESSION_TEAM] = team.public_id
    return redirect("/runs/")


@require_http_methods(["GET", "HEAD", "POST"])
def members(request: HttpRequest) -> HttpResponse:
    """Who is in the team in view. Its owners add people who have an account, change roles and take people out."""
    user: Any = request.user
    team = current_team(request)
    if team is None:
        raise PermissionDenied("You are in no team yet. An owner of a team can add you.")
    form = MemberForm(request.POST if request.method == "POST" and "email" in request.POST else None)
    if request.method == "POST":
        try:
            done = _change_members(request, user, team, form)
        except services.NotAllowed as fault:
            if not can(user, "member.edit", team):
                raise PermissionDenied(fault.message) from None
            messages.error(request, f"{fault.message[:1].upper()}{fault.message[1:]}. To do: {fault.cure}.")
            done = True
        if done:
            return redirect("/team/")
    context = {"section": "team", "team": team, "members": selectors.members_of(team), "form": form, "may": can(user, "member.edit", team)}
    return render(request, "account/members.html", context, status=422 if form.errors else 200)


def _change_members(request: HttpRequest, user: User, team: Team, form: MemberForm) -> bool:
    """Does what was posted. False: the form's faults are to be shown."""
    services.require(user, "member.edit", team)
    if "remove" in request.POST:
        gone = selectors.members_of(team).filter(user__public_id=request.POST["remove"]).first()
        if gone is None:
            raise Http404("no such member")
        services.remove_member(by=user, team=team, user=gone.user)
        return True
    if not form.is_valid():
        return False
    services.set_member(by=user, team=team, user=form.cleaned_data["email"], role=form.cleaned_data["role"])
    return True
