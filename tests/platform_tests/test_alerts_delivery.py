"""Messages really arrive: a local HTTP server, a local mail server. And what must not be reached is not."""

from __future__ import annotations

import json
import socket
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from django.test import Client

from headrace.alerts import channels, deliver, guard, sealing, services
from headrace.alerts.models import AlertChannel
from headrace.alerts.sender import sign
from headrace.experiments.problems import BadInput
from headrace.teams.models import AuditEvent, Role, Team, User
from headrace.teams.services import NotAllowed

pytestmark = pytest.mark.django_db


class Sink(ThreadingHTTPServer):
    """Keeps what it is sent; answers by path."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Answer)
        self.got: list[tuple[str, dict[str, str], bytes]] = []
        self.endless = False
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def place(self) -> str:
        return f"127.0.0.1:{self.server_port}"


class _Answer(BaseHTTPRequestHandler):
    server: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.server.got.append((self.path, {k.lower(): v for k, v in self.headers.items()}, body))
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", f"http://{self.path.removeprefix('/to/')}/private")
            self.end_headers()
            return
        code = int(self.path[1:4]) if self.path[1:4].isdigit() else 200
        self.send_response(code)
        self.end_headers()
        if self.server.endless:
            try:
                while True:
                    self.wfile.write(b"secret reply " * 10_000)
            except OSError:
                return
        self.wfile.write(b"the reply's body")

    def log_message(self, *arguments: Any) -> None:
        """Silent."""


@pytest.fixture
def sink() -> Iterator[Sink]:
    server = Sink()
    yield server
    server.shutdown()
    server.server_close()


class Mail(socketserver.ThreadingTCPServer):
    """Enough of SMTP to take a message."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Smtp)
        self.letters: list[str] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Smtp(socketserver.StreamRequestHandler):
    server: Mail

    def handle(self) -> None:
        self.wfile.write(b"220 sink\r\n")
        letter: list[str] = []
        while line := self.rfile.readline().decode().rstrip("\r\n"):
            word = line.upper()
            letter.append(line)
            if word.startswith("DATA"):
                self.wfile.write(b"354 go on\r\n")
                while (text := self.rfile.readline().decode("utf-8", "replace").rstrip("\r\n")) != ".":
                    letter.append(text)
                self.server.letters.append("\n".join(letter))
            elif word.startswith("QUIT"):
                self.wfile.write(b"221 bye\r\n")
                return
            self.wfile.write(b"250 ok\r\n")


def channel(team: Team, user: User, kind: str = "webhook", **given: str) -> tuple[AlertChannel, str]:
    return services.save_channel(team, user, kind=kind, name=f"channel {AlertChannel.objects.for_team(team).count()}", given=given)


def test_a_webhook_is_signed_and_its_reply_stays_unread(team: Team, member: Any, sink: Sink, settings: Any) -> None:
    settings.ALERT_HOSTS = [sink.place]
    owner = member(team, Role.OWNER)
    made, secret = channel(team, owner, url=f"http://{sink.place}/hook")
    row = deliver.send_test(made, owner.email)
    assert (row.state, row.words) == ("sent", "answered 200")
    path, headers, body = sink.got[0]
    assert path == "/hook" and json.loads(body)["event"] == "test"
    assert headers["x-headrace-signature"] == sign(secret, headers["x-headrace-timestamp"], body)
    assert secret.startswith("hrh_")
    made.refresh_from_db()
    assert made.last_ok_at and made.hint == sink.place
    for place in (made.sealed, made.hint, str(AuditEvent.unscoped.values_list("detail", flat=True))):
        assert secret not in place and "/hook" not in place


@pytest.mark.parametrize(("path", "words", "again"), [("/404", "answered 404", False), ("/503", "answered 503", True)])
def test_refusals_and_breakdowns_are_told_apart(
    team: Team, member: Any, sink: Sink, settings: Any, path: str, words: str, again: bool
) -> None:
    settings.ALERT_HOSTS = [sink.place]
    made, _ = channel(team, member(team, Role.OWNER), url=f"http://{sink.place}{path}")
    assert deliver.send(made, deliver.message_of(None, "test")) == {"ok": False, "again": again, "words": words}


def test_a_redirect_is_not_followed_and_an_endless_reply_is_left(team: Team, member: Any, sink: Sink, settings: Any) -> None:
    settings.ALERT_HOSTS = [sink.place]
    owner = member(team, Role.OWNER)
    away, _ = channel(team, owner, url=f"http://{sink.place}/to/{sink.place}")
    outcome = deliver.send(away, deliver.message_of(None, "test"))
    assert outcome["words"] == "answered 302: redirects are not followed" and len(sink.got) == 1
    sink.endless = True
    endless, _ = channel(team, owner, url=f"http://{sink.place}/endless")
    assert deliver.send(endless, deliver.message_of(None, "test"))["ok"] is True


