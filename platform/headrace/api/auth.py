"""Who calls: a browser session with CSRF, or a person's API token. Both become a Caller, whose rights the policy decides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from django.http import HttpRequest
from ninja.security import HttpBearer, SessionAuth

from headrace.api import limits
from headrace.experiments.models import Attempt
from headrace.experiments.tokens import verify_run_token
from headrace.teams.models import ApiToken, Team, User
from headrace.teams.policy import can, can_with_token
from headrace.teams.selectors import SESSION_TEAM, current_team
from headrace.teams.services import NotAllowed, verify_api_token


@dataclass(frozen=True, slots=True)
class Caller:
    """The person behind a request. With a token, only its team exists and only its scope is allowed."""

    user: User
    token: ApiToken | None = None
    chosen: str | None = None  # public id of the team that this browser shows

    def may(self, action: str, obj: Any) -> bool:
        """Whether the policy lets this caller do it."""
        return can_with_token(self.token, action, obj) if self.token else can(self.user, action, obj)

    def team(self) -> Team | None:
        """The team that new things belong to: the token's, or the one that the browser shows."""
        return self.token.team if self.token else current_team(self.user, self.chosen)


class ApiTokenAuth(HttpBearer):
    """`Authorization: Bearer hra_...`"""

    def authenticate(self, request: HttpRequest, token: str) -> Caller | None:
        found = verify_api_token(token)
        if found is None:
            return None
        limits.spend(f"token|{found.pk}", limits.PER_CALLER)
        if found.scope == ApiToken.Scope.METRICS:
            raise NotAllowed("this token reads /metrics alone", field="Authorization", value=found.scope, cure="make a token that may read")
        return Caller(found.user, found)


class BrowserAuth(SessionAuth):
    """The session cookie; unsafe methods need the CSRF token as well."""

    def authenticate(self, request: HttpRequest, key: str | None) -> Caller | None:
        user = request.user
        if not isinstance(user, User) or not user.is_active:
            return None
        limits.spend(f"user|{user.pk}", limits.PER_CALLER)
        return Caller(user, chosen=request.session.get(SESSION_TEAM))


class AttemptTokenAuth(HttpBearer):
    """`Authorization: Bearer hrw_...`: the token of the attempt in the path, good for nothing else."""

    def authenticate(self, request: HttpRequest, token: str) -> Attempt | None:
        match = request.resolver_match
        found = verify_run_token(match.kwargs["attempt_id"], token) if match else None
        if found is not None:
            limits.spend(f"attempt|{found.pk}", limits.PER_ATTEMPT)
        return found
