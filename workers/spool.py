"""The durable spool: an append-only log of an attempt's events, in segments, one checksummed line an event.

A line is `crc32(8 hex digits) SPACE json NEWLINE`. An event counts as durable once its segment is synced.
"""

from __future__ import annotations

import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.contract.errors import DataError

SEGMENT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A line that is torn or whose checksum disagrees; the rest of the spool is still read."""

    segment: str
    line: int
    reason: str


class SpoolWriter:
    """Appends events. Not thread-safe: one writer an attempt. `sync` is the group commit."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        existing = sorted(folder.glob("*.spool"))
        self._number = int(existing[-1].stem) if existing else 0
        self.last_seq = max((event["seq"] for event, _ in read_spool(folder) if event), default=0)
        self._open_next()

    def append(self, event: dict[str, Any]) -> None:
        """Buffered until `sync`. `event["seq"]` must be the next number."""
        if event["seq"] != self.last_seq + 1:
            raise DataError("events are numbered without gaps", field="seq", value=event["seq"], cure=f"expected {self.last_seq + 1}")
        body = json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
        self._file.write(b"%08x %s\n" % (zlib.crc32(body), body))
        self.last_seq = event["seq"]
        self._bytes += len(body) + 10

    def sync(self) -> None:
        """Returns once every appended event is on disk. Raises OSError (disk full): nothing is lost from memory by that."""
        self._file.flush()
        os.fsync(self._file.fileno())
        if self._bytes >= SEGMENT_BYTES:
            self._file.close()
            self._open_next()

    def close(self) -> None:
        if not self._file.closed:
            self.sync()
            self._file.close()

    def _open_next(self) -> None:
        # A new segment at each start: a line torn by a crash stays at the end of its own segment.
        self._number += 1
        self._bytes = 0
        path = self._folder / f"{self._number:06d}.spool"
        self._file = path.open("ab")
        sync_folder(self._folder)


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_spool(folder: Path, after: int = 0) -> Iterator[tuple[dict[str, Any] | None, BadRecord | None]]:
    """Yields (event, None) in order of seq beyond `after`, and (None, bad) for every line that cannot be trusted."""
    for segment in sorted(folder.glob("*.spool")):
        with segment.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                event, reason = _parse(line)
                if event is None:
                    yield None, BadRecord(segment.name, number, reason)
                elif event["seq"] > after:
                    yield event, None


def _parse(line: bytes) -> tuple[dict[str, Any] | None, str]:
    if not line.endswith(b"\n"):
        return None, "torn: no end of line"
    checksum, _, body = line[:-1].partition(b" ")
    try:
        if int(checksum, 16) != zlib.crc32(body):
            return None, "checksum differs"
        event: dict[str, Any] = json.loads(body)
    except ValueError as error:
        return None, f"not readable: {error}"
    return event, ""