def test_a_chat_is_reached_through_apprise_and_its_reply_is_capped(
    team: Team, member: Any, sink: Sink, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings.ALERT_HOSTS = [sink.place]
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    owner = member(team, Role.OWNER)
    made, _ = channel(team, owner, "ntfy", server=f"http://{sink.place}", topic="runs")
    assert deliver.send_test(made, owner.email).state == "sent"
    assert b"The channel" in sink.got[0][2]
    chat, _ = channel(team, owner, "chat", address=f"mmost://{sink.place}/abcdefghijk")
    assert deliver.send_test(chat, owner.email).state == "sent"


def test_an_endless_reply_to_apprise_ends(team: Team, member: Any, sink: Sink, settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """It reads the whole reply: the sending process meets its memory limit or its time, and the server's memory stays as it was."""
    settings.ALERT_HOSTS = [sink.place]
    monkeypatch.setattr(deliver, "WALL_S", 4.0)
    sink.endless = True
    made, _ = channel(team, member(team, Role.OWNER), "ntfy", server=f"http://{sink.place}", topic="runs")
    outcome = deliver.send(made, deliver.message_of(None, "test"))
    assert outcome["ok"] is False and "secret reply" not in outcome["words"]


def test_mail_arrives(team: Team, member: Any, settings: Any) -> None:
    with Mail() as mail:
        port = mail.server_address[1]
        settings.ALERT_HOSTS = [f"127.0.0.1:{port}"]
        owner = member(team, Role.OWNER)
        given = {
            "host": "127.0.0.1",
            "port": str(port),
            "mode": "none",
            "sender": "h@example.org",
            "to": "ada@example.org, bob@example.org",
        }
        made, _ = channel(team, owner, "email", **given)
        row = deliver.send_test(made, owner.email)
        assert (row.state, row.words) == ("sent", "taken")
        together = "\n".join(mail.letters)
        assert "ada@example.org" in together and "bob@example.org" in together and "Headrace: a test message" in together
        mail.shutdown()


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1/x",
        "http://[::ffff:127.0.0.1]/x",
        "http://0x7f.1/x",
        "http://2130706433/x",
        "http://0/x",
        "http://169.254.169.254/latest/meta-data",
        "http://localhost./x",
        "http://localhost/x",
        "http://[::1]/x",
        "http://10.0.0.1/x",
        "http://192.168.1.1/x",
        "http://100.64.0.1/x",
        "http://[fd00::1]/x",
        "http://[fe80::1]/x",
        "http://[64:ff9b::7f00:1]/x",
        "http://[2002:7f00:1::]/x",
        "http://224.0.0.1/x",
        "gopher://example.org/x",
        "file:///etc/passwd",
        "ftp://example.org/x",
        "javascript:alert(1)",
        "https://user:pass@example.org/x",
        "http://example.org:6379/x",
        "http://example.org:22/x",
        "http://example.org:99999/x",
        "https:///x",
        "",
        "x" * 2000,
        "http://exa mple.org/x",
    ],
)
def test_addresses_that_are_refused_when_they_are_given(team: Team, member: Any, url: str) -> None:
    with pytest.raises(BadInput) as fault:
        channel(team, member(team, Role.OWNER), url=url)
    assert fault.value.field == "url" and fault.value.cure
    assert not AlertChannel.objects.for_team(team).exists()


def sealed(team: Team, url: str, kind: str = "webhook") -> AlertChannel:
    """A channel whose address passed the form, as a name may that leads elsewhere later."""
    content = {"url": url, "secret": "s"}
    return AlertChannel.objects.create(team=team, name=url[:90], kind=kind, sealed=sealing.seal(content), hint="h")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "0x7f.1", "[::ffff:127.0.0.1]", "localhost."])
def test_where_a_name_leads_is_looked_at_when_it_is_connected_to(team: Team, sink: Sink, host: str) -> None:
    """Rebinding included: whatever was looked up before, the connection itself is refused."""
    outcome = deliver.send(sealed(team, f"http://{host}:{sink.server_port}/hook"), deliver.message_of(None, "test"))
    unknown = host == "localhost." and outcome["words"] == "it could not be sent (ConnectError)"  # where no resolver knows it
    assert outcome["ok"] is False and (outcome["words"].startswith("refused: ") or unknown)
    assert sink.got == []


@pytest.mark.parametrize(
    ("kind", "url"), [("ntfy", "ntfy://{}/topic"), ("chat", "mmost://{}/abcdefghijk"), ("email", "mailto://{}?from=a@b.cd&to=c@d.ef")]
)
def test_apprise_meets_the_same_door(team: Team, sink: Sink, kind: str, url: str) -> None:
    outcome = deliver.send(sealed(team, url.format(sink.place), kind), deliver.message_of(None, "test"))
    assert outcome == {"ok": False, "again": False, "words": "refused: the address leads inside: only public addresses are used"}
    assert sink.got == []


def test_allowed_is_one_host_and_port_and_nothing_beside_it(team: Team, sink: Sink, settings: Any) -> None:
    settings.ALERT_HOSTS = [f"127.0.0.1:{sink.server_port + 1 if sink.server_port < 65_000 else 1}"]
    assert deliver.send(sealed(team, f"http://{sink.place}/hook"), deliver.message_of(None, "test"))["ok"] is False
    assert sink.got == []


