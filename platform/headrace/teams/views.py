"""Set-up, log in, log out, and the team in view."""

from __future__ import annotations

from typing import Any

from django.contrib.auth import login
from django.contrib.auth.decorators import login_not_required
from django.contrib.auth.views import LoginView, LogoutView
from django.core.exceptions import NON_FIELD_ERRORS, ValidationError
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils.decorators import method_decorator
from django.views.decorators.cache import never_cache
from django.views.decorators.csrf import csrf_protect
from django.views.decorators.debug import sensitive_post_parameters
from django.views.decorators.http import require_http_methods, require_POST

from headrace.teams import selectors, services
from headrace.teams.forms import LoginForm, SetupForm
from headrace.teams.models import Team, User
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
            show_faults(form, fault)
        else:
            login(request, user)
            return redirect("/runs/")
    return render(request, "account/setup.html", {"form": form, "team": link.team})


def show_faults(form: SetupForm, fault: ValidationError) -> None:
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


@require_POST
def choose_team(request: HttpRequest) -> HttpResponse:
    """The team that this browser shows from now on."""
    user: Any = request.user
    team = selectors.teams_of(user).filter(public_id=request.POST.get("team", "")).first()
    if team is None:
        raise Http404("no such team")
    request.session[SESSION_TEAM] = team.public_id
    return redirect("/runs/")
