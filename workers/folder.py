"""The attempt's folder: claimed, written whole, read back."""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import tempfile
import threading
from pathlib import Path
from typing import IO, Any

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, EnvironmentMissing
from workers.spool import read_spool

LEAST_FREE_BYTES = 200 * 1024 * 1024


def claim(out: Path, config: RunConfig, *, resume: bool) -> IO[str]:
    """Makes the attempt's folder. Who holds the result holds the folder, until the process ends, however it ends.

    Raises ConfigError where another run lies there or is at work, EnvironmentMissing where it cannot be written.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any((out / "spool").glob("*.spool")) and not resume:
            raise ConfigError("a run is there already", field="--out", value=str(out), cure="choose another folder, or `resume` it")
        held = _hold(out)
        with tempfile.TemporaryFile(dir=out):
            write_json(out / "config.json", config.as_json())
        free = shutil.disk_usage(out).free
    except OSError as error:
        raise EnvironmentMissing(
            f"the folder cannot be written: {error.strerror}", field="--out", value=str(out), cure="choose a writable folder"
        ) from error
    if free < LEAST_FREE_BYTES:
        raise EnvironmentMissing("too little disk space", field="--out", value=f"{free // 2**20} MiB free", cure="free at least 200 MiB")
    return held


def _hold(out: Path) -> IO[str]:
    """Raises ConfigError while another process is at work there, be it one that stands still."""
    file = (out / ".lock").open("a+", encoding="utf-8")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.seek(0)
        pid = file.read().strip() or "unknown"
        file.close()
        cure = f"wait until process {pid} has ended, or end it"
        raise ConfigError("a run is at work in this folder", field="--out", value=str(out), cure=cure) from error
    file.truncate(0)
    file.write(f"{os.getpid()}\n")
    file.flush()
    return file


def write_json(path: Path, data: Any) -> None:
    """Whole or not at all."""
    aside = path.with_name(f".{path.name}.{threading.get_ident()}")
    aside.write_text(json.dumps(data, indent=1))
    aside.rename(path)


def last_trained(out: Path) -> int:
    """Samples trained according to the last state that the spool holds, those among them that resumes before this one undid."""
    trained = 0
    for event, _bad in read_spool(out / "spool"):
        if event is not None and event["kind"] == "state":
            samples = event["data"]["samples"]
            trained = samples["trained"] + samples.get("lost_by_reason", {}).get("rolled_back", 0)
    return trained


def log_tail(folder: Path, lines: int = 40) -> list[str]:
    """The last lines of every process' log, for the page that explains a failure."""
    tail: list[str] = []
    for path in sorted(folder.glob("*.log")):
        tail += [f"{path.stem}: {line}" for line in path.read_text(errors="replace").splitlines()[-lines:]]
    return tail[-2 * lines :]
