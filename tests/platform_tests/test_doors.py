"""Every address of the server, tried from outside: pages, API and sockets. `test_matrix` tries them from inside."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from asgiref.testing import ApplicationCommunicator
from django.conf import settings
from django.core.cache import cache
from django.test import Client

from headrace.teams import backends, receivers
from headrace.teams.models import AuditEvent, Team, User
from tests.platform_tests.security_rig import filled, routes

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


def addresses() -> set[str]:
    """One example of every address in the URLconf, with the id of nothing where an id belongs."""
    return {filled(route) for route in routes()}


def test_the_walk_finds_the_pages() -> None:
    found = addresses()
    assert "/admin/" in found
    assert len(found) > 10


@pytest.mark.parametrize("method", ["get", "post", "put", "patch", "delete"])
def test_strangers_are_turned_away_everywhere(method: str) -> None:
    client = Client(raise_request_exception=False)
    let_in = []
    for address in sorted(addresses()):
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
    for address in sorted(addresses()):
        status = client.post(address, data={}, content_type="application/x-www-form-urlencoded").status_code
        if status not in (401, 403, 404, 405):
            through.append((address, status))
    assert through == []


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
