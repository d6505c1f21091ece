"""What must be true before anything is started. Each failure is one sentence with its cure."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import psutil

from headrace.supervisor.layout import port_is_free
from workers.contract import failpoints
from workers.contract.errors import EnvironmentMissing

NEEDED_BYTES = 1_000_000_000
OLDEST_PYTHON = (3, 11)


def check_python(version: tuple[int, int] | None = None) -> None:
    version = version or (sys.version_info.major, sys.version_info.minor)
    if version < OLDEST_PYTHON:
        raise EnvironmentMissing(
            "Headrace needs Python 3.11 or newer",
            field="python",
            value=".".join(map(str, version)),
            cure="install a newer Python and run deploy/demo with it first on PATH",
        )


def check_folder(data: Path) -> None:
    """Makes the data folder and proves by a real write that it takes files."""
    try:
        data.mkdir(parents=True, exist_ok=True, mode=0o700)
        handle, name = tempfile.mkstemp(prefix=".write-test-", dir=data)
        try:
            os.write(handle, b"x" * 4096)
            os.fsync(handle)
        finally:
            os.close(handle)
            os.unlink(name)
    except OSError as error:
        cure = "free some space" if error.errno == 28 else "choose a folder you may write to"
        raise EnvironmentMissing(
            f"the data folder cannot be written ({error.strerror})",
            field="--data-dir",
            value=str(data),
            cure=f"{cure}, or give another --data-dir",
        ) from error


def check_space(data: Path, needed: int = NEEDED_BYTES) -> None:
    free = shutil.disk_usage(data).free
    if free < needed:
        raise EnvironmentMissing(
            f"the disk of the data folder has {free / 1e9:.2f} GB free and {needed / 1e9:.1f} GB are needed",
            field="--data-dir",
            value=str(data),
            cure="free some space, or give a --data-dir on another disk",
        )


def check_port(port: int) -> None:
    if not 1024 <= port <= 65535:
        raise EnvironmentMissing("the port must lie between 1024 and 65535", field="--port", value=port, cure="give another --port")
    if port_is_free(port):
        return
    raise EnvironmentMissing(
        f"port {port} is in use by {holder_of(port)}", field="--port", value=port, cure=f"stop it, or give --port {port + 1}"
    )


def holder_of(port: int) -> str:
    """The process that listens on `port`, in words; another user's may stay unknown."""
    try:
        for connection in psutil.net_connections(kind="tcp"):
            if connection.status == psutil.CONN_LISTEN and connection.laddr.port == port and connection.pid:
                process = psutil.Process(connection.pid)
                return f"process {process.pid} ({process.name()})"
    except psutil.Error:
        return "another process"  # macOS shows other processes' ports to root alone
    return "another process"


def check_failpoints() -> None:
    """They make processes kill themselves: right for a test of the parts, never for a server that people use."""
    armed = os.environ.get(failpoints.VARIABLE)
    if armed:
        raise EnvironmentMissing("failpoints are armed", field=failpoints.VARIABLE, value=armed, cure="unset it; it is for tests alone")


def check_machine(data: Path) -> None:
    """Everything but the port, which a killed earlier start may still hold until it is cleared."""
    check_python()
    check_failpoints()
    check_folder(data)
    check_space(data)
