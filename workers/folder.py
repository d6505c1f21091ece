"""The attempt's folder: claimed, written whole, read back."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
from pathlib import Path
from typing import Any

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, EnvironmentMissing
from workers.spool import read_spool

LEAST_FREE_BYTES = 200 * 1024 * 1024


def claim(out: Path, config: RunConfig, *, resume: bool) -> None:
    """Makes the attempt's folder. Raises ConfigError where another run lies there, EnvironmentMissing where it cannot be written."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        if any((out / "spool").glob("*.spool")) and not resume:
            raise ConfigError("a run is there already", field="--out", value=str(out), cure="choose another folder, or `resume` it")
        with tempfile.TemporaryFile(dir=out):
            write_json(out / "config.json", config.as_json())
        free = shutil.disk_usage(out).free
    except OSError as error:
        raise EnvironmentMissing(
            f"the folder cannot be written: {error.strerror}", field="--out", value=str(out), cure="choose a writable folder"
        ) from error
    if free < LEAST_FREE_BYTES:
        raise EnvironmentMissing("too little disk space", field="--out", value=f"{free // 2**20} MiB free", cure="free at least 200 MiB")


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
