"""The parts where databases differ, once more on PostgreSQL: locks, constraints, ingest, migrations from zero."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

HERE = Path(__file__).parent
FILES = ("test_database.py", "test_services.py", "test_lifecycle.py", "test_bootstrap.py", "test_telemetry_ingest.py", "test_query.py")


def programs() -> Path | None:
    """The folder of initdb and postgres: on PATH, or where Debian puts it."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


@pytest.fixture
def postgres() -> Iterator[str]:
    """The URL of a server of our own on a unix socket. PostgreSQL refuses to run as root: then another user runs it."""
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL here: install it (Debian: apt-get install postgresql) to run these tests")
    user = "postgres" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="hr-pg-", dir="/tmp") as name:  # a socket's path must be short
        home = Path(name)
        if user:
            shutil.chown(home, user)
        subprocess.run(
            [folder / "initdb", "-D", home / "d", "-A", "trust", "-U", "postgres"], user=user, cwd="/", check=True, capture_output=True
        )
        argv = [str(folder / "postgres"), "-D", str(home / "d"), "-k", name, "-c", "listen_addresses=", "-c", "fsync=off"]
        with subprocess.Popen(argv, user=user, cwd="/", stderr=subprocess.PIPE, text=True) as server:
            assert server.stderr is not None
            for line in server.stderr:
                if "ready to accept connections" in line:
                    break
            yield f"postgresql://postgres@/postgres?host={name}"
            server.terminate()
            server.stderr.read()
            server.wait(timeout=30)


@pytest.mark.skipif("HEADRACE_TEST_DATABASE_URL" in os.environ, reason="this already is the run on another database")
def test_the_same_tests_on_postgres(postgres: str) -> None:
    argv = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0", *[str(HERE / name) for name in FILES]]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "DJANGO_"))}
    env["HEADRACE_TEST_DATABASE_URL"] = postgres
    done = subprocess.run(argv, env=env, cwd=HERE.parent.parent, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:]
    of_sqlite = done.stdout.count("another database was chosen")
    assert of_sqlite >= 3, "it did not run on PostgreSQL"
    assert f" passed, {of_sqlite} skipped" in done.stdout, "only tests of SQLite itself may be skipped"
