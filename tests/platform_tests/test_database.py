"""The database under Django: library version, locking, durability, migrations."""

import os
import sqlite3
import subprocess
import sys
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection

from headrace.sqlite import MINIMUM_VERSION

pytestmark = pytest.mark.django_db

sqlite_only = pytest.mark.skipif("connection.vendor != 'sqlite'", reason="another database was chosen by HEADRACE_TEST_DATABASE_URL")


@sqlite_only
def test_sqlite_under_django_is_free_of_the_wal_reset_bug() -> None:
    with connection.cursor() as cursor:
        version = cursor.execute("select sqlite_version()").fetchone()[0]
    assert tuple(map(int, version.split("."))) >= MINIMUM_VERSION


@sqlite_only
def test_the_whole_process_uses_one_sqlite() -> None:
    import sqlite3

    from django.db.backends.sqlite3.base import Database

    assert sqlite3.sqlite_version == Database.sqlite_version


@sqlite_only
def test_wal_full_and_immediate() -> None:
    with connection.cursor() as cursor:
        assert cursor.execute("pragma journal_mode").fetchone()[0] == "wal"
        assert cursor.execute("pragma synchronous").fetchone()[0] == 2
        assert cursor.execute("pragma busy_timeout").fetchone()[0] == 20_000
        assert cursor.execute("pragma foreign_keys").fetchone()[0] == 1
    assert connection.transaction_mode == "IMMEDIATE"


def test_an_old_sqlite_is_refused() -> None:
    """In a process of its own, where the wheel is hidden and the minimum is set above whatever Python carries."""
    code = (
        "import importlib.util, headrace.sqlite\n"
        "find = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, package=None: None if name == 'pysqlite3' else find(name, package)\n"
        "headrace.sqlite.MINIMUM_VERSION = (99, 0, 0)\n"
        "import headrace.sqlite.base\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode != 0
    assert "WAL-reset" in done.stderr
    assert "pip install" in done.stderr


def test_models_and_migrations_agree() -> None:
    told = StringIO()
    call_command("makemigrations", "--check", "--dry-run", stdout=told)  # ends with SystemExit where a migration is missing
    assert "No changes detected" in told.getvalue()


WRITERS, TURNS = 16, 1000


@sqlite_only
def test_many_processes_write_and_none_is_locked_out(tmp_path: Path) -> None:
    """Each reads, then writes in the same transaction: the pattern that a deferred transaction fails at once under load."""
    env = {**os.environ, "HEADRACE_DATA_DIR": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "django", "migrate", "teams", "-v0"], env=env, check=True, timeout=120)
    code = (
        "import sys, django; django.setup()\n"
        "from django.db import transaction\n"
        "from headrace.teams.models import Team\n"
        f"for turn in range({TURNS}):\n"
        "    with transaction.atomic():\n"
        "        seen = Team.objects.count()\n"
        "        Team.objects.create(name=f'{seen}', slug=f'{sys.argv[1]}-{turn}')\n"
    )
    writers = [subprocess.Popen([sys.executable, "-c", code, str(n)], env=env, stderr=subprocess.PIPE, text=True) for n in range(WRITERS)]
    for writer in writers:
        _, said = writer.communicate(timeout=600)
        assert writer.returncode == 0, said
    base = sqlite3.connect(tmp_path / "headrace.sqlite3")
    assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    assert base.execute("select count(*), count(distinct name) from teams_team").fetchone() == (WRITERS * TURNS,) * 2
    base.close()
