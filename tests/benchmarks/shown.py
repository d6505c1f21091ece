"""What every benchmark's output says beside its figures: the machine, the date, the commit; and how a table is laid out."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def circumstances() -> str:
    """One line: cores and processor, load, date in UTC, commit. What cannot be found out is called unknown."""
    date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{cores} cores of {_processor()}, load {os.getloadavg()[0]:.1f}; {date}; commit {_commit()}"


def table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Markdown; numbers to the right, floats to three figures."""
    numeric = [all(isinstance(row[index], int | float) for row in rows) for index in range(len(heads))]
    lines = [list(heads), ["---:" if right else "---" for right in numeric], *([_word(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _word(cell: object) -> str:
    if not isinstance(cell, float):
        return "" if cell is None else str(cell)
    return f"{cell:.0f}" if abs(cell) >= 100 else f"{cell:.3g}"


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor() or "an unknown processor"
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "an unknown processor")


def _commit() -> str:
    """Short, with `+` where tracked files differ from it."""
    try:
        commit = _git("rev-parse", "--short", "HEAD")
        return f"{commit}+" if _git("status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def _git(*words: str) -> str:
    return subprocess.run(["git", "-C", str(ROOT), *words], check=True, capture_output=True, text=True, timeout=10).stdout.strip()
