"""From the fields of a form to what the sending process needs, checked early. Called by services when a channel is saved.

What is returned as `sealed` holds secrets and goes nowhere but into `sealing.seal`; `hint` is what pages may show.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from django.conf import settings

from headrace.alerts import guard
from headrace.alerts.models import AlertChannel
from headrace.experiments.problems import BadInput
from headrace.identifiers import new_secret

Kind = AlertChannel.Kind
SECRET_PREFIX = "hrh_"
CHAT_SERVICES = {
    "NotifySlack": "Slack",
    "NotifyDiscord": "Discord",
    "NotifyWorkflows": "Microsoft Teams",
    "NotifyMSTeams": "Microsoft Teams",
    "NotifyGoogleChat": "Google Chat",
    "NotifyMattermost": "Mattermost",
    "NotifyRocketChat": "Rocket.Chat",
    "NotifyTelegram": "Telegram",
    "NotifyGotify": "Gotify",
    "NotifyNtfy": "ntfy",
    "NotifyPushover": "Pushover",
}
NATIVE = {Kind.SLACK: "NotifySlack", Kind.DISCORD: "NotifyDiscord", Kind.TEAMS: "NotifyWorkflows"}
_MAIL = re.compile(r"[^@\s,;<>]{1,64}@[^@\s,;<>]{1,190}")
_TOPIC = re.compile(r"[A-Za-z0-9_-]{1,64}")
MODES = {"ssl": "ssl", "starttls": "starttls", "none": "insecure"}


@dataclass(frozen=True, slots=True)
class Built:
    """`shown_once`: the signing secret of a fresh webhook."""

    sealed: dict[str, Any]
    hint: str
    shown_once: str = ""


def build(kind: str, given: dict[str, str]) -> Built:
    """Raises BadInput naming the field."""
    makers = {Kind.WEBHOOK: _webhook, Kind.EMAIL: _email, Kind.NTFY: _ntfy, Kind.CHAT: _chat}
    if kind in makers:
        return makers[Kind(kind)](given)
    if kind in NATIVE:
        return _native(Kind(kind), given)
    raise BadInput("is not a kind of channel", field="kind", value=kind[:40], cure=f"one of {', '.join(Kind.values)}")


def _webhook(given: dict[str, str]) -> Built:
    url = _line(given, "url", 1000)
    hint = _checked_url("url", url)
    secret = new_secret(SECRET_PREFIX)
    return Built({"url": url, "secret": secret}, hint, shown_once=secret)


def _native(kind: Kind, given: dict[str, str]) -> Built:
    url = _line(given, "url", 1000)
    hint = _checked_url("url", url, schemes=("https",))
    found = type(_plugin(url)).__name__
    wanted = NATIVE[kind]
    if found != wanted and not (kind == Kind.TEAMS and found == "NotifyMSTeams"):
        raise BadInput(
            f"is not a webhook address of {kind.label}",
            field="url",
            cure=f"copy it from {kind.label}; it is shown when the webhook is made",
        )
    return Built({"url": url}, hint)


def _ntfy(given: dict[str, str]) -> Built:
    server = _line({"server": given.get("server") or "https://ntfy.sh"}, "server", 300).rstrip("/")
    hint = _checked_url("server", server)
    parts = urlsplit(server)
    if parts.path or parts.query:
        raise BadInput("holds more than a server", field="server", value=server, cure="for example https://ntfy.sh")
    topic = _line(given, "topic", 64)
    if not _TOPIC.fullmatch(topic):
        raise BadInput("is not a topic", field="topic", value=topic, cure="letters, digits, _ and -, at most 64")
    token = given.get("token", "").strip()
    scheme = "ntfys" if parts.scheme == "https" else "ntfy"
    login = f"{quote(token, safe='')}@" if token else ""
    return Built({"url": f"{scheme}://{login}{parts.netloc}/{topic}" + ("?auth=token" if token else "")}, hint)


def _chat(given: dict[str, str]) -> Built:
    url = _line(given, "address", 1000)
    plugin = _plugin(url)
    service = CHAT_SERVICES.get(type(plugin).__name__)
    if service is None:
        raise BadInput(
            "is not an address of a chat that is known here",
            field="address",
            cure=f"a webhook address, or apprise's form of it, of {', '.join(sorted(set(CHAT_SERVICES.values())))}",
        )
    host, port = getattr(plugin, "host", None), getattr(plugin, "port", None)
    if isinstance(host, str) and host and type(plugin).__name__ in ("NotifyMattermost", "NotifyRocketChat", "NotifyGotify", "NotifyNtfy"):
        _checked_host("address", host, port or (443 if getattr(plugin, "secure", True) else 80), guard.WEB_PORTS)
        return Built({"url": url}, f"{service} at {host}")
    return Built({"url": url}, service)


def _email(given: dict[str, str]) -> Built:
    host = _line(given, "host", 250)
    if not re.fullmatch(r"[A-Za-z0-9.:\[\]_-]+", host):
        raise BadInput("is not a host name", field="host", value=host, cure="for example smtp.example.org")
    mode = given.get("mode", "starttls")
    if mode not in MODES:
        raise BadInput("is not a way to connect", field="mode", value=mode[:20], cure="ssl, starttls or none")
    text = given.get("port", "").strip() or {"ssl": "465", "starttls": "587", "none": "25"}[mode]
    if not (text.isascii() and text.isdigit() and 0 < int(text[:6]) < 65_536):
        raise BadInput("is not a port", field="port", value=text[:20], cure="465, 587, 25 or 2525")
    _checked_host("host", host, int(text), guard.MAIL_PORTS)
    sender = _address(given, "sender")
    to = [_address({"to": one}, "to") for one in given.get("to", "").replace(";", ",").split(",") if one.strip()]
    if not 1 <= len(to) <= 20:
        raise BadInput("names nobody, or more than 20", field="to", value=len(to), cure="addresses with commas between them")
    user, password = given.get("user", "").strip(), given.get("password", "")
    if bool(user) != bool(password):
        raise BadInput("comes with a password, or neither is given", field="user", cure="fill both or leave both empty")
    login = f"{quote(user, safe='')}:{quote(password, safe='')}@" if user else ""
    query = urlencode({"smtp": host, "from": sender, "to": ",".join(to), "mode": MODES[mode], "name": "Headrace"})
    scheme = "mailto" if mode == "none" else "mailtos"
    return Built({"url": f"{scheme}://{login}{host}:{text}?{query}"}, f"{', '.join(to)[:120]} by {host}")


def _line(given: dict[str, str], field: str, longest: int) -> str:
    value = given.get(field, "").strip()
    if not value:
        raise BadInput("is empty", field=field, cure="fill it in")
    if len(value) > longest or any(character.isspace() or not character.isprintable() for character in value):
        raise BadInput("is too long, or holds spaces or control characters", field=field, cure=f"one line of at most {longest} characters")
    return value


def _address(given: dict[str, str], field: str) -> str:
    value = given.get(field, "").strip()
    if not _MAIL.fullmatch(value):
        raise BadInput("is not an e-mail address", field=field, value=value[:80], cure="for example ada@example.org")
    return value


def _checked_url(field: str, url: str, schemes: tuple[str, ...] = ("https", "http")) -> str:
    try:
        return guard.check_url(url, settings.ALERT_HOSTS, schemes)
    except ValueError as error:
        raise BadInput(str(error), field=field, cure="a public address, with https") from error


def _checked_host(field: str, host: str, port: int, ports: frozenset[int]) -> None:
    try:
        guard.check_host(host.strip("[]"), port, settings.ALERT_HOSTS, ports)
    except ValueError as error:
        raise BadInput(str(error), field=field, cure="a public host") from error


def _plugin(url: str) -> Any:
    """apprise's own reading of an address; it opens no connection."""
    import apprise

    return apprise.Apprise.instantiate(url, suppress_exceptions=True)
