"""The parts where databases differ, once more on PostgreSQL: locks, constraints, ingest, migrations from zero."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.platform_tests.postgres_rig import programs, server

HERE = Path(__file__).parent
FILES = ("test_database.py", "test_services.py", "test_lifecycle.py", "test_bootstrap.py", "test_telemetry_ingest.py", "test_query.py")


@pytest.fixture
def postgres() -> Iterator[str]:
    folder = programs()
    if folder is None:
        pytest.skip("no PostgreSQL here: install it (Debian: apt-get install postgresql) to run these tests")
    with server(folder) as url:
        yield url


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
