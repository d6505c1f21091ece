"""Reads HEADRACE_* variables for settings.py and refuses what cannot be run safely. Every error names variable and cure."""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from django.core.exceptions import ImproperlyConfigured

PREFIX = "HEADRACE_"
MINIMUM_SECRET = 50
LOOPBACK = ("127.0.0.1", "localhost", "[::1]", "::1")


def read(name: str, default: str) -> str:
    """HEADRACE_<name>, or the content of the file that HEADRACE_<name>_FILE names, or the default."""
    direct, by_file = os.environ.get(PREFIX + name), os.environ.get(f"{PREFIX}{name}_FILE")
    if direct is not None and by_file is not None:
        raise ImproperlyConfigured(f"{PREFIX}{name} and {PREFIX}{name}_FILE are both set -> keep one of them")
    if by_file is not None:
        try:
            return Path(by_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ImproperlyConfigured(f"{PREFIX}{name}_FILE: cannot read {by_file} ({error.strerror}) -> check path and mode") from error
    return default if direct is None else direct.strip()


def read_bool(name: str, default: bool) -> bool:
    text = read(name, "1" if default else "0").lower()
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off", ""):
        return False
    raise ImproperlyConfigured(f"{PREFIX}{name}: not a switch (given: {text!r}) -> set 1 or 0")


def read_int(name: str, default: int) -> int:
    text = read(name, str(default))
    try:
        return int(text)
    except ValueError:
        raise ImproperlyConfigured(f"{PREFIX}{name}: not a whole number (given: {text!r})") from None


def host_ports(name: str) -> list[str]:
    """HEADRACE_<name> as a list of host:port."""
    given = [entry.strip() for entry in read(name, "").split(",") if entry.strip()]
    for entry in given:
        host, _, port = entry.rpartition(":")
        if not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65_536:
            raise ImproperlyConfigured(f"{PREFIX}{name}: not host:port (given: {entry!r}) -> for example mail.intern.example:25")
    return given


def secret_key(*, debug: bool) -> str:
    """The key that signs sessions. With DEBUG on, a random one that lives as long as the process will do."""
    key = read("SECRET_KEY", "")
    if not key and debug:
        return secrets.token_urlsafe(64)
    if len(key) < MINIMUM_SECRET or len(set(key)) < 5 or key.startswith("django-insecure-"):
        state = "missing" if not key else f"too short or guessable ({len(key)} characters)"
        raise ImproperlyConfigured(
            f"{PREFIX}SECRET_KEY: {state} -> set {PREFIX}SECRET_KEY or {PREFIX}SECRET_KEY_FILE to at least {MINIMUM_SECRET} random "
            f"characters, for example from: python -c 'import secrets; print(secrets.token_urlsafe(64))'"
        )
    return key


def allowed_hosts(base_url: str, *, debug: bool) -> list[str]:
    host = urlsplit(base_url).hostname
    if not host:
        raise ImproperlyConfigured(f"{PREFIX}BASE_URL: no host in it (given: {base_url!r}) -> for example http://127.0.0.1:8700")
    given = [h.strip() for h in read("ALLOWED_HOSTS", "").split(",") if h.strip()]
    if "*" in given and not debug:
        raise ImproperlyConfigured(f"{PREFIX}ALLOWED_HOSTS: '*' lets any site name this server -> list the host names")
    return list(dict.fromkeys([f"[{host}]" if ":" in host else host, *given, *LOOPBACK[:3]]))


def trusted_origins(base_url: str, hosts: list[str], port: int) -> list[str]:
    """Origins whose forms and sockets are accepted: the base URL, and loopback where that is the base URL's host."""
    parts = urlsplit(base_url)
    origins = [f"{parts.scheme}://{parts.netloc}"]
    if parts.hostname in LOOPBACK:
        used = parts.port or port
        origins += [f"{parts.scheme}://{host}:{used}" for host in LOOPBACK[:3]]
    return list(dict.fromkeys(origins))


def websocket_origins(base_url: str) -> list[str]:
    """Socket addresses for connect-src: 'self' does not cover ws: in every browser."""
    parts = urlsplit(base_url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    origins = [f"{scheme}://{parts.netloc}"]
    if parts.hostname in LOOPBACK and parts.port:
        origins += [f"{scheme}://{host}:{parts.port}" for host in LOOPBACK[:2]]
    return list(dict.fromkeys(origins))


POOL = {"min_size": 1, "max_size": 16, "timeout": 20}  # connections of one process; seconds that a request waits for one


def database(data_dir: Path) -> dict[str, Any]:
    """DATABASES['default'] from DATABASE_URL."""
    url = read("DATABASE_URL", "") or f"sqlite:///{data_dir / 'headrace.sqlite3'}"
    parts = urlsplit(url)
    if parts.scheme == "sqlite":
        return _sqlite(unquote(parts.path.removeprefix("/") if parts.path.startswith("//") else parts.path))
    if parts.scheme in ("postgres", "postgresql"):
        return {
            "ENGINE": "django.db.backends.postgresql",
            "NAME": unquote(parts.path.lstrip("/")),
            "USER": unquote(parts.username or ""),
            "PASSWORD": unquote(parts.password or ""),
            "HOST": unquote(parts.hostname or ""),
            "PORT": str(parts.port or ""),
            "CONN_HEALTH_CHECKS": True,
            # Every request has a thread of its own: what lives longer than a request lives in the pool.
            "OPTIONS": {**dict(parse_qsl(parts.query)), "pool": POOL},
        }
    raise ImproperlyConfigured(f"{PREFIX}DATABASE_URL: unknown kind {parts.scheme!r} -> use sqlite:///path or postgres://...")


def _sqlite(path: str) -> dict[str, Any]:
    if not path or path == "/":
        raise ImproperlyConfigured(f"{PREFIX}DATABASE_URL: no path in it -> for example sqlite:////var/lib/headrace/headrace.sqlite3")
    return {
        "ENGINE": "headrace.sqlite",
        "NAME": path,
        # A file, not memory: tests then meet the same locking (WAL, IMMEDIATE) as production.
        "TEST": {"NAME": f"{path}.test"},
        "OPTIONS": {
            "timeout": 20,
            # A deferred transaction that turns into a writer fails at once, whatever the timeout says.
            "transaction_mode": "IMMEDIATE",
            # FULL: what was acknowledged survives a power cut.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL;",
        },
    }


def channel_layer(valkey_url: str) -> dict[str, Any]:
    """Without Valkey the layer lives in this process: enough for tests and one server, not for several processes."""
    if not valkey_url:
        return {"BACKEND": "channels.layers.InMemoryChannelLayer"}
    return {
        "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
        "CONFIG": {"hosts": [{"address": valkey_url}], "prefix": "headrace"},
    }


def celery_broker(valkey_url: str) -> str:
    """Kombu calls a unix socket redis+socket:// where redis-py says unix://. Without Valkey messages stay in this process."""
    if not valkey_url:
        return "memory://headrace"
    parts = urlsplit(valkey_url)
    if parts.scheme == "unix":
        return f"redis+socket://{parts.path}" + (f"?{parts.query}" if parts.query else "")
    if parts.scheme in ("redis", "rediss"):
        return valkey_url
    raise ImproperlyConfigured(f"{PREFIX}VALKEY_URL: unknown kind {parts.scheme!r} -> use unix:///path.sock, redis:// or rediss://")


def celery_transport_options(valkey_url: str) -> dict[str, Any]:
    """Short waits: a broker that is down must not hold up a request; the reconciler finds what was not sent."""
    if not valkey_url:
        return {}
    waits = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}
    return {"global_keyprefix": "headrace-", "socket_connect_timeout": 2, "socket_timeout": 30, "visibility_timeout": 3600, **waits}
