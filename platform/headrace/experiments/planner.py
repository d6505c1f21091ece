"""The engine's planner, asked as a process of its own: `python -m workers calibrate`, `forecast`, `lesson`. One at a time in this
process."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.supervisor.layout import write_private
from workers.contract.config import RunConfig
from workers.contract.errors import HeadraceError

CALIBRATE_S = 60.0
FORECAST_S = 30.0
WAIT_S = 10.0
LONGEST_WORDS = 300
# What a process needs to find its interpreter and its files. Everything else, every secret with it, stays here.
KEPT = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "HOME", "TMPDIR", "TEMP", "TMP", "LANG", "LC_ALL", "SYSTEMROOT")
_one = threading.Lock()


class PlannerFailed(HeadraceError):
    """The planner said no, in its own words."""


class PlannerBusy(HeadraceError):
    """Another question is being answered."""


def calibrate(folder: Path, target: Path, *, wait_s: float = WAIT_S) -> None:
    """What the run in `folder` measured, as a scenario at `target`: written aside, then renamed. Raises PlannerFailed, PlannerBusy."""
    aside = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        _ask(["calibrate", str(folder), "--out", str(aside), "--name", "measured"], CALIBRATE_S, wait_s)
        try:
            aside.replace(target)
        except OSError as fault:
            raise PlannerFailed("the calibration could not be kept", field="run", cure=f"see to the folder ({fault.strerror})") from None
    finally:
        aside.unlink(missing_ok=True)


def forecast(config: RunConfig, scenario: Path, *, wait_s: float = WAIT_S) -> dict[str, Any]:
    """What the config comes to at this scenario. Raises PlannerFailed, PlannerBusy."""
    with tempfile.TemporaryDirectory(prefix="headrace-forecast-") as folder:
        spec = Path(folder) / "config.json"
        write_private(spec, json.dumps(config.as_json(), allow_nan=False))
        return _told(_ask(["forecast", str(spec), "--scenario", str(scenario), "--json"], FORECAST_S, wait_s))


def lesson(given: dict[str, float]) -> dict[str, Any]:
    """The teaching page's simulation of one position of its sliders. Raises PlannerFailed, PlannerBusy."""
    arguments = [part for name, value in given.items() for part in (f"--{name.replace('_', '-')}", f"{value:g}")]
    return _told(_ask(["lesson", *arguments], FORECAST_S, WAIT_S))


def _told(text: str) -> dict[str, Any]:
    try:
        told = json.loads(text)
    except ValueError:
        told = None
    if not isinstance(told, dict):
        raise PlannerFailed("the planner's answer could not be read", field="forecast", cure="see that web and engine are of one version")
    return told


def environment() -> dict[str, str]:
    """Of the planner's processes."""
    return {name: os.environ[name] for name in KEPT if name in os.environ}


def _ask(arguments: Sequence[str], timeout_s: float, wait_s: float) -> str:
    if not _one.acquire(timeout=wait_s):
        raise PlannerBusy("another forecast is being made", field="forecast", cure="ask again in a moment", retryable=True)
    try:
        argv = [sys.executable, "-m", "workers", *arguments]
        done = subprocess.run(
            argv,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout_s,
            check=False,
            env=environment(),
        )
    except subprocess.TimeoutExpired:
        raise PlannerFailed(f"the planner took longer than {timeout_s:g} s", field="forecast", cure="try a smaller batch") from None
    except OSError as fault:
        raise PlannerFailed(f"the planner could not be started: {fault.strerror}", field="forecast", cure="ask again later") from None
    finally:
        _one.release()
    if done.returncode != 0:
        line = next((text for text in reversed(done.stderr.splitlines()) if text.strip()), "no reason given").removeprefix("error: ")
        message, _, cure = line.partition(" -> ")
        raise PlannerFailed(message[:LONGEST_WORDS], field="forecast", cure=cure[:LONGEST_WORDS] or "choose another config")
    return done.stdout
