"""What a run has on this machine: processes that carry its id, and its shared memory. "Gone" means none of either."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import psutil

from headrace.supervisor.process import carrying, end

RUN_VARIABLE = "HEADRACE_RUN_ID"
SHARED_MEMORY = Path("/dev/shm")


@dataclass(frozen=True)
class Remains:
    """Falsy when the run is gone."""

    pids: tuple[int, ...]
    shared_memory: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.pids or self.shared_memory)


def processes(run: str) -> list[psutil.Process]:
    """Every living process whose environment carries the run's public id."""
    return carrying(RUN_VARIABLE, run)


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
    end(processes(run), grace_s)
    for segment in shared_memory(run):
        segment.unlink(missing_ok=True)
    return find(run)
