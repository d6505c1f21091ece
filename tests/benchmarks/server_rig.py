"""What benchmarks of the web side share: a real server in its own process, on a database of its own, on SQLite or PostgreSQL."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]


@dataclass
class Served:
    """A running server and the rows that `tests.platform_tests.telemetry_rig.new_rig` made in it."""

    port: int
    folder: Path
    database: str
    process: subprocess.Popen[bytes]
    rig: Any

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def served(database: str = "sqlite", *, valkey: bool = False) -> Iterator[Served]:
    """uvicorn as `headrace up` starts it. `database`: sqlite or postgres. `valkey`: with the channel layer that several processes share."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="headrace-bench-")))
        port = free_port()
        _set_environment(folder, port)
        if database == "postgres":
            from tests.platform_tests.postgres_rig import programs, server

            found = programs()
            if found is None:
                raise SystemExit("no PostgreSQL here -> install it (Debian: apt-get install postgresql)")
            os.environ["HEADRACE_DATABASE_URL"] = stack.enter_context(server(found, durable=True))
        if valkey:
            os.environ["HEADRACE_VALKEY_URL"] = stack.enter_context(_valkey(folder))
        rig = _prepare()
        command = [sys.executable, "-m", "uvicorn", "headrace.asgi:application", "--host", "127.0.0.1", "--port", str(port)]
        process = subprocess.Popen([*command, "--log-level", "warning", "--no-access-log"], cwd=ROOT)
        try:
            _wait_until_live(port, process)
            yield Served(port, folder, database, process, rig)
        finally:
            process.terminate()
            process.wait(20)
            from django.db import connections

            connections.close_all()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _set_environment(folder: Path, port: int) -> None:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        del os.environ[name]
    os.environ["DJANGO_SETTINGS_MODULE"] = "headrace.settings"
    os.environ["HEADRACE_DATA_DIR"] = str(folder)
    os.environ["HEADRACE_PORT"] = str(port)
    os.environ["HEADRACE_SECRET_KEY"] = "only-for-a-benchmark-" + "0123456789abcdefghijklmnopqrstuvwxyz" * 2
    os.environ["HEADRACE_LOG_LEVEL"] = "WARNING"
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'platform'}"


@contextmanager
def _valkey(folder: Path) -> Iterator[str]:
    from headrace.supervisor.parts import valkey_program

    path = folder / "valkey.sock"
    argv = [str(valkey_program()), "--port", "0", "--unixsocket", str(path), "--save", ""]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    try:
        for _ in range(100):
            if path.exists():
                break
            time.sleep(0.05)
        yield f"unix://{path}"
    finally:
        process.terminate()
        process.wait(10)


def _prepare() -> Any:
    """Database from zero, one run with a token."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections

    from tests.platform_tests.telemetry_rig import new_rig

    call_command("migrate", verbosity=0)
    rig = new_rig()
    connections.close_all()
    return rig


def _wait_until_live(port: int, process: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if process.poll() is not None:
            raise SystemExit(f"the server ended with {process.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the server did not come up in 30 s")
