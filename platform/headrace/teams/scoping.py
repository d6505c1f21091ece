"""Team-scoped managers: `Model.objects` answers only for a team or a user.

`Model.objects.for_team(team)` and `.for_user(user)` are the doors; `.all()`, `.filter()`, `.get()` on `objects` raise.
`Model.unscoped` sees everything. It is for code that has no user, such as ingest by run token, the launcher, the
reconciler and services that were handed a checked row; tests/platform_tests/test_policy.py lists who may not say it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from django.db import models

if TYPE_CHECKING:
    from headrace.teams.models import Team, User


M = TypeVar("M", bound=models.Model)


class ScopeMissing(TypeError):
    """A query on team-owned rows that names no team."""


class UnscopedManager(models.Manager[M]):
    """The default manager: Django's relations and admin use it, and code on the allow-list."""


class TeamScopedManager(models.Manager[M]):
    """Reads by team or by user. `team_path` is the lookup from the model to its team."""

    def __init__(self, team_path: str = "team") -> None:
        super().__init__()
        self.team_path = team_path

    def get_queryset(self) -> models.QuerySet[M]:
        raise ScopeMissing(
            f"{self.model.__name__}.objects needs a team -> use .for_team(team) or .for_user(user), "
            f"or {self.model.__name__}.unscoped where no user is involved"
        )

    def for_team(self, team: Team | int) -> models.QuerySet[M]:
        """Rows of this team, given as row or key. The caller has already checked that its user belongs to it."""
        if team is None:
            raise ScopeMissing("for_team was given no team")
        return self._everything().filter(**{self.team_path: team})

    def for_user(self, user: User) -> models.QuerySet[M]:
        """Rows of every team this user is an active member of; nothing for anonymous users."""
        if not getattr(user, "is_authenticated", False) or not user.is_active:
            return self._everything().none()
        teams = user.memberships.values("team_id")
        return self._everything().filter(**{f"{self.team_path}__in": teams})

    def create(self, **fields: Any) -> M:
        return self._everything().create(**fields)

    def bulk_create(self, objs: Iterable[M], *args: Any, **options: Any) -> list[M]:
        return self._everything().bulk_create(objs, *args, **options)

    def _everything(self) -> models.QuerySet[M]:
        everything: models.QuerySet[M] = self.model._default_manager.get_queryset()
        return everything
