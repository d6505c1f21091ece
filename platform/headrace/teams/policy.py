"""Who may do what. `can` is asked everywhere: views, API, sockets, services.

A role holds everything the roles below it hold. `OWN_ONLY` actions ask for the lower role on one's own objects.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.teams.models import ApiToken, Membership, Role, Team

RANK = {Role.VIEWER: 0, Role.MEMBER: 1, Role.MAINTAINER: 2, Role.OWNER: 3}

# The lowest role that may do it to anything of its team.
ACTIONS: dict[str, Role] = {
    "team.view": Role.VIEWER,
    "project.view": Role.VIEWER,
    "experiment.view": Role.VIEWER,
    "config.view": Role.VIEWER,
    "run.view": Role.VIEWER,
    "artifact.view": Role.VIEWER,
    "cluster.view": Role.VIEWER,
    "view.view": Role.VIEWER,
    "race.view": Role.VIEWER,
    "alert.view": Role.VIEWER,
    "metrics.view": Role.VIEWER,
    "config.create": Role.MEMBER,
    "experiment.create": Role.MEMBER,
    "run.create": Role.MEMBER,
    "token.create": Role.MEMBER,
    "view.create": Role.MEMBER,
    "alert.create": Role.MEMBER,
    "probe.create": Role.MEMBER,
    "run.cancel": Role.MAINTAINER,
    "run.resume": Role.MAINTAINER,
    "run.edit": Role.MAINTAINER,
    "run.delete": Role.MAINTAINER,
    "experiment.edit": Role.MAINTAINER,
    "project.create": Role.MAINTAINER,
    "project.edit": Role.MAINTAINER,
    "artifact.delete": Role.MAINTAINER,
    "queue.edit": Role.MAINTAINER,
    "race.create": Role.MAINTAINER,
    "race.edit": Role.MAINTAINER,
    "view.edit": Role.MAINTAINER,
    "alert.edit": Role.MAINTAINER,
    "token.revoke": Role.MAINTAINER,
    "team.edit": Role.OWNER,
    "member.edit": Role.OWNER,
    "invitation.edit": Role.OWNER,
    "cluster.edit": Role.OWNER,
    "retention.edit": Role.OWNER,
    "quota.edit": Role.OWNER,
    "channel.edit": Role.OWNER,
    "audit.view": Role.OWNER,
}

# The lowest role that may do it to what it made itself.
OWN_ONLY: dict[str, Role] = {
    "run.cancel": Role.MEMBER,
    "run.resume": Role.MEMBER,
    "run.edit": Role.MEMBER,
    "run.delete": Role.MEMBER,
    "experiment.edit": Role.MEMBER,
    "token.revoke": Role.MEMBER,
    "view.edit": Role.MEMBER,
    "alert.edit": Role.MEMBER,
}

# What a token of scope "launch" does beside reading: start runs and steer them, but edit, delete or decide nothing.
LAUNCHING = frozenset({"config.create", "experiment.create", "run.create", "run.cancel", "run.resume", "race.create"})


def can(user: Any, action: str, obj: Any) -> bool:
    """Whether this user may do this to this object (a team, or anything that a team owns). Anonymous and inactive: never."""
    return can_each(user, action, [obj])[0]


def can_each(user: Any, action: str, objects: Sequence[Any]) -> list[bool]:
    """`can` for every row of a list, with one look at the user's role a team."""
    needed = ACTIONS.get(action)
    if needed is None:
        raise ValueError(f"action: not in the policy table (given: {action!r})")
    teams = [_team_id(obj) for obj in objects]
    roles = {team: role_in(user, team) for team in dict.fromkeys(teams)}
    return [_allows(roles[team], needed, action, obj, user) for team, obj in zip(teams, objects, strict=True)]


def _allows(role: Role | None, needed: Role, action: str, obj: Any, user: Any) -> bool:
    if role is None:
        return False
    if RANK[role] >= RANK[needed]:
        return True
    own = OWN_ONLY.get(action)
    return own is not None and RANK[role] >= RANK[own] and _made_by(obj) == user.pk


def can_with_token(token: ApiToken, action: str, obj: Any) -> bool:
    """The same for a request that carries an API token: never more than its owner may, in its team, within its scope."""
    if not in_scope(token.scope, action):
        return False
    return _team_id(obj) == token.team_id and can(token.user, action, obj)


def in_scope(scope: str, action: str) -> bool:
    """Whether a token of this scope is for such an action at all. An unknown scope is for none."""
    if scope == ApiToken.Scope.METRICS:
        return action == "metrics.view"
    reads = action.endswith(".view")
    if scope == ApiToken.Scope.READ:
        return reads
    if scope == ApiToken.Scope.LAUNCH:
        return reads or action in LAUNCHING
    return scope == ApiToken.Scope.WRITE


def role_in(user: Any, team: Team | int | None) -> Role | None:
    """The user's role in a team, read afresh: taking somebody out works at once. None: not a member."""
    team_id = team.pk if isinstance(team, Team) else team
    if team_id is None or not getattr(user, "is_authenticated", False) or not user.is_active:
        return None
    found = Membership.objects.for_team(team_id).filter(user_id=user.pk).values_list("role", flat=True).first()
    return None if found is None else Role(found)


def _team_id(obj: Any) -> int | None:
    found: int | None
    if isinstance(obj, Team):
        found = obj.pk
    elif hasattr(obj, "team_id"):
        found = obj.team_id
    elif hasattr(obj, "attempt"):
        found = obj.attempt.team_id
    else:
        raise TypeError(f"no team owns a {type(obj).__name__}")
    return found


def _made_by(obj: Any) -> int | None:
    maker: int | None = getattr(obj, "created_by_id", None) or getattr(obj, "user_id", None)
    return maker
