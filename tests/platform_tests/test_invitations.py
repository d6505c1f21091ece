"""Invitations: made by owners, accepted once, silent about why a link does not work, limited in tries."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta

import pytest
from django.core.cache import cache
from django.core.exceptions import ValidationError
from django.db import connection
from django.test import Client
from django.utils import timezone

from headrace.teams import invitations, services
from headrace.teams.models import AuditEvent, Invitation, Membership, Role, Team, User
from headrace.teams.policy import role_in
from headrace.teams.services import LinkSpent, NotAllowed
from tests.platform_tests.conftest import PASSWORD

Member = Callable[..., User]
NEW = {"email": "Eve@Example.org", "name": "Eve", "password": "an unusual sentence 42", "again": "an unusual sentence 42"}


@pytest.fixture(autouse=True)
def _no_counts() -> Iterator[None]:
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def owner(team: Team, member: Member) -> User:
    return member(team, Role.OWNER, name="Olga")


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def test_an_owner_makes_a_link_that_is_shown_once(owner: User, team: Team) -> None:
    browser = signed_in(owner)
    page = browser.post("/team/invitations/", {"role": "viewer", "days": "3", "email": ""}).content.decode()
    link = re.search(r"http://testserver/invite/(hri_[\w-]+)/", page)
    assert link
    assert link[1] not in browser.get("/team/invitations/").content.decode()
    assert not Invitation.unscoped.filter(token_hash=link[1]).exists(), "only its hash is stored"
    row = Invitation.objects.for_team(team).get()
    assert row.role == "viewer" and timedelta(days=2) < row.expires_at - timezone.now() < timedelta(days=4)
    assert AuditEvent.unscoped.filter(action="invitation.create", object_id=row.public_id).count() == 1
    for wrong in ({"role": "king"}, {"days": "400"}, {"email": "no address"}, {"email": owner.email}):
        assert browser.post("/team/invitations/", {"role": "viewer", "days": "3", **wrong}).status_code == 422
    for wrong in ({"role": "king"}, {"days": 0}, {"days": 31}, {"email": "x"}):
        with pytest.raises(NotAllowed):
            invitations.invite(by=owner, team=team, **wrong)


@pytest.mark.parametrize("role", [Role.VIEWER, Role.MEMBER, Role.MAINTAINER])
def test_nobody_else_invites(role: str, owner: User, team: Team, member: Member) -> None:
    row, _ = invitations.invite(by=owner, team=team)
    browser = signed_in(member(team, role))
    assert browser.get("/team/invitations/").status_code == 403
    assert browser.post("/team/invitations/", {"role": "owner", "days": "3"}).status_code == 403
    assert browser.post(f"/team/invitations/{row.public_id}/revoke/").status_code == 403
    assert "/team/invitations/" not in browser.get("/team/").content.decode()


def test_another_teams_invitation_does_not_exist(owner: User, team: Team, other_team: Team, member: Member) -> None:
    row, secret = invitations.invite(by=owner, team=team)
    stranger = member(other_team, Role.OWNER)
    assert signed_in(stranger).post(f"/team/invitations/{row.public_id}/revoke/").status_code == 404
    with pytest.raises(NotAllowed):
        invitations.revoke(by=stranger, invitation=row)
    assert invitations.look(secret, "a").pk == row.pk


def test_a_new_person_signs_up_and_joins(owner: User, team: Team) -> None:
    _, secret = invitations.invite(by=owner, team=team, role=Role.MEMBER)
    browser = Client()
    page = browser.get(f"/invite/{secret}/").content.decode()
    assert "Join Alpha" in page and "member" in page and "Olga" in page
    assert browser.get(f"/invite/{secret}/").status_code == 200, "looking spends nothing"
    for wrong in ({"password": "short", "again": "short"}, {"again": "another one 1234"}, {"email": "x"}, {"email": owner.email}):
        assert browser.post(f"/invite/{secret}/", NEW | wrong).status_code == 422
    assert browser.post(f"/invite/{secret}/", NEW)["Location"] == "/runs/"
    eve = User.objects.get(email="eve@example.org")
    assert role_in(eve, team) == Role.MEMBER and eve.check_password(NEW["password"]) and not eve.is_staff
    assert browser.get("/runs/").status_code == 200
    late = Client().get(f"/invite/{secret}/")
    assert late.status_code == 410 and "Alpha" not in late.content.decode()
    assert AuditEvent.unscoped.filter(action="invitation.accept", user=eve, team=team).count() == 1


def test_a_member_of_another_team_joins_and_sees_the_new_one(owner: User, team: Team, other_team: Team, member: Member) -> None:
    _, secret = invitations.invite(by=owner, team=team, role=Role.VIEWER)
    user = member(other_team, Role.OWNER)
    browser = signed_in(user)
    assert "Join the team" in browser.get(f"/invite/{secret}/").content.decode()
    page = browser.post(f"/invite/{secret}/", follow=True).content.decode()
    assert "Welcome to Alpha" in page and role_in(user, team) == Role.VIEWER and role_in(user, other_team) == Role.OWNER
    assert browser.post(f"/invite/{secret}/").status_code == 410


def test_a_link_for_one_address_is_for_nobody_else(owner: User, team: Team, member: Member) -> None:
    _, secret = invitations.invite(by=owner, team=team, email="Eve@example.org")
    other = member(None)
    assert "for somebody else" in signed_in(other).get(f"/invite/{secret}/").content.decode()
    refused = signed_in(other).post(f"/invite/{secret}/")
    assert refused.status_code == 422 and "eve@" not in refused.content.decode()
    assert Client().post(f"/invite/{secret}/", NEW | {"email": "mallory@example.org"}).status_code == 422
    assert not User.objects.filter(email="mallory@example.org").exists()
    assert Client().post(f"/invite/{secret}/", NEW).status_code == 302


def test_who_is_in_already_spends_nothing_and_keeps_the_role(owner: User, team: Team) -> None:
    _, secret = invitations.invite(by=owner, team=team, role=Role.VIEWER)
    done = invitations.accept(secret, owner)
    assert not done.joined and role_in(owner, team) == Role.OWNER
    assert invitations.look(secret, "a")


def test_every_link_that_does_not_work_answers_the_same(owner: User, team: Team, member: Member) -> None:
    revoked, one = invitations.invite(by=owner, team=team)
    invitations.revoke(by=owner, invitation=revoked)
    old, two = invitations.invite(by=owner, team=team)
    Invitation.unscoped.filter(pk=old.pk).update(expires_at=timezone.now())
    _, three = invitations.invite(by=owner, team=team)
    invitations.accept(three, member(None))
    pages = []
    for secret in (one, two, three, "hri_" + "x" * 43, "nothing"):
        for answer in (Client().get(f"/invite/{secret}/"), Client().post(f"/invite/{secret}/", NEW)):
            assert answer.status_code == 410
            pages.append(re.sub(r"csrf\S+", "", answer.content.decode()))
    assert len(set(pages)) == 1
    assert not User.objects.filter(email="eve@example.org").exists()


def test_guessing_has_an_end(owner: User, team: Team, member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invitations, "PER_ADDRESS", 3)
    monkeypatch.setattr(invitations, "PER_LINK", 2)
    _, secret = invitations.invite(by=owner, team=team)
    for _ in range(2):
        assert Client().post(f"/invite/{secret}/", NEW | {"email": owner.email}).status_code == 422
    assert Client().get(f"/invite/{secret}/").status_code == 429
    for _ in range(3):
        assert Client().get("/invite/wrong/").status_code == 410
    assert Client().get("/invite/wrong/").status_code == 429


def test_links_do_not_outlive_their_makers_ownership(owner: User, team: Team, member: Member) -> None:
    second = member(team, Role.OWNER)
    _, one = invitations.invite(by=second, team=team, role=Role.OWNER)
    services.set_member(by=owner, team=team, user=second, role=Role.MEMBER)
    with pytest.raises(LinkSpent):
        invitations.accept(one, member(None))


def test_a_weak_password_leaves_the_link_good(owner: User, team: Team) -> None:
    _, secret = invitations.invite(by=owner, team=team)
    with pytest.raises(ValidationError):
        invitations.accept_as_new(secret, email="eve@example.org", name="", password="password1234")
    assert invitations.look(secret, "a") and not User.objects.filter(email="eve@example.org").exists()


@pytest.mark.django_db(transaction=True)
def test_of_many_at_once_one_gets_in() -> None:
    team = Team.objects.create(name="T", slug="t")
    owner = User.objects.create_user("o@example.org", PASSWORD)
    Membership.objects.create(team=team, user=owner, role=Role.OWNER)
    people = [User.objects.create_user(f"p{number}@example.org", PASSWORD) for number in range(6)]
    _, secret = invitations.invite(by=owner, team=team)
    start, told = threading.Barrier(len(people)), []

    def press(user: User) -> None:
        try:
            start.wait(10)
            invitations.accept(secret, user)
            told.append("in")
        except LinkSpent:
            told.append("spent")
        finally:
            connection.close()

    threads = [threading.Thread(target=press, args=(user,)) for user in people]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert sorted(told) == ["in"] + ["spent"] * 5
    assert Membership.objects.for_team(team).count() == 2
    assert AuditEvent.unscoped.filter(action="invitation.accept").count() == 1
