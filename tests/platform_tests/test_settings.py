"""What the settings read from the environment, what they refuse, and what the logs keep to themselves."""

from __future__ import annotations

import io
import json
import logging
import os
import secrets
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.test import Client

from headrace import environment
from headrace.logs import BLANK, JsonFormatter, redact

KEY = secrets.token_urlsafe(64)


def settings_with(tmp_path: Path, expression: str = "1", **variables: str) -> subprocess.CompletedProcess[str]:
    """Import headrace.settings in a process that has only these HEADRACE_ variables, and print an expression."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    env |= {"HEADRACE_DATA_DIR": str(tmp_path)} | {f"HEADRACE_{name}": value for name, value in variables.items()}
    code = f"import json; from headrace import settings as s; print(json.dumps({expression}, default=str))"
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=60)


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({}, "HEADRACE_SECRET_KEY: missing"),
        ({"SECRET_KEY": "short"}, "HEADRACE_SECRET_KEY: too short"),
        ({"SECRET_KEY": "a" * 80}, "guessable"),
        ({"SECRET_KEY": f"django-insecure-{KEY}"}, "guessable"),
        ({"SECRET_KEY": KEY, "SECRET_KEY_FILE": "/etc/hostname"}, "both set"),
        ({"SECRET_KEY_FILE": "/nowhere/key"}, "cannot read /nowhere/key"),
        ({"SECRET_KEY": KEY, "ALLOWED_HOSTS": "*"}, "HEADRACE_ALLOWED_HOSTS"),
        ({"SECRET_KEY": KEY, "BASE_URL": "nonsense"}, "HEADRACE_BASE_URL"),
        ({"SECRET_KEY": KEY, "DATABASE_URL": "mysql://x/y"}, "HEADRACE_DATABASE_URL"),
        ({"SECRET_KEY": KEY, "VALKEY_URL": "amqp://x"}, "HEADRACE_VALKEY_URL"),
        ({"SECRET_KEY": KEY, "PORT": "many"}, "HEADRACE_PORT"),
        ({"SECRET_KEY": KEY, "DEBUG": "perhaps"}, "HEADRACE_DEBUG"),
        ({"SECRET_KEY": KEY, "DEBUG": "1", "BASE_URL": "https://h.example.org"}, "HEADRACE_DEBUG"),
    ],
)
def test_refused_at_start(variables: dict[str, str], says: str, tmp_path: Path) -> None:
    done = settings_with(tmp_path, **variables)
    assert done.returncode != 0
    last = done.stderr.strip().splitlines()[-1]
    assert "ImproperlyConfigured" in last
    assert says in last
    assert KEY not in done.stderr.replace(f"django-insecure-{KEY}", "")


def test_https_turns_on_what_belongs_to_it(tmp_path: Path) -> None:
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    names = [
        "SESSION_COOKIE_SECURE",
        "CSRF_COOKIE_SECURE",
        "SECURE_SSL_REDIRECT",
        "SESSION_COOKIE_NAME",
        "SECURE_HSTS_SECONDS",
        "SECRET_KEY",
    ]
    expression = f"[getattr(s, n) for n in {names}]"
    done = settings_with(tmp_path, expression, SECRET_KEY_FILE=str(key_file), BASE_URL="https://h.example.org")
    assert json.loads(done.stdout) == [True, True, True, "__Host-headrace-session", 31_536_000, KEY]


def test_deploy_check_is_clean(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    env = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
    env |= {"HEADRACE_DATA_DIR": str(tmp_path), "HEADRACE_SECRET_KEY": KEY, "HEADRACE_BASE_URL": "https://h.example.org"}
    env |= {"HEADRACE_VALKEY_URL": "unix:///run/valkey.sock", "DJANGO_SETTINGS_MODULE": "headrace.settings"}
    command = [sys.executable, "-m", "django", "check", "--deploy", "--fail-level", "WARNING", "--database", "default"]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    env |= {"HEADRACE_BASE_URL": "http://h.example.org"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "plain http on h.example.org" in done.stderr
    assert "HINT" in done.stderr


@pytest.mark.parametrize(
    ("url", "wanted"),
    [
        ("sqlite:////var/lib/h.sqlite3", {"ENGINE": "headrace.sqlite", "NAME": "/var/lib/h.sqlite3"}),
        (
            "postgres://u%40x:p%2Fw@db.example.org:5433/head?sslmode=require",
            {
                "NAME": "head",
                "USER": "u@x",
                "PASSWORD": "p/w",
                "HOST": "db.example.org",
                "PORT": "5433",
                "OPTIONS": {"sslmode": "require", "pool": environment.POOL},
            },
        ),
        (
            "postgresql:///head?host=/run/postgresql",
            {"NAME": "head", "HOST": "", "OPTIONS": {"host": "/run/postgresql", "pool": environment.POOL}},
        ),
    ],
)
def test_database_urls(url: str, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HEADRACE_DATABASE_URL", url)
    found = environment.database(tmp_path)
    assert {name: found[name] for name in wanted} == wanted


def test_sqlite_lives_in_the_data_folder_by_default(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("HEADRACE_DATABASE_URL", raising=False)
    found = environment.database(tmp_path)
    assert found["NAME"] == str(tmp_path / "headrace.sqlite3")
    assert found["OPTIONS"]["transaction_mode"] == "IMMEDIATE"


@pytest.mark.parametrize(
    ("url", "broker"),
    [
        ("unix:///run/v.sock", "redis+socket:///run/v.sock"),
        ("unix:///run/v.sock?virtual_host=2", "redis+socket:///run/v.sock?virtual_host=2"),
        ("redis://:pw@h:6379/1", "redis://:pw@h:6379/1"),
        ("", "memory://headrace"),
    ],
)
def test_valkey_urls(url: str, broker: str) -> None:
    assert environment.celery_broker(url) == broker
    layer = environment.channel_layer(url)
    assert ("InMemory" in layer["BACKEND"]) == (not url)
    with pytest.raises(ImproperlyConfigured):
        environment.celery_broker("http://h")


def test_sockets_and_forms_are_taken_from_this_server_only() -> None:
    assert environment.trusted_origins("https://h.example.org", ["h.example.org"], 8700) == ["https://h.example.org"]
    assert "http://127.0.0.1:8700" in environment.trusted_origins("http://localhost:8700", ["localhost"], 8700)
    assert environment.websocket_origins("https://h.example.org") == ["wss://h.example.org"]


SECRETS = [
    "hrw_abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG",
    "Authorization: Bearer hrw_abcdefghijklmnopqrstuvwxyz0123456789ABCDEFG",
    "authorization=Token 0123456789abcdef0123",
    "postgres://user:Pa55-canary@db/head",
    '{"password": "Pa55-canary"}',
    "POST api_key=Pa55-canary&x=1",
    "GET /setup/Pa55-canary-Pa55-canary/ 200",
    "Set-Cookie: headrace-session=Pa55-canary",
]


@pytest.mark.parametrize("piece", ["a", "a.", "_", "token", "token ", "token=", "a://", "hra_", "bearer ", "secret: ", "/setup/"])
def test_long_lines_are_looked_through_quickly(piece: str) -> None:
    """Whatever a stranger asks for is logged: a long path must not hold the server up."""
    line = piece * (100_000 // len(piece))
    began = time.process_time()
    redact(line)
    assert time.process_time() - began < 1.0


@pytest.mark.parametrize("line", SECRETS)
def test_logs_keep_secrets(line: str) -> None:
    for text in (redact(line), _logged(line), _logged("%s", line)):
        assert BLANK in text
        for canary in ("Pa55-canary", "abcdefghijklmnop", "0123456789abcdef"):
            assert canary not in text


def test_log_lines_are_json_and_keep_the_rest() -> None:
    line = json.loads(_logged("run %s moved\nin 3 steps, token by token", "abc", extra={"run": "abc"}))
    assert line["message"] == "run abc moved\nin 3 steps, token by token"
    assert (line["level"], line["run"]) == ("warning", "abc")


def test_an_exception_is_logged_without_its_secrets() -> None:
    try:
        raise ValueError("cannot reach redis://:Pa55-canary@h")
    except ValueError:
        text = _logged("failed", exc_info=True)
    assert "Pa55-canary" not in text
    assert "ValueError" in json.loads(text)["error"]


def _logged(message: str, *args: object, **kwargs: Any) -> str:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonFormatter())
    logger = logging.Logger("headrace.test")
    logger.addHandler(handler)
    logger.warning(message, *args, **kwargs)
    return stream.getvalue()


@pytest.mark.django_db
def test_every_answer_carries_the_headers(client: Client) -> None:
    for path in ("/admin/login/", "/admin/", "/no-such-page/"):
        answer = client.get(path)
        policy = {part.split()[0]: part.split()[1:] for part in answer.headers["Content-Security-Policy"].split(";")}
        assert policy["default-src"] == policy["script-src"] == policy["style-src"] == policy["form-action"] == ["'self'"]
        assert policy["object-src"] == policy["base-uri"] == policy["frame-ancestors"] == ["'none'"]
        assert policy["img-src"] == ["'self'", "data:", "blob:"]
        assert policy["worker-src"] == ["'self'", "blob:"]
        assert "unsafe" not in answer.headers["Content-Security-Policy"]
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["X-Frame-Options"] == "DENY"
        assert answer.headers["Referrer-Policy"] == "same-origin"
        assert answer.headers["Cross-Origin-Opener-Policy"] == "same-origin"
        assert "camera=()" in answer.headers["Permissions-Policy"]


def test_passwords_are_argon2() -> None:
    from headrace import settings

    assert settings.PASSWORD_HASHERS[0].endswith("Argon2PasswordHasher")
