"""Names of shared memory, and the removal of what was left in it. Without torch: the driver asks for no more than this."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

SEGMENTS = Path("/dev/shm")
MARK = "driver"


def segment_prefix(run_id: str) -> str:
    """What every segment of this attempt begins with: an attempt that was fenced and wakes later must not touch the next one's."""
    attempt = "".join(letter for letter in os.environ.get("HEADRACE_ATTEMPT", "") if letter.isalnum()) or "0"
    return f"{run_prefix(run_id)}{attempt}-"


def run_prefix(run_id: str) -> str:
    """What every segment of a run begins with, of whichever attempt."""
    return f"hr-{run_id[:12]}-"


def sweep(run_id: str, *, whole_run: bool = False) -> list[str]:
    """Called when an attempt has ended, however it ended: unlinks what a killed sender left. Returns the names removed.

    `whole_run`: those of every attempt; for a run of which nothing may live any more.
    """
    prefix = run_prefix(run_id) if whole_run else segment_prefix(run_id)
    names = [path.name for path in SEGMENTS.iterdir() if path.name.startswith(prefix)] if SEGMENTS.is_dir() else []
    for name in names:
        (SEGMENTS / name).unlink(missing_ok=True)
    return names


def mark(run_id: str) -> int | None:
    """Called by a driver when it begins: says that this attempt lives, until its process ends, however that happens. Returns what it
    holds; None where there is no shared memory by names, or where another process says so already."""
    if not SEGMENTS.is_dir():
        return None
    held = os.open(SEGMENTS / f"{segment_prefix(run_id)}{MARK}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(held)
        return None
    return held


def sweep_orphans() -> list[str]:
    """Called before a run begins: unlinks what attempts of this user left whose drivers were killed, and which nobody resumed. Returns
    the names removed."""
    removed = []
    for path in sorted(SEGMENTS.glob(f"hr-*-{MARK}")):
        try:
            held = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone meanwhile
            continue
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            continue  # it lives
        else:
            for segment in SEGMENTS.glob(f"{path.name.removesuffix(MARK)}*"):
                segment.unlink(missing_ok=True)
                removed.append(segment.name)
        finally:
            os.close(held)
    return removed
