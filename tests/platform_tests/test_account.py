"""The account page: API tokens made, used and revoked by their owner; the team in view."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from django.test import Client

from headrace.experiments.models import Run
from headrace.teams.models import ApiToken, Membership, Role, Team, User


@pytest.fixture
def ada(team: Team, member: Callable[..., User]) -> User:
    return member(team, Role.MEMBER, name="Ada")


@pytest.fixture
def browser(client: Client, ada: User) -> Client:
    client.force_login(ada)
    return client


def make(browser: Client, **changes: str) -> str:
    page = browser.post("/account/", {"name": "laptop", "scope": "write", "days": "30", **changes}).content.decode()
    found = re.search(r'id="secret" value="(hra_[^"]+)"', page)
    assert found, page
    return found.group(1)


def test_a_token_is_shown_once_works_and_is_revoked(browser: Client, ada: User, start: Callable[..., Run], team: Team) -> None:
    run = start(team)
    assert "No tokens yet" in browser.get("/account/").content.decode()
    secret = make(browser)
    later = browser.get("/account/").content.decode()
    assert secret not in later and "laptop" in later and secret[:8] in later and ">never<" in later
    header = {"Authorization": f"Bearer {secret}"}
    assert Client(headers=header).get(f"/api/v1/runs/{run.public_id}").status_code == 200
    assert ">never<" not in browser.get("/account/").content.decode()
    token = ApiToken.objects.for_user(ada).get()
    assert browser.get(f"/account/tokens/{token.public_id}/revoke/").status_code == 405
    assert "no longer works" in browser.post(f"/account/tokens/{token.public_id}/revoke/", follow=True).content.decode()
    assert Client(headers=header).get(f"/api/v1/runs/{run.public_id}").status_code == 401


def test_a_read_token_does_not_write(browser: Client) -> None:
    secret = make(browser, scope="read")
    upload = {"name": "u", "config": {"preset": "demo"}}
    reply = Client(headers={"Authorization": f"Bearer {secret}"}).post("/api/v1/uploads", upload, content_type="application/json")
    assert reply.status_code == 403


def test_a_written_token_announces_an_upload(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    start(team)  # makes the project
    upload = {"name": "u", "config": {"preset": "demo"}}
    reply = Client(headers={"Authorization": f"Bearer {make(browser)}"}).post("/api/v1/uploads", upload, content_type="application/json")
    assert reply.status_code == 201


def test_what_cannot_be_made_is_said(browser: Client, ada: User) -> None:
    for wrong in ({"name": ""}, {"days": "9999"}, {"scope": "all"}):
        assert browser.post("/account/", {"name": "n", "scope": "read", "days": "7", **wrong}).status_code == 422
    assert not ApiToken.objects.for_user(ada).exists()


def test_tokens_of_others_do_not_exist(browser: Client, team: Team, member: Callable[..., User]) -> None:
    other = Client()
    other.force_login(member(team, Role.OWNER))
    make(other, name="secretive")
    token = ApiToken.objects.for_team(team).get()
    assert "secretive" not in browser.get("/account/").content.decode()
    assert browser.post(f"/account/tokens/{token.public_id}/revoke/").status_code == 404


def test_a_viewer_gets_no_token_and_no_way_to_a_new_run(client: Client, team: Team, member: Callable[..., User]) -> None:
    client.force_login(member(team, Role.VIEWER))
    page = client.get("/account/").content.decode()
    assert "does not allow API tokens" in page and "Make token" not in page
    assert client.post("/account/", {"name": "n", "scope": "read", "days": "7"}).status_code == 403
    runs = client.get("/runs/").content.decode()
    assert 'href="/runs/new/"' not in runs


@pytest.mark.django_db
def test_the_account_asks_for_login(client: Client) -> None:
    assert client.get("/account/")["Location"].startswith("/login/")


def test_the_team_in_view_is_chosen(browser: Client, ada: User, team: Team, other_team: Team, start: Callable[..., Run]) -> None:
    mine, theirs = start(team, name="first"), start(other_team, name="second")
    assert "/account/team/" not in browser.get("/runs/").content.decode()
    assert browser.post("/account/team/", {"team": other_team.public_id}).status_code == 404
    Membership.objects.create(team=other_team, user=ada, role=Role.VIEWER)
    page = browser.get("/runs/").content.decode()
    assert mine.public_id in page and theirs.public_id not in page and "/account/team/" in page
    assert browser.post("/account/team/", {"team": other_team.public_id})["Location"] == "/runs/"
    page = browser.get("/runs/").content.decode()
    assert theirs.public_id in page and mine.public_id not in page
    assert 'href="/runs/new/"' not in page
    assert browser.get("/account/team/").status_code == 405


def test_owners_decide_who_is_in_the_team(client: Client, team: Team, member: Callable[..., User]) -> None:
    owner, newcomer = member(team, Role.OWNER), member(None)
    client.force_login(owner)
    assert "has an account" in client.post("/team/", {"email": "nobody@example.org", "role": "member"}).content.decode()
    assert client.post("/team/", {"email": newcomer.email.upper(), "role": "viewer"})["Location"] == "/team/"
    assert Membership.objects.for_team(team).get(user=newcomer).role == Role.VIEWER
    assert newcomer.email in client.get("/team/").content.decode()
    assert "needs an owner" in client.post("/team/", {"email": owner.email, "role": "viewer"}, follow=True).content.decode()
    assert "needs an owner" in client.post("/team/", {"remove": owner.public_id}, follow=True).content.decode()
    client.post("/team/", {"remove": newcomer.public_id})
    assert not Membership.objects.for_team(team).filter(user=newcomer).exists()
    assert client.post("/team/", {"remove": newcomer.public_id}).status_code == 404


def test_others_see_the_members_and_change_none(browser: Client, ada: User) -> None:
    page = browser.get("/team/").content.decode()
    assert ada.email in page and "Save member" not in page
    assert browser.post("/team/", {"email": ada.email, "role": "owner"}).status_code == 403
    assert browser.post("/team/", {"remove": ada.public_id}).status_code == 403


def test_the_admin_shows_members_and_writes_none(client: Client, team: Team, member: Callable[..., User]) -> None:
    admin = member(team, Role.OWNER, is_staff=True, is_superuser=True)
    client.force_login(admin)
    page = client.get(f"/admin/teams/team/{team.pk}/change/").content.decode()
    assert "owner" in page.lower() and 'name="memberships-0-role"' not in page
    nothing = {"memberships-TOTAL_FORMS": "0", "memberships-INITIAL_FORMS": "0"}
    assert client.post("/admin/teams/team/add/", {"name": "New", "slug": "new", **nothing}).status_code == 302
    assert Membership.objects.for_team(Team.objects.get(slug="new")).get().user == admin
