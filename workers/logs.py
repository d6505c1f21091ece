"""The pools' own logs, made part of the run's log: whatever a process prints is read here and told as events."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

LINES_AT_ONCE = 100
LINE_LENGTH = 2000
BYTES_AT_ONCE = 1024 * 1024


class LogFollower:
    """Reads what was added to `logs/*.log` since the last look. Called about once a second, and once at the end."""

    def __init__(self, folder: Path, tell: Callable[[str, str, str], None]) -> None:
        self._folder = folder
        self._tell = tell  # (level, message, source)
        self._read: dict[Path, int] = {}
        self._unreadable: set[Path] = set()

    def look(self, *, last: bool = False) -> None:
        """Whole lines only, except at the `last` look; a flood is cut to its last hundred lines, and the cut is told."""
        for path in sorted(self._folder.glob("*.log")):
            try:
                self._look_at(path, last)
            except OSError as error:
                if path not in self._unreadable:
                    self._unreadable.add(path)
                    self._tell("warning", f"{path.name} cannot be read: {error}", path.stem)

    def _look_at(self, path: Path, last: bool) -> None:
        size, start = path.stat().st_size, self._read.get(path, 0)
        if size < start:  # begun again by its writer
            start = 0
        if size - start > BYTES_AT_ONCE:
            self._tell("warning", f"{size - start - BYTES_AT_ONCE} bytes are left out here; they are in {path.name}", path.stem)
            start = size - BYTES_AT_ONCE
        with path.open("rb") as log:
            log.seek(start)
            fresh = log.read(BYTES_AT_ONCE)
        # A progress bar ends its lines with a carriage return; a line that never ends is told in pieces.
        end = max(fresh.rfind(b"\n"), fresh.rfind(b"\r")) + 1
        whole = fresh if last or (not end and len(fresh) >= BYTES_AT_ONCE) else fresh[:end]
        self._read[path] = start + len(whole)
        lines = [line for line in whole.decode("utf-8", "replace").splitlines() if line.strip()]
        if len(lines) > LINES_AT_ONCE:
            self._tell("warning", f"{len(lines) - LINES_AT_ONCE} lines are left out here; they are in {path.name}", path.stem)
        for line in lines[-LINES_AT_ONCE:]:
            self._tell("info", line[:LINE_LENGTH], path.stem)
