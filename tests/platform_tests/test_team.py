"""The team's and the account's pages: who may do what there, sessions, tokens, the trail, and that nothing crosses between teams."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable

import pytest
from django.test import Client

from headrace.api.auth import Caller
from headrace.experiments.models import Project, Run
from headrace.teams import audit, roles, services, trail
from headrace.teams.forms import Filters
from headrace.teams.models import ApiToken, AuditEvent, Membership, Role, SignIn, Team, User
from headrace.teams.policy import ACTIONS, can_with_token, in_scope, role_in
from headrace.teams.services import NotAllowed, issue_api_token, verify_api_token
from tests.platform_tests.conftest import PASSWORD

pytestmark = pytest.mark.django_db
Member = Callable[..., User]
NEW_PASSWORD = "an unusual sentence 42"


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


# What GET and POST answer to each role, from viewer to owner. POST bodies are good ones.
PAGES: list[tuple[str, str, dict[str, str], tuple[int, int, int, int]]] = [
    ("get", "/team/", {}, (200, 200, 200, 200)),
    ("get", "/team/tokens/", {}, (200, 200, 200, 200)),
    ("get", "/team/projects/", {}, (200, 200, 200, 200)),
    ("get", "/team/storage/", {}, (200, 200, 200, 200)),
    ("get", "/team/settings/", {}, (200, 200, 200, 200)),
    ("get", "/team/invitations/", {}, (403, 403, 403, 200)),
    ("get", "/team/audit/", {}, (403, 403, 403, 200)),
    ("get", "/team/audit/export.csv", {}, (403, 403, 403, 200)),
    ("post", "/team/audit/verify/", {}, (403, 403, 403, 302)),
    ("post", "/team/settings/", {"name": "Gamma"}, (403, 403, 403, 302)),
    ("post", "/team/invitations/", {"role": "viewer", "days": "1"}, (403, 403, 403, 200)),
    ("post", "/team/storage/", {"logs": "9"}, (403, 403, 403, 200)),
    ("post", "/team/storage/", {"logs": "9", "confirmed": "1"}, (403, 403, 403, 302)),
    ("post", "/team/projects/", {"name": "New"}, (403, 403, 302, 302)),
    ("post", "/account/", {"name": "t", "scope": "read", "days": "7"}, (403, 200, 200, 200)),
    ("post", "/account/profile/", {"name": "N"}, (302, 302, 302, 302)),
]


@pytest.mark.parametrize(("method", "address", "body", "wanted"), PAGES)
def test_pages_by_role(method: str, address: str, body: dict[str, str], wanted: tuple[int, ...], team: Team, member: Member) -> None:
    member(team, Role.OWNER)
    answers = tuple(getattr(signed_in(member(team, role)), method)(address, body).status_code for role in Role.values)
    if (address, method) == ("/team/projects/", "post"):
        assert answers[:3] == wanted[:3] and answers[3] in (302, 422), "the second one of a name is told that it is taken"
    else:
        assert answers == wanted


def test_the_role_table_is_the_policys(team: Team, member: Member) -> None:
    table = roles.table()
    assert len(table.rows) == len(ACTIONS)
    assert {action.partition(".")[0] for action in ACTIONS} <= roles.NOUNS.keys()
    cancel = next(row for row in table.rows if row.words == "Cancel and stop runs")
    assert cancel.cells == ("no", "own", "yes", "yes")
    assert "Cancel and stop runs" in signed_in(member(team, Role.VIEWER)).get("/team/").content.decode()


def test_leaving(team: Team, member: Member) -> None:
    owner, user = member(team, Role.OWNER), member(team, Role.VIEWER)
    assert "needs an owner" in signed_in(owner).post("/team/leave/", follow=True).content.decode()
    assert role_in(owner, team) == Role.OWNER
    assert signed_in(user).post("/team/leave/")["Location"] == "/runs/"
    assert role_in(user, team) is None
    assert AuditEvent.unscoped.filter(action="member.leave", user=user).exists()


def test_a_team_is_renamed(team: Team, member: Member) -> None:
    owner = member(team, Role.OWNER)
    for wrong in ("", " ", "x" * 201):
        assert signed_in(owner).post("/team/settings/", {"name": wrong}).status_code == 422
    with pytest.raises(NotAllowed):
        services.edit_team(by=owner, team=team, name="a\u202eb")
    signed_in(owner).post("/team/settings/", {"name": "  New   name "})
    team.refresh_from_db()
    assert team.name == "New name" and team.slug == "alpha"


def test_the_api_works_in_the_team_that_the_browser_shows(team: Team, other_team: Team, member: Member) -> None:
    user = member(team, Role.MEMBER)
    Membership.objects.create(team=other_team, user=user, role=Role.MEMBER)
    browser = signed_in(user)
    for place in (team, other_team):
        Project.objects.create(team=place, name=f"of {place.slug}", slug="p")
    browser.post("/account/team/", {"team": other_team.public_id})
    assert [row["name"] for row in browser.get("/api/v1/projects").json()["projects"]] == ["of beta"]
    browser.post("/account/team/", {"team": team.public_id})
    assert [row["name"] for row in browser.get("/api/v1/projects").json()["projects"]] == ["of alpha"]
    Membership.objects.for_team(team).filter(user=user).delete()
    assert Caller(user, chosen=team.public_id).team() == other_team, "a team that one is no longer in is not shown"


def test_scopes(team: Team, member: Member, start: Callable[..., Run]) -> None:
    user = member(team, Role.OWNER)
    run = start(team, user)
    allowed = {scope: {action for action in ACTIONS if in_scope(scope, action)} for scope in (*ApiToken.Scope.values, "unknown")}
    reads = {action for action in ACTIONS if action.endswith(".view")}
    assert allowed["unknown"] == set() and allowed["metrics"] == {"metrics.view"} and allowed["read"] == reads
    assert allowed["launch"] - reads == {"config.create", "experiment.create", "run.create", "run.cancel", "run.resume", "race.create"}
    assert allowed["write"] == set(ACTIONS)
    metrics, secret = issue_api_token(user=user, team=team, name="m", scope="metrics")
    assert can_with_token(metrics, "metrics.view", team) and not can_with_token(metrics, "run.view", run)
    header = {"Authorization": f"Bearer {secret}"}
    assert Client(headers=header).get(f"/api/v1/runs/{run.public_id}").status_code in (403, 404)
    _, launch = issue_api_token(user=user, team=team, name="l", scope="launch")
    header = {"Authorization": f"Bearer {launch}"}
    assert Client(headers=header).post(f"/api/v1/runs/{run.public_id}/cancel").status_code == 200


def test_rotation_gives_a_new_secret_and_kills_the_old(team: Team, member: Member) -> None:
    user, maintainer = member(team, Role.MEMBER), member(team, Role.MAINTAINER)
    token, old = issue_api_token(user=user, team=team, name="t", days=30)
    page = signed_in(user).post(f"/account/tokens/{token.public_id}/rotate/").content.decode()
    new = re.search(r'id="secret" value="(hra_[^"]+)"', page)
    assert new and verify_api_token(old) is None and verify_api_token(new[1]) == token
    assert signed_in(maintainer).post(f"/account/tokens/{token.public_id}/rotate/").status_code == 404
    with pytest.raises(NotAllowed):
        services.rotate_api_token(by=maintainer, token=token)
    assert AuditEvent.unscoped.filter(action="token.rotate", user=user).count() == 1


def test_maintainers_see_and_revoke_everybodys_tokens(team: Team, other_team: Team, member: Member) -> None:
    user, maintainer, second = member(team), member(team, Role.MAINTAINER), member(team)
    token, secret = issue_api_token(user=user, team=team, name="of a member")
    foreign, _ = issue_api_token(user=member(other_team), team=other_team, name="foreign")
    assert "of a member" not in signed_in(second).get("/team/tokens/").content.decode()
    assert signed_in(second).post(f"/team/tokens/{token.public_id}/revoke/").status_code == 404
    page = signed_in(maintainer).get("/team/tokens/").content.decode()
    assert "of a member" in page and "foreign" not in page and token.token_hash not in page
    assert signed_in(maintainer).post(f"/team/tokens/{foreign.public_id}/revoke/").status_code == 404
    assert signed_in(maintainer).post(f"/team/tokens/{token.public_id}/revoke/").status_code == 302
    assert verify_api_token(secret) is None


def test_a_password_change_ends_every_other_session(team: Team, member: Member) -> None:
    user = member(team)
    here, there = signed_in(user), signed_in(user)
    wrong = {"old": "wrong", "new": NEW_PASSWORD, "again": NEW_PASSWORD}
    for body in (wrong, {**wrong, "old": PASSWORD, "new": "short", "again": "short"}, {**wrong, "old": PASSWORD, "again": "x"}):
        assert here.post("/account/password/", body).status_code == 422
    assert there.get("/account/").status_code == 200
    assert here.post("/account/password/", {**wrong, "old": PASSWORD})["Location"] == "/account/"
    assert here.get("/account/").status_code == 200
    assert there.get("/account/").status_code == 302
    user.refresh_from_db()
    assert user.check_password(NEW_PASSWORD) and AuditEvent.unscoped.filter(action="password.change", user=user).count() == 1
    assert SignIn.objects.filter(user=user).count() == 1


def test_sessions_are_listed_and_ended(team: Team, member: Member) -> None:
    user, stranger = member(team), member(team)
    here = Client(headers={"User-Agent": "Mozilla/5.0 (X11; Linux x86_64) Firefox/140.0"})
    assert here.post("/login/", {"username": user.email, "password": PASSWORD}).status_code == 302
    there, third = signed_in(user), signed_in(user)
    page = here.get("/account/").content.decode()
    assert page.count("/end/") == 2 and "this one" in page and "Firefox on Linux" in page
    ends = re.findall(r"/account/sessions/(\w{12})/end/", page)
    assert signed_in(stranger).post(f"/account/sessions/{ends[0]}/end/").status_code == 404
    assert here.post(f"/account/sessions/{ends[0]}/end/").status_code == 302
    assert sorted([there.get("/account/").status_code, third.get("/account/").status_code]) == [200, 302]
    SignIn.objects.filter(user=user).delete()  # a session without a row ends as well
    assert here.post("/account/sessions/end-others/").status_code == 302
    assert here.get("/account/").status_code == 200
    assert {there.get("/account/").status_code, third.get("/account/").status_code} == {302}
    here.post("/logout/")
    assert AuditEvent.unscoped.filter(action="logout", user=user).count() == 1


def test_the_trail_reads_as_sentences(team: Team, other_team: Team, member: Member, start: Callable[..., Run]) -> None:
    owner, bo = member(team, Role.OWNER, name="Ada"), member(None, name="Bo")
    services.set_member(by=owner, team=team, user=bo, role=Role.MEMBER)
    services.set_member(by=owner, team=team, user=bo, role=Role.MAINTAINER)
    run = start(team, owner, name="<b>first</b>")
    start(other_team, member(other_team, Role.OWNER, name="Zed"), name="theirs")
    audit.record("gadget.create", user=owner, team=team, detail={"name": "{actor}"})
    lines = trail.lines(team, list(trail.rows_of(team)))
    sentences = [line.sentence for line in lines]
    assert "Ada changed the role of Bo from member to maintainer" in sentences
    assert "Ada added Bo as member" in sentences and any(text.startswith("Ada made gadget") for text in sentences)
    assert not any("theirs" in text or "Zed" in text for text in sentences)
    assert next(line.link for line in lines if line.action == "run.start") == f"/runs/{run.public_id}/"
    page = signed_in(owner).get("/team/audit/").content.decode()
    assert "&lt;b&gt;first&lt;/b&gt;" in page and "<b>first" not in page
    signed_in(bo)
    assert any(line.sentence == "Bo signed in" for line in trail.lines(team, list(trail.rows_of(team))))


def test_the_trail_is_filtered_and_paged(team: Team, member: Member, monkeypatch: pytest.MonkeyPatch) -> None:
    owner = member(team, Role.OWNER)
    for number in range(5):
        audit.record("run.edit" if number else "run.start", user=owner, team=team, detail={"n": number})
    assert trail.rows_of(team, Filters(action="run.start")).count() == 1
    assert trail.rows_of(team, Filters(person="nobody")).count() == 0
    monkeypatch.setattr(trail, "PAGE", 2)
    browser = signed_in(owner)
    first = browser.get("/team/audit/?action=run.edit").content.decode()
    assert "?action=run.edit&amp;page=2" in first and "1 to 2" in first
    assert "3 to 4" in browser.get("/team/audit/?action=run.edit&page=2").content.decode()
    assert "no more rows" in browser.get("/team/audit/?page=900").content.decode()
    assert browser.get("/team/audit/?since=yesterday").status_code == 422
    assert browser.get("/team/audit/?since=2020-01-01&until=2020-02-01").content.decode().count("<li><time") == 0
    assert browser.get("/team/audit/?page=x&object=%00").status_code in (200, 422)


def test_the_chain_is_verified_from_the_page(team: Team, member: Member) -> None:
    browser = signed_in(member(team, Role.OWNER))
    assert "The chain is whole" in browser.post("/team/audit/verify/", follow=True).content.decode()
    AuditEvent.unscoped.filter(action="login").update(actor="somebody else")
    assert "The chain is broken" in browser.post("/team/audit/verify/", follow=True).content.decode()


def test_the_export_is_safe_to_open(team: Team, member: Member) -> None:
    owner = member(team, Role.OWNER, name="=HYPERLINK(1)")
    audit.record("run.edit", user=owner, team=team, detail={"=cmd": "@SUM(1)"})
    answer = signed_in(owner).get("/team/audit/export.csv")
    text = b"".join(answer.streaming_content).decode()  # type: ignore[attr-defined]
    rows = list(csv.reader(io.StringIO(text)))
    assert rows[0][0] == "time" and len(rows) > 2
    assert not any(cell[:1] in "=+-@" for row in rows for cell in row if cell)
    assert "attachment" in answer["Content-Disposition"]
    assert AuditEvent.unscoped.filter(action="audit.export", user=owner).count() == 1


def test_the_trail_takes_a_fixed_number_of_queries(
    team: Team, member: Member, start: Callable[..., Run], django_assert_max_num_queries: Callable[..., object]
) -> None:
    owner = member(team, Role.OWNER)
    for _ in range(6):
        start(team, owner)
    browser = signed_in(owner)
    with django_assert_max_num_queries(20):  # type: ignore[attr-defined]
        assert browser.get("/team/audit/").status_code == 200
