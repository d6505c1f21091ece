"""Every address of the server, tried from outside: pages, API and sockets."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.core.cache import cache
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver

from headrace.experiments.models import Run
from headrace.teams import backends, receivers
from headrace.teams.models import AuditEvent, Team, User

pytestmark = pytest.mark.django_db

# Open to everybody, each with its reason. Anything else must ask who is there.
OPEN = {
    r"/login/": "signing in",
    r"/logout/": "harmless to those who are out",
    r"/setup/[^/]+/": "opened by its own one-use secret",
    r"/invite/[^/]+/": "opened by its own one-use secret",
    r"/healthz/(live|ready)/?": "says only whether the server works",
    r"/admin/login/": "signing in",
}


ABSENT = "abcdefghijkl"


def addresses(patterns: list[URLPattern | URLResolver] | None = None, prefix: str = "/") -> Iterator[str]:
    """One example of every address in the URLconf, with the id of nothing where an id belongs."""
    for item in get_resolver().url_patterns if patterns is None else patterns:
        text = str(item.pattern)
        if not hasattr(item.pattern, "_route"):  # a regular expression
            text = re.sub(r"\(\?P<(\w+)>([^)]*)\)", lambda found: ABSENT if "id" in found[1] else found[2].split("|")[0], text)
            text = re.sub(r"\([^)]*\)", "x", text).strip("^$").replace("\\Z", "").replace("\\", "")
        text = re.sub(r"<(?:int|float):[^>]+>", "1", text)
        text = re.sub(r"<[^>]+>", ABSENT, text)
        if isinstance(item, URLResolver):
            yield from addresses(item.url_patterns, prefix + text)
        else:
            yield prefix + text


def test_the_walk_finds_the_pages() -> None:
    found = set(addresses())
    assert "/admin/" in found
    assert len(found) > 10


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete"])
def test_strangers_are_turned_away_everywhere(method: str) -> None:
    client = Client(raise_request_exception=False)
    let_in = []
    for address in sorted(set(addresses())):
        if any(re.fullmatch(pattern, address) for pattern in OPEN):
            continue
        answer = getattr(client, method)(address)
        to_login = answer.status_code == 302 and answer.headers["Location"].startswith(("/login/", "/admin/login/"))
        if not to_login and answer.status_code not in (401, 403, 405):
            let_in.append((address, answer.status_code))
    assert let_in == []


def test_unsafe_requests_of_a_session_need_the_csrf_token(team: Team, member: Callable[..., User]) -> None:
    client = Client(enforce_csrf_checks=True, raise_request_exception=False)
    client.force_login(member(team, "owner", is_staff=True, is_superuser=True))
    through = []
    for address in sorted(set(addresses())):
        status = client.post(address, data={}, content_type="application/x-www-form-urlencoded").status_code
        if status not in (401, 403, 404, 405):
            through.append((address, status))
    assert through == []


@pytest.mark.parametrize("method", ["get", "post", "delete"])
def test_another_teams_ids_answer_as_absent_ones(
    method: str, team: Team, other_team: Team, member: Callable[..., User], start: Callable[..., Run]
) -> None:
    """Status and body, for every address with an id in it and for ids of every kind."""
    run = start(team, member(team))
    ids = [run.public_id, run.attempts.get().public_id, run.config.public_id, run.project.public_id, team.public_id]
    before = str(list(Run.unscoped.values())), Run.unscoped.count()
    client = Client(raise_request_exception=False)
    client.force_login(member(other_team, "owner"))
    told = []
    for address in sorted({address for address in addresses() if ABSENT in address and not address.startswith("/admin/")}):
        absent = getattr(client, method)(address)
        for public_id in ids:
            there = getattr(client, method)(address.replace(ABSENT, public_id))
            same = there.status_code == absent.status_code and _words(there.content, public_id) == _words(absent.content, ABSENT)
            if not same:
                told.append((address, public_id, there.status_code, absent.status_code))
    assert told == []
    assert before == (str(list(Run.unscoped.values())), Run.unscoped.count())


def _words(body: bytes, public_id: str) -> str:
    """The body without the id itself and without CSRF tokens, which differ every time."""
    text = body.decode().replace(public_id, "ID")
    return re.sub(r'(csrfmiddlewaretoken"|X-CSRFToken)[^>]*|"error_id": ?"[^"]*"', "", text)


def test_members_do_see_their_own(team: Team, member: Callable[..., User], start: Callable[..., Run]) -> None:
    """The control of the test above: the same walk finds something where there is something to find."""
    user = member(team)
    run = start(team, user)
    client = Client()
    client.force_login(user)
    answers = {address: client.get(address.replace(ABSENT, run.public_id)).status_code for address in addresses() if ABSENT in address}
    assert sum(status == 200 for status in answers.values()) >= 8, answers


async def knock(path: str, origin: bytes | None) -> int | None:
    """The close code a stranger's socket meets; 403 stands for a refused handshake, None for none within five seconds."""
    from headrace.asgi import application

    headers = [(b"host", b"127.0.0.1:8700")] + ([(b"origin", origin)] if origin is not None else [])
    scope = {"type": "websocket", "path": path, "query_string": b"", "headers": headers, "subprotocols": []}
    socket = ApplicationCommunicator(application, scope)
    await socket.send_input({"type": "websocket.connect"})
    message = await socket.receive_output(5)
    if message["type"] == "websocket.accept":
        message = await socket.receive_output(5)
        return message["code"] if message["type"] == "websocket.close" else None
    return 403 if message["type"] == "websocket.close" else None


@pytest.mark.parametrize("origin", [b"http://evil.example.org", b"http://127.0.0.1:1", b"https://127.0.0.1:8700", b"null", None])
async def test_sockets_of_another_origin_are_refused(origin: bytes | None) -> None:
    assert await knock("/ws/runs/abcdefghijkl/", origin) == 403


@pytest.mark.parametrize(("path", "wanted"), [("/ws/runs/abcdefghijkl/", 4401), ("/ws/nowhere/", 4404), ("/", 4404)])
async def test_sockets_without_a_session_or_address_are_closed(path: str, wanted: int) -> None:
    assert await knock(path, settings.CSRF_TRUSTED_ORIGINS[0].encode()) == wanted


def test_failed_logins_are_limited_and_told(team: Team, member: Callable[..., User], monkeypatch: pytest.MonkeyPatch) -> None:
    cache.clear()
    monkeypatch.setattr(backends, "PER_PAIR", 3)
    user = member(team)
    client = Client()
    password = "correct horse battery staple"
    assert client.login(username=user.email.upper(), password=password)
    for _ in range(3):
        assert not client.login(username=user.email, password="wrong")
    assert not client.login(username=user.email, password=password), "the right one comes too late"
    assert AuditEvent.unscoped.filter(action="login.failed").count() == 4
    cache.clear()
    assert client.login(username=user.email, password=password)
    assert AuditEvent.unscoped.filter(action="login", user=user).count() == 2


def test_what_was_typed_for_an_unknown_account_is_not_kept_and_the_trail_is_not_flooded(db: None) -> None:
    cache.clear()
    client = Client()
    for _ in range(receivers.ROWS_A_WINDOW + 5):
        assert not client.login(username="my-secret-passphrase", password="x")
    rows = AuditEvent.unscoped.filter(action="login.failed")
    assert rows.count() == receivers.ROWS_A_WINDOW
    assert not any("passphrase" in str(row.detail) for row in rows)
    assert "not written" in rows.latest("pk").detail["note"]
    cache.clear()
