"""A PostgreSQL server of our own, for tests and benchmarks."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def programs() -> Path | None:
    """The folder of initdb and postgres: on PATH, or where Debian puts it."""
    found = shutil.which("initdb")
    folders = [Path(found).resolve().parent] if found else sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    return next((folder for folder in folders if (folder / "initdb").exists() and (folder / "postgres").exists()), None)


class Postgres:
    """One cluster in a folder of its own, on a unix socket there. PostgreSQL refuses to run as root: then another user runs it."""

    def __init__(self, folder: Path, home: Path, *, durable: bool) -> None:
        self._user = "postgres" if os.getuid() == 0 else None
        if self._user:
            shutil.chown(home, self._user)
        made = [str(folder / "initdb"), "-D", str(home / "d"), "-A", "trust", "-U", "postgres"]
        subprocess.run(made, user=self._user, cwd="/", check=True, capture_output=True)
        self._argv = [str(folder / "postgres"), "-D", str(home / "d"), "-k", str(home), "-c", "listen_addresses="]
        self._argv += [] if durable else ["-c", "fsync=off"]
        self._process: subprocess.Popen[str] | None = None
        self.url = f"postgresql://postgres@/postgres?host={home}"

    def start(self) -> None:
        """Returns when it takes connections; after a crash it has recovered by then."""
        self._process = subprocess.Popen(self._argv, user=self._user, cwd="/", stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if "ready to accept connections" in line:
                return

    def crash(self) -> None:
        """As `pg_ctl stop -m immediate`: nothing is written any more, and the next start recovers."""
        self.stop(signal.SIGQUIT)

    def stop(self, number: int = signal.SIGINT) -> None:
        """By default it ends without waiting for whoever keeps a connection."""
        if self._process is None:
            return
        self._process.send_signal(number)
        assert self._process.stderr is not None
        self._process.stderr.read()
        self._process.wait(timeout=30)
        self._process = None


@contextmanager
def cluster(folder: Path, *, durable: bool = False) -> Iterator[Postgres]:
    """A running cluster. `durable`: as in production, it waits for the disk."""
    with tempfile.TemporaryDirectory(prefix="hr-pg-", dir="/tmp") as name:  # a socket's path must be short
        made = Postgres(folder, Path(name), durable=durable)
        made.start()
        try:
            yield made
        finally:
            made.stop()


@contextmanager
def server(folder: Path, *, durable: bool = False) -> Iterator[str]:
    """The URL of a running cluster."""
    with cluster(folder, durable=durable) as made:
        yield made.url
