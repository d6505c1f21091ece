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


@contextmanager
def server(folder: Path, *, durable: bool = False) -> Iterator[str]:
    """Its URL, on a unix socket. `durable`: as in production, it waits for the disk. PostgreSQL refuses to run as root: then another
    user runs it."""
    user = "postgres" if os.getuid() == 0 else None
    with tempfile.TemporaryDirectory(prefix="hr-pg-", dir="/tmp") as name:  # a socket's path must be short
        home = Path(name)
        if user:
            shutil.chown(home, user)
        made = [str(folder / "initdb"), "-D", str(home / "d"), "-A", "trust", "-U", "postgres"]
        subprocess.run(made, user=user, cwd="/", check=True, capture_output=True)
        argv = [str(folder / "postgres"), "-D", str(home / "d"), "-k", name, "-c", "listen_addresses="]
        with subprocess.Popen(
            [*argv, *([] if durable else ["-c", "fsync=off"])], user=user, cwd="/", stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stderr is not None
            for line in process.stderr:
                if "ready to accept connections" in line:
                    break
            try:
                yield f"postgresql://postgres@/postgres?host={name}"
            finally:
                process.send_signal(signal.SIGINT)  # it ends without waiting for whoever keeps a connection
                process.stderr.read()
                process.wait(timeout=30)
