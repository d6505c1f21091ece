"""The pidfile: one supervisor per data folder, and what a killed one left behind is found and cleared."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import psutil

from headrace.supervisor.layout import Layout, write_private
from headrace.supervisor.process import MARK, carrying, end_all, is_same, started_at
from workers.contract.errors import EnvironmentMissing


def write(layout: Layout, groups: list[tuple[int, float]]) -> None:
    """Called whenever a child starts. A pid alone proves nothing, so every pid carries its start time."""
    own = {"pid": os.getpid(), "start": started_at(os.getpid()), "port": layout.port, "groups": groups}
    write_private(layout.pidfile, json.dumps(own))


def read(path: Path) -> dict[str, Any] | None:
    """None without a file, and for one that was torn."""
    try:
        found = json.loads(path.read_text())
        return {"pid": int(found["pid"]), "start": float(found["start"]), "port": int(found["port"]), "groups": list(found["groups"])}
    except (OSError, ValueError, KeyError, TypeError):
        return None


def running(layout: Layout) -> dict[str, Any] | None:
    """The supervisor that owns this data folder now, if it lives."""
    found = read(layout.pidfile)
    return found if found and is_same(found["pid"], found["start"]) else None


def claim(layout: Layout) -> int:
    """Refuses a second supervisor; ends and removes what a killed one left. Returns how many processes were ended."""
    other = running(layout)
    if other and other["pid"] != os.getpid():
        raise EnvironmentMissing(
            f"Headrace already runs on this data folder as process {other['pid']} at http://127.0.0.1:{other['port']}",
            field="--data-dir",
            value=str(layout.data),
            cure="use that one, stop it, or give another --data-dir and --port",
        )
    ended, survivors = end_all(lambda: leftovers(layout), grace_s=2.0)
    if survivors:
        raise EnvironmentMissing(
            f"processes of an earlier start cannot be ended: {', '.join(str(p.pid) for p in survivors)}",
            cure="end them by hand, then start again",
        )
    layout.clear()
    return ended


def leftovers(layout: Layout) -> list[psutil.Process]:
    """Processes of this data folder: by their mark, by the recorded sessions, by files they hold in the runtime folder.

    The mark alone does not do: some of Ray's helpers overwrite their environment with their title.
    """
    found = {process.pid: process for process in carrying(MARK, layout.mark)}
    recorded = read(layout.pidfile)
    sessions = {pid for pid, start in recorded["groups"] if _session_is_ours(pid, start)} if recorded else set()
    prefix = str(layout.runtime) + "/"
    for process in psutil.process_iter():
        if process.pid in found or process.pid == os.getpid():
            continue
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                continue
            in_session = bool(sessions) and os.getsid(process.pid) in sessions
            if in_session or prefix in " ".join(process.cmdline()) or any(f.path.startswith(prefix) for f in process.open_files()):
                found[process.pid] = process
        except (psutil.Error, OSError):
            continue  # not ours to read, or gone while we looked
    return list(found.values())


def _session_is_ours(leader: int, start: float) -> bool:
    """A session number is safe to use while its leader is the recorded process, or is gone and its pid not used again."""
    now = started_at(leader)
    return now is None or abs(now - start) < 0.05
