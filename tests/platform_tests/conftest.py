"""A small world of two teams. Everything in it is made through the services."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest

from headrace.experiments import services
from headrace.experiments.models import Project, Run
from headrace.teams.models import Membership, Role, Team, User

PASSWORD = "correct horse battery staple"


@pytest.fixture(autouse=True)
def _quick_passwords(settings: Any) -> None:
    """Argon2 takes a tenth of a second on purpose. `test_passwords_are_argon2` looks at the real setting."""
    settings.PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher", *settings.PASSWORD_HASHERS]


@pytest.fixture
def team(db: None) -> Team:
    return Team.objects.create(name="Alpha", slug="alpha")


@pytest.fixture
def other_team(db: None) -> Team:
    return Team.objects.create(name="Beta", slug="beta")


@pytest.fixture
def member() -> Callable[..., User]:
    """member(team, role) makes a user in that team."""

    def make(team: Team | None, role: str = Role.MEMBER, **fields: Any) -> User:
        user = User.objects.create_user(f"{role}-{uuid.uuid4().hex[:8]}@example.org", PASSWORD, **fields)
        if team is not None:
            Membership.objects.create(team=team, user=user, role=role)
        return user

    return make


@pytest.fixture
def start() -> Callable[..., Run]:
    """start(team, user=None, steps=...) queues a run of the demo preset."""

    def make(team: Team, user: User | None = None, *, steps: int = 3, **fields: Any) -> Run:
        project, _ = Project.unscoped.get_or_create(team=team, slug="p", defaults={"name": "P"})
        config = services.create_config(team, {"preset": "demo", "budget": {"steps": steps}})
        arguments = {"name": "a run", "idempotency_key": uuid.uuid4().hex, "project": project, "config": config, **fields}
        return services.start_run(team=team, user=user, **arguments)

    return make
