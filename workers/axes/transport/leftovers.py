"""Names of shared memory, and the removal of what was left in it. Without torch: the driver asks for no more than this."""

from __future__ import annotations

import os
from pathlib import Path

SEGMENTS = Path("/dev/shm")


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
