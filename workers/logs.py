"""The pools' own logs, made part of the run's log: whatever a process prints is read here and told as events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LINES_AT_ONCE = 100
LINE_LENGTH = 2000


class LogFollower:
    """Reads what was added to `logs/*.log` since the last look. Called about once a second, and once at the end."""

    def __init__(self, folder: Path, tell: Callable[[str, str, str], None]) -> None:
        self._folder = folder
        self._tell = tell  # (level, message, source)
        self._read: dict[Path, int] = {}

    def look(self) -> None:
        """Whole lines only; a flood is cut to its last hundred lines, and the cut is told."""
        for path in sorted(self._folder.glob("*.log")):
            start = self._read.get(path, 0)
            with path.open("rb") as log:
                log.seek(start)
                fresh = log.read()
            whole = fresh[: fresh.rfind(b"\n") + 1]
            self._read[path] = start + len(whole)
            lines = [line for line in whole.decode("utf-8", "replace").splitlines() if line.strip()]
            if len(lines) > LINES_AT_ONCE:
                self._tell("warning", f"{len(lines) - LINES_AT_ONCE} lines are left out here; they are in {path.name}", path.stem)
            for line in lines[-LINES_AT_ONCE:]:
                self._tell("info", line[:LINE_LENGTH], path.stem)
