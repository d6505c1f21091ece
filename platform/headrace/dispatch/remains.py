"""What a run has on this machine: processes that carry its id, and its shared memory. "Gone" means none of either."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.supervisor.process import carrying, end_all

RUN_VARIABLE = "HEADRACE_RUN_ID"
ATTEMPT_VARIABLE = "HEADRACE_ATTEMPT"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Remains:
    """Falsy when the run is gone."""

    pids: tuple[int, ...]
    shared_memory: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.pids or self.shared_memory)


def processes(run: str, attempt: str = "") -> list[psutil.Process]:
    """Every living process whose environment carries the run's public id.

    With an attempt's public id: those of another attempt are left out, those that name none are the run's and stay in.
    """
    found = carrying(RUN_VARIABLE, run)
    return [p for p in found if _attempt_of(p) in (None, attempt)] if attempt else found


def shared_memory(run: str) -> list[Path]:
    """Its named segments: the contract says that their names begin with `hr-` and the run's id."""
    return sorted(SHARED_MEMORY.glob(f"hr-{run[:12]}*")) if SHARED_MEMORY.is_dir() else []


def find(run: str) -> Remains:
    return Remains(tuple(p.pid for p in processes(run)), tuple(str(p) for p in shared_memory(run)))


def gone(run: str) -> bool:
    """Whether nothing of the run is left on this machine."""
    return not find(run)


def remove(run: str, grace_s: float = 1.0) -> Remains:
    """Ends the run's processes and unlinks its shared memory. Returns what is left all the same."""
    end_all(lambda: processes(run), grace_s)
    for segment in shared_memory(run):
        segment.unlink(missing_ok=True)
    return find(run)


def remove_attempt(run: str, attempt: str, *, number: int, alone: bool, grace_s: float = 1.0) -> Remains:
    """As `remove`, for one attempt. `alone`: no newer attempt exists, so what names only the run is this attempt's as well."""
    _, left = end_all(lambda: processes(run, attempt) if alone else carrying(ATTEMPT_VARIABLE, attempt), grace_s)
    named = [f"hr-{run[:12]}-{attempt}-", f"hr-{run[:12]}-{number}-"]
    segments = [p for p in shared_memory(run) if alone or p.name.startswith(tuple(named))]
    for segment in segments:
        segment.unlink(missing_ok=True)
    return Remains(tuple(p.pid for p in left), tuple(str(p) for p in segments if p.exists()))


def _attempt_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(ATTEMPT_VARIABLE)
    except (psutil.Error, OSError):
        return ""  # gone while we looked
