"""Processes as the supervisor sees them: how one is born, recognised again, and ended with all it started."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
MARK = "HEADRACE_SUPERVISED"  # in the environment of every process a supervisor starts, and of all their children


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def become_subreaper() -> None:
    """Called once by the supervisor: orphans of its children become its own children, so that it can see and end them."""
    global _reaping
    _prctl(PR_SET_CHILD_SUBREAPER, 1)
    _reaping = True


def _die_with_parent() -> None:
    """Runs in the new child before exec: a supervisor killed outright takes its children with it."""
    _prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def started_at(pid: int) -> float | None:
    """When process `pid` started, or None without one. Together with the pid it names a process for good."""
    try:
        return float(psutil.Process(pid).create_time())
    except psutil.Error:
        return None


def is_same(pid: int, start: float) -> bool:
    """Whether `pid` still is the process that started at `start` (pids are used again)."""
    now = started_at(pid)
    return now is not None and abs(now - start) < 0.05 and is_alive(pid)


def is_alive(pid: int) -> bool:
    """A zombie holds nothing any more: it counts as gone."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def carrying(name: str, value: str) -> list[psutil.Process]:
    """Every living process of ours whose environment says `name=value`, this one left out."""
    found = []
    for process in psutil.process_iter():
        if process.pid == os.getpid():
            continue
        try:
            if process.environ().get(name) == value and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue  # not ours to read, or gone while we looked
    return found


def end(processes: Iterable[psutil.Process], grace_s: float) -> list[psutil.Process]:
    """SIGTERM, up to `grace_s` to comply, then SIGKILL. Returns those that survived even that."""
    waiting = [p for p in processes if p.pid != os.getpid()]
    if grace_s > 0:
        _signal(waiting, signal.SIGTERM)
        waiting = _wait(waiting, grace_s)
    _signal(waiting, signal.SIGKILL)
    return _wait(waiting, 1.0)


def end_all(find: Callable[[], Iterable[psutil.Process]], grace_s: float, patience_s: float = 5.0) -> tuple[int, list[psutil.Process]]:
    """`end` for whatever `find` finds, until it finds nothing: what is ended may have begun something else a moment before.

    Returns how many were ended, and those that are still there after `patience_s` of looking again.
    """
    deadline, ended = time.monotonic() + patience_s, 0
    while found := list(find()):
        survivors = end(found, grace_s)
        ended += len(found) - len(survivors)
        if time.monotonic() >= deadline:
            return ended, survivors
        grace_s = 0.0  # whoever wanted to end in order has had the time
    return ended, []


def _signal(processes: Iterable[psutil.Process], number: int) -> None:
    for process in processes:
        try:
            process.send_signal(number)
        except psutil.Error:
            continue  # gone already: what was wanted


def _wait(processes: list[psutil.Process], seconds: float) -> list[psutil.Process]:
    deadline = time.monotonic() + seconds
    while processes and time.monotonic() < deadline:
        reap_orphans()
        processes = [p for p in processes if p.is_running() and is_alive(p.pid)]
        if processes:
            time.sleep(0.05)
    return processes


_popen_pids: set[int] = set()
_reaping = False


def reap_orphans() -> None:
    """Collects dead processes that the subreaper inherited. Those started by `Child` are left to their Popen.

    Only in a process that called `become_subreaper`: elsewhere a dead child's exit code belongs to whoever started it.
    """
    if not _reaping:
        return
    for process in psutil.Process().children():
        if process.pid in _popen_pids:
            continue
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                os.waitpid(process.pid, os.WNOHANG)
        except (psutil.Error, ChildProcessError):
            continue


@dataclass
class Child:
    """One supervised process: its command, where its output goes, and how to tell that it is ready."""

    name: str
    argv: list[str]
    env: Mapping[str, str]
    log: Path
    cwd: Path
    ready: Callable[[], bool] = lambda: True
    ready_within_s: float = 60.0
    process: subprocess.Popen[bytes] | None = None
    started: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    groups: list[tuple[int, float]] = field(default_factory=list)

    def start(self) -> None:
        """Starts it in a session of its own, so that Ctrl-C in the terminal reaches the supervisor alone."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        if self.log.exists() and self.log.stat().st_size > 8_000_000:
            self.log.replace(self.log.with_suffix(".log.1"))
        with self.log.open("ab") as out:
            self.process = subprocess.Popen(
                self.argv,
                env=dict(self.env),
                cwd=self.cwd,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,
                preexec_fn=_die_with_parent,  # the supervisor is single-threaded when it starts children
            )
        _popen_pids.add(self.process.pid)
        self.started = time.monotonic()
        self.groups.append((self.process.pid, started_at(self.process.pid) or time.time()))

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def signal_group(self, number: int) -> None:
        """To the whole process group: a child's own helpers must not outlive it."""
        if self.process is None:
            return
        try:
            os.killpg(self.process.pid, number)
        except (ProcessLookupError, PermissionError):
            return  # the group is empty: nothing left to tell

    def last_lines(self, count: int = 12) -> str:
        """What it said last, for the error message."""
        try:
            with self.log.open("rb") as stream:
                stream.seek(max(0, self.log.stat().st_size - 8000))
                text = stream.read().decode("utf-8", "replace")
        except OSError:
            return ""
        return "\n".join(text.splitlines()[-count:])
