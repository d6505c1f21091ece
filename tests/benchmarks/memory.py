"""Peak memory of a program and all its processes, from /proc: resident, and proportional where mappings are shared."""

from __future__ import annotations

import contextlib
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil

EVERY_S = 1.0


def proportional_mb(pid: int) -> int:
    """Memory of a process where a page that n share counts 1/n (PSS). Raises OSError when it is gone."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) // 1024
    return 0


def role(process: psutil.Process) -> str:
    """A pool is known by the name of its log; what stands first is the driver."""
    target = Path(f"/proc/{process.pid}/fd/1").readlink()
    return target.stem if target.suffix == ".log" else "driver"


@contextlib.contextmanager
def watched(command: list[str]) -> Iterator[dict[str, str]]:
    """Runs `command` to its end. Afterwards, by role: peak resident MB, the largest proportional MB seen once a second in brackets.

    Raises CalledProcessError where it failed.
    """
    resident: dict[str, int] = {}
    shared: dict[str, int] = {}
    done = threading.Event()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def look() -> None:
        while not done.wait(EVERY_S):
            with contextlib.suppress(psutil.NoSuchProcess):
                for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
                    with contextlib.suppress(psutil.NoSuchProcess, OSError):
                        name = role(one)
                        resident[name] = max(resident.get(name, 0), one.memory_info().rss // 2**20)
                        shared[name] = max(shared.get(name, 0), proportional_mb(one.pid))

    watcher = threading.Thread(target=look)
    watcher.start()
    found: dict[str, str] = {}
    try:
        yield found
        if process.wait():
            raise subprocess.CalledProcessError(process.returncode, command)
    finally:
        done.set()
        watcher.join()
        found.update({name: f"{peak} ({shared[name]})" for name, peak in sorted(resident.items())})
