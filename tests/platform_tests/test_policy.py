"""Role by action by ownership, and that nothing crosses between teams."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import pytest
from django.apps import apps
from django.contrib.auth.models import AnonymousUser
from django.core.exceptions import ValidationError
from django.utils import timezone

import headrace
from headrace.experiments import selectors, services
from headrace.experiments.models import Config, Run
from headrace.teams import audit
from headrace.teams.models import ApiToken, AuditEvent, Membership, Role, Team, User
from headrace.teams.policy import ACTIONS, OWN_ONLY, can, can_with_token, role_in
from headrace.teams.scoping import ScopeMissing
from headrace.teams.services import NotAllowed, issue_api_token, remove_member, revoke_api_token, set_member, verify_api_token

pytestmark = pytest.mark.django_db
Member = Callable[..., User]
Start = Callable[..., Run]

# What each role may do at least, written out once more by hand: a slip in the policy's table shows here.
VIEWER = {
    *("team.view", "project.view", "experiment.view", "config.view", "run.view", "artifact.view", "cluster.view"),
    *("view.view", "race.view", "alert.view", "metrics.view"),
}
MEMBER = VIEWER | {"config.create", "experiment.create", "run.create", "token.create", "view.create", "alert.create", "probe.create"}
MAINTAINER = MEMBER | {
    *("run.cancel", "run.resume", "run.edit", "run.delete", "experiment.edit", "project.create", "project.edit"),
    *("artifact.delete", "token.revoke", "queue.edit", "race.create", "race.edit", "view.edit", "alert.edit"),
}
OWNER = MAINTAINER | {
    *("team.edit", "member.edit", "invitation.edit", "cluster.edit", "retention.edit", "quota.edit", "channel.edit", "audit.view"),
}
MATRIX = {Role.VIEWER: VIEWER, Role.MEMBER: MEMBER, Role.MAINTAINER: MAINTAINER, Role.OWNER: OWNER}
MEMBERS_OWN = {
    *("run.cancel", "run.resume", "run.edit", "run.delete", "experiment.edit", "token.revoke", "view.edit", "alert.edit"),
}


@pytest.mark.parametrize("role", Role.values)
def test_matrix(role: str, team: Team, other_team: Team, member: Member) -> None:
    user = member(team, role)
    others = SimpleNamespace(team_id=team.pk, created_by_id=user.pk + 1)
    own = SimpleNamespace(team_id=team.pk, created_by_id=user.pk)
    foreign = SimpleNamespace(team_id=other_team.pk, created_by_id=user.pk)
    for action in ACTIONS:
        assert can(user, action, others) == (action in MATRIX[Role(role)]), action
        may_own = action in MATRIX[Role(role)] or (role == Role.MEMBER and action in MEMBERS_OWN)
        assert can(user, action, own) == may_own, action
        assert not can(user, action, foreign), action
        assert not can(user, action, other_team), action


def test_nobody_else(team: Team, member: Member) -> None:
    stranger, inactive, admin = member(None), member(team, Role.OWNER, is_active=False), member(None, is_superuser=True, is_staff=True)
    for user in (stranger, inactive, admin, AnonymousUser()):
        assert role_in(user, team) is None
        assert not any(can(user, action, team) for action in ACTIONS)


def test_an_unknown_action_is_a_programming_error(team: Team, member: Member) -> None:
    with pytest.raises(ValueError, match="policy table"):
        can(member(team, Role.OWNER), "run.explode", team)
    assert OWN_ONLY.keys() <= ACTIONS.keys()


def test_tokens_do_no_more_than_scope_team_and_owner(team: Team, other_team: Team, member: Member, start: Start) -> None:
    user = member(team, Role.MEMBER)
    Membership.objects.create(team=other_team, user=user, role=Role.OWNER)
    run, foreign = start(team, user), start(other_team, user)
    read, read_secret = issue_api_token(user=user, team=team, name="r")
    write, write_secret = issue_api_token(user=user, team=team, name="w", scope="write")
    assert verify_api_token(read_secret) == read
    assert can_with_token(read, "run.view", run)
    assert not can_with_token(read, "run.cancel", run)
    assert can_with_token(write, "run.cancel", run)
    assert not can_with_token(write, "run.view", foreign), "its owner may, but the token belongs to another team"
    assert not can_with_token(write, "project.edit", run.project), "a member's token does what a member may"
    assert not ApiToken.unscoped.filter(token_hash=write_secret).exists()
    revoke_api_token(by=user, token=write)
    assert verify_api_token(write_secret) is None
    ApiToken.unscoped.filter(pk=read.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    assert verify_api_token(read_secret) is None
    assert verify_api_token("hra_" + "x" * 43) is None


def test_leaving_a_team_ends_tokens_and_sight(team: Team, member: Member, start: Start) -> None:
    owner, user = member(team, Role.OWNER), member(team, Role.MEMBER)
    run = start(team, user)
    _, secret = issue_api_token(user=user, team=team, name="t", scope="write")
    assert selectors.run_for(user, run.public_id) == run
    remove_member(by=owner, team=team, user=user)
    assert verify_api_token(secret) is None
    with pytest.raises(Run.DoesNotExist):
        selectors.run_for(user, run.public_id)


def test_the_last_owner_stays(team: Team, member: Member) -> None:
    owner = member(team, Role.OWNER)
    with pytest.raises(NotAllowed, match="needs an owner"):
        set_member(by=owner, team=team, user=owner, role=Role.VIEWER)
    with pytest.raises(NotAllowed, match="needs an owner"):
        remove_member(by=owner, team=team, user=owner)
    second = member(team, Role.MEMBER)
    set_member(by=owner, team=team, user=second, role=Role.OWNER)
    remove_member(by=second, team=team, user=owner)
    assert role_in(second, team) == Role.OWNER


def test_another_teams_rows_do_not_exist(team: Team, other_team: Team, member: Member, start: Start) -> None:
    user, stranger = member(team, Role.MEMBER), member(other_team, Role.OWNER)
    run = start(team, user)
    for public_id in (run.public_id, "absent234567"):
        with pytest.raises(Run.DoesNotExist):
            selectors.run_for(stranger, public_id)
    with pytest.raises(Config.DoesNotExist):
        selectors.config_for(stranger, run.config.public_id)
    assert not selectors.runs_for(stranger, team).exists()
    assert not selectors.runs_for(AnonymousUser()).exists()
    for model in team_owned_models():
        assert not model.objects.for_team(other_team).filter(**{model.objects.team_path: team}).exists()
        assert model.objects.for_user(stranger).filter(**{model.objects.team_path: team}).count() == 0, model
    for refused in (services.cancel_run, services.resume_run, services.delete_run):
        with pytest.raises(NotAllowed):
            refused(run, stranger)
    with pytest.raises(services.BadInput, match="not in this team"):
        start(other_team, stranger, config=run.config)
    with pytest.raises(services.BadInput, match="not in this team"):
        start(other_team, stranger, parent=run)


def team_owned_models() -> list[type]:
    ours = ("teams", "experiments", "dispatch", "telemetry", "artifacts", "compare", "alerts", "api")
    free = {"User", "Team", "ReconcilerLease", "SignIn"}
    return [model for label in ours for model in apps.get_app_config(label).get_models() if model.__name__ not in free]


@pytest.mark.parametrize("model", team_owned_models(), ids=lambda model: model.__name__)
def test_every_team_owned_model_is_scoped(model: type) -> None:
    for method in ("all", "count", "first"):
        with pytest.raises(ScopeMissing):
            getattr(model.objects, method)()  # type: ignore[attr-defined]
    with pytest.raises(ScopeMissing):
        model.objects.get(pk=1)  # type: ignore[attr-defined]
    with pytest.raises(ScopeMissing):
        model.objects.for_team(None)  # type: ignore[attr-defined]


def test_who_may_read_unscoped() -> None:
    """Files that people's requests reach directly never say `unscoped`: they go through for_user or for_team."""
    package = Path(headrace.__file__).parent
    offenders = [
        f"{path.relative_to(package)}:{number}"
        for path in package.rglob("*.py")
        if re.fullmatch(r"views.*|forms|consumers|access|routes.*|urls", path.stem) or path.parts[-2] == "views"
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if ".unscoped" in line
    ]
    assert offenders == []


def test_emails_compare_without_case(db: None) -> None:
    user = User.objects.create_user("Ada@Example.org", "x" * 20)
    assert user.email == "ada@example.org"
    assert User.objects.get_by_natural_key("ADA@example.ORG") == user
    with pytest.raises(ValidationError):
        User(email="ADA@EXAMPLE.ORG", password="!").full_clean()


def test_the_trail_shows_a_changed_and_a_missing_line(team: Team, member: Member, start: Start) -> None:
    user = member(team, Role.MEMBER)
    services.cancel_run(start(team, user), user)
    start(team, user)
    assert audit.first_broken() is None
    line = AuditEvent.unscoped.get(action="run.cancel")
    assert line.actor == user.email
    AuditEvent.unscoped.filter(pk=line.pk).update(actor="somebody else")
    assert audit.first_broken() == AuditEvent.unscoped.get(pk=line.pk)
    AuditEvent.unscoped.filter(pk=line.pk).update(actor=user.email)
    assert audit.first_broken() is None
    following = AuditEvent.unscoped.filter(pk__gt=line.pk).order_by("pk").first()
    line.delete()
    assert audit.first_broken() == following
