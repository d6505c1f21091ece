"""All reads of this app."""

from __future__ import annotations

from django.db.models import QuerySet

from headrace.teams.models import ApiToken, Membership, Team, User

SESSION_TEAM = "team"  # where a session keeps the public id of the team it shows


def teams_of(user: User) -> QuerySet[Team]:
    """The user's teams, oldest membership first."""
    return Team.objects.filter(memberships__user=user).order_by("memberships__created_at", "pk")


def current_team(user: User, public_id: str | None = None) -> Team | None:
    """The team a page is about: the one named, if the user is in it, else the user's first; None: in no team."""
    teams = teams_of(user)
    if public_id:
        named = teams.filter(public_id=public_id).first()
        if named is not None:
            return named
    return teams.first()


def members_of(team: Team) -> QuerySet[Membership]:
    return Membership.objects.for_team(team).select_related("user").order_by("created_at")


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """The user's own tokens that were not revoked, in every team the user is in, newest first."""
    return ApiToken.objects.for_user(user).filter(user=user, revoked_at=None).select_related("team").order_by("-created_at", "-pk")


def team_tokens(team: Team) -> QuerySet[ApiToken]:
    """Everybody's tokens of a team that were not revoked, newest first."""
    return ApiToken.objects.for_team(team).filter(revoked_at=None).select_related("user", "team").order_by("-created_at", "-pk")