def test_an_unresolvable_name_and_a_deaf_port_are_outcomes(team: Team, settings: Any) -> None:
    outcome = deliver.send(sealed(team, "http://nowhere.invalid/x"), deliver.message_of(None, "test"))
    assert outcome["ok"] is False and "nowhere.invalid" not in outcome["words"]
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        port = deaf.getsockname()[1]
    settings.ALERT_HOSTS = [f"127.0.0.1:{port}"]
    assert deliver.send(sealed(team, f"http://127.0.0.1:{port}/x"), deliver.message_of(None, "test"))["again"] is True


def test_public_addresses() -> None:
    assert guard.is_public("8.8.8.8") and guard.is_public("2001:4860:4860::8888")
    for inside in (
        "::",
        "0.0.0.0",
        "255.255.255.255",
        "ff02::1",
        "::ffff:10.0.0.1",
        "240.0.0.1",
        "192.0.2.1",
        "not an address",
        "fe80::1%lo",
    ):
        assert not guard.is_public(inside), inside


def test_what_is_sealed_opens_with_this_servers_key_alone(settings: Any) -> None:
    text = sealing.seal({"url": "https://example.org/secret"})
    assert "secret" not in text and sealing.unseal(text) == {"url": "https://example.org/secret"}
    old = settings.SECRET_KEY
    settings.SECRET_KEY = "another key " * 6
    with pytest.raises(sealing.Unreadable):
        sealing.unseal(text)
    settings.SECRET_KEY_FALLBACKS = [old]
    assert sealing.unseal(text)["url"].endswith("secret")
    with pytest.raises(sealing.Unreadable):
        sealing.unseal(text[:-4] + "AAAA")


@pytest.mark.parametrize(
    ("kind", "given", "field"),
    [
        ("slack", {"url": "https://example.org/services/x"}, "url"),
        ("discord", {"url": "http://discord.com/api/webhooks/1/a"}, "url"),
        ("ntfy", {"server": "https://ntfy.sh/x", "topic": "t"}, "server"),
        ("ntfy", {"topic": "a/b"}, "topic"),
        ("chat", {"address": "json://example.org"}, "address"),
        ("chat", {"address": "mmost://10.0.0.1/abcdefghijk"}, "address"),
        ("chat", {"address": "syslog://"}, "address"),
        ("email", {"host": "10.0.0.1", "sender": "a@b.cd", "to": "c@d.ef"}, "host"),
        ("email", {"host": "smtp.example.org", "port": "6379", "sender": "a@b.cd", "to": "c@d.ef"}, "host"),
        ("email", {"host": "smtp.example.org", "sender": "a@b.cd\r\nBcc: x@y.zz", "to": "c@d.ef"}, "sender"),
        ("email", {"host": "smtp.example.org", "sender": "a@b.cd", "to": ""}, "to"),
        ("email", {"host": "smtp.example.org", "sender": "a@b.cd", "to": "c@d.ef", "user": "u"}, "user"),
        ("pigeon", {}, "kind"),
    ],
)
def test_each_kind_names_its_fault(kind: str, given: dict[str, str], field: str) -> None:
    with pytest.raises(BadInput) as fault:
        channels.build(kind, given)
    assert fault.value.field == field and fault.value.cure


def test_native_addresses_are_known() -> None:
    slack = channels.build("slack", {"url": "https://hooks.slack.com/services/T1JJ3T3L2/A1BRTD4JD/TIiajkdnlazkcOXrIdevi7FQ"})
    assert slack.hint == "hooks.slack.com:443"
    assert (
        channels.build("discord", {"url": "https://discord.com/api/webhooks/1234567890/abcdefghijklmnopqrstuvwxyz"}).hint
        == "discord.com:443"
    )
    assert channels.build("chat", {"address": "tgram://123456789:abcdefg_hijklmnop/12315544/"}).hint == "Telegram"


def test_who_may_and_what_is_shown(client: Client, team: Team, other_team: Team, member: Any, sink: Sink, settings: Any) -> None:
    settings.ALERT_HOSTS = [sink.place]
    owner = member(team, Role.OWNER)
    made, secret = channel(team, owner, url=f"http://{sink.place}/very-secret-path")
    with pytest.raises(NotAllowed):
        channel(team, member(team, Role.MAINTAINER), url=f"http://{sink.place}/b")
    client.force_login(member(other_team, Role.OWNER))
    for path in (
        f"/alerts/channels/{made.public_id}/",
        f"/alerts/channels/{made.public_id}/test/",
        f"/alerts/channels/{made.public_id}/delete/",
    ):
        assert client.post(path).status_code == 404, path
    for role in (Role.VIEWER, Role.MEMBER, Role.OWNER):
        client.force_login(member(team, role))
        page = client.get("/alerts/").content.decode()
        assert made.name in page and "very-secret-path" not in page and secret not in page
    client.force_login(owner)
    form = client.get(f"/alerts/channels/{made.public_id}/").content.decode()
    assert "very-secret-path" not in form and secret not in form
    tested = client.post(f"/alerts/channels/{made.public_id}/test/", follow=True).content.decode()
    assert "answered 200" in tested and "the reply" not in tested
