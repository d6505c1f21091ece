"""The team's pages: members, invitations, everybody's API tokens, settings. The service decides; a page shows what its reader may do."""

from __future__ import annotations

from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.utils import timezone
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from headrace.teams import invitations, roles, selectors, services
from headrace.teams.forms import InvitationForm, MemberForm, TeamForm
from headrace.teams.models import ApiToken, Role, Team, User
from headrace.teams.policy import can
from headrace.teams.views import SESSION_TEAM, current_team


def team_or_403(request: HttpRequest, action: str = "team.view") -> Team:
    """The team in view. Raises PermissionDenied for people without one, or whose role does not allow the action."""
    team = current_team(request)
    if team is None:
        raise PermissionDenied("You are in no team yet. An owner of a team can add you.")
    if not can(request.user, action, team):
        raise PermissionDenied("Your role in this team does not allow this. An owner of the team can change it.")
    return team


def told(fault: services.NotAllowed) -> str:
    return f"{fault.message[:1].upper()}{fault.message[1:]}." + (f" To do: {fault.cure}." if fault.cure else "")


@require_http_methods(["GET", "HEAD", "POST"])
def members(request: HttpRequest) -> HttpResponse:
    """Who is in the team in view. Its owners add people who have an account, change roles and take people out."""
    user: Any = request.user
    team = team_or_403(request)
    form = MemberForm(request.POST if request.method == "POST" and "email" in request.POST else None)
    if request.method == "POST":
        try:
            done = _change_members(request, user, team, form)
        except services.NotAllowed as fault:
            if not can(user, "member.edit", team):
                raise PermissionDenied(fault.message) from None
            messages.error(request, told(fault))
            done = True
        if done:
            return redirect("/team/")
    context = {
        "section": "team",
        "tab": "members",
        "team": team,
        "members": selectors.members_of(team),
        "form": form,
        "roles": Role.choices,
        "table": roles.table(),
        "may": can(user, "member.edit", team),
    }
    return render(request, "team/members.html", context, status=422 if form.errors else 200)


def _change_members(request: HttpRequest, user: User, team: Team, form: MemberForm) -> bool:
    """Does what was posted. False: the form's faults are to be shown."""
    services.require(user, "member.edit", team)
    if "remove" in request.POST:
        gone = selectors.members_of(team).filter(user__public_id=request.POST["remove"]).first()
        if gone is None:
            raise Http404("no such member")
        services.remove_member(by=user, team=team, user=gone.user)
        messages.success(request, f"{gone.user.get_full_name()} is no longer in this team.")
        return True
    if not form.is_valid():
        return False
    person: User = form.cleaned_data["email"]
    services.set_member(by=user, team=team, user=person, role=form.cleaned_data["role"])
    messages.success(request, f"{person.get_full_name()} is {Role(form.cleaned_data['role']).label.lower()} of this team.")
    return True


@require_POST
def leave(request: HttpRequest) -> HttpResponse:
    """Leaves the team in view."""
    user: Any = request.user
    team = team_or_403(request)
    try:
        services.leave_team(user=user, team=team)
    except services.NotAllowed as fault:
        messages.error(request, told(fault))
        return redirect("/team/settings/")
    request.session.pop(SESSION_TEAM, None)
    messages.success(request, f"You are no longer in {team.name}.")
    return redirect("/runs/")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def invitation_list(request: HttpRequest) -> HttpResponse:
    """Links into the team. A POST makes one and answers with it; no later page shows it."""
    user: Any = request.user
    team = team_or_403(request, "invitation.edit")
    form = InvitationForm(request.POST or None)
    made = link = None
    if request.method == "POST" and form.is_valid():
        try:
            made, secret = invitations.invite(by=user, team=team, **form.cleaned_data)
        except services.NotAllowed as fault:
            form.add_error(fault.field if fault.field in form.fields else None, told(fault))
        else:
            link, form = request.build_absolute_uri(f"/invite/{secret}/"), InvitationForm()
    context = {
        "section": "team",
        "tab": "invitations",
        "team": team,
        "form": form,
        "made": made,
        "link": link,
        "invitations": invitations.invitations_of(team)[:200],
        "now": timezone.now(),
    }
    return render(request, "team/invitations.html", context, status=422 if form.errors else 200)


@require_POST
def revoke_invitation(request: HttpRequest, public_id: str) -> HttpResponse:
    """The link stops working at once."""
    user: Any = request.user
    team = team_or_403(request, "invitation.edit")
    row = invitations.invitations_of(team).filter(public_id=public_id).first()
    if row is None:
        raise Http404("no such invitation")
    invitations.revoke(by=user, invitation=row)
    messages.success(request, "The invitation no longer works.")
    return redirect("/team/invitations/")


@require_safe
def tokens(request: HttpRequest) -> HttpResponse:
    """API tokens of the team: everybody's for those who may revoke them, one's own for others."""
    team = team_or_403(request)
    every = can(request.user, "token.revoke", team)
    rows = selectors.team_tokens(team) if every else selectors.team_tokens(team).filter(user=request.user)
    context = {
        "section": "team",
        "tab": "tokens",
        "team": team,
        "tokens": rows[:500],
        "every": every,
        "may_make": can(request.user, "token.create", team),
        "now": timezone.now(),
    }
    return render(request, "team/tokens.html", context)


@require_POST
def revoke_token(request: HttpRequest, public_id: str) -> HttpResponse:
    """A maintainer stops anybody's token of the team; others their own."""
    user: Any = request.user
    team = team_or_403(request)
    token: ApiToken | None = selectors.team_tokens(team).filter(public_id=public_id).first()
    if token is None or not can(user, "token.revoke", token):
        raise Http404("no such token")
    services.revoke_api_token(by=user, token=token)
    messages.success(request, f"The token “{token.name}” no longer works.")
    return redirect("/team/tokens/")


@require_http_methods(["GET", "HEAD", "POST"])
def settings_page(request: HttpRequest) -> HttpResponse:
    """The team's name; switching to another team; the way out."""
    user: Any = request.user
    team = team_or_403(request, "team.view" if request.method != "POST" else "team.edit")
    form = TeamForm(request.POST or None, initial={"name": team.name})
    if request.method == "POST" and form.is_valid():
        try:
            services.edit_team(by=user, team=team, name=form.cleaned_data["name"])
        except services.NotAllowed as fault:
            form.add_error("name" if fault.field == "name" else None, told(fault))
        else:
            messages.success(request, "The team's name is saved.")
            return redirect("/team/settings/")
    context = {
        "section": "team",
        "tab": "settings",
        "team": team,
        "form": form,
        "may": can(user, "team.edit", team),
        "teams": selectors.teams_of(user),
    }
    return render(request, "team/settings.html", context, status=422 if form.errors else 200)
