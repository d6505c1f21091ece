"""The durable spool: an append-only log of an attempt's events, in segments, one checksummed line an event.

A line is `crc32(8 hex digits) SPACE json NEWLINE`. An event counts as durable once its segment is synced.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from workers.contract.errors import DataError
from workers.contract.failpoints import reached

SEGMENT_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class BadRecord:
    """A line that is torn or whose checksum disagrees; the rest of the spool is still read."""

    segment: str
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class Place:
    """Where a reader goes on: the byte just after a line."""

    segment: int = 0
    offset: int = 0


class SpoolWriter:
    """Appends events. Not thread-safe: one writer an attempt. `sync` is the group commit.

    It buffers by itself: after a failed write it knows to the byte what the file holds, and the next `sync` goes on from there.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        sync_folder(folder.parent)
        self._folder = folder
        self._number = max(_segments(folder), default=0)
        self.last_seq = max((event["seq"] for event, _ in read_spool(folder) if event), default=0)
        self.synced_seq = self.last_seq
        self._unsynced = bytearray()
        self._written = 0  # of the unsynced bytes, those that the file took
        self._bytes = 0
        self._file: FileIO | None = None
        self._open_next()

    def append(self, event: dict[str, Any]) -> None:
        """In memory until `sync`. `event["seq"]` must be the next number. Raises TypeError or ValueError for what JSON cannot hold."""
        if event["seq"] != self.last_seq + 1:
            raise DataError("events are numbered without gaps", field="seq", value=event["seq"], cure=f"expected {self.last_seq + 1}")
        body = json.dumps(event, separators=(",", ":"), allow_nan=False).encode()
        self._unsynced += b"%08x %s\n" % (zlib.crc32(body), body)
        self.last_seq = event["seq"]

    def sync(self) -> None:
        """Returns once every appended event is on disk. Raises OSError (disk full): nothing is lost by that, sync again."""
        if not self._unsynced:
            return
        if self._file is None or (self._bytes >= SEGMENT_BYTES and not self._written):
            self._open_next()
        file = self._file
        assert file is not None
        reached("spool.write")
        while self._written < len(self._unsynced):
            taken = file.write(memoryview(self._unsynced)[self._written :].toreadonly())
            self._written += taken or 0
            self._bytes += taken or 0
        try:
            reached("spool.sync")
            os.fsync(file.fileno())
        except OSError as error:
            if error.errno == errno.EIO:
                # The kernel forgets pages it failed to write: the next sync writes them again, in a segment of their own.
                self._drop_file()
            raise
        self._unsynced, self._written = bytearray(), 0
        self.synced_seq = self.last_seq

    def close(self) -> None:
        """Syncs and closes. Raises OSError when the disk takes no more; the file is closed all the same."""
        try:
            self.sync()
        finally:
            self._drop_file()

    def _drop_file(self) -> None:
        file, self._file, self._written, self._bytes = self._file, None, 0, 0
        if file is not None:
            file.close()

    def _open_next(self) -> None:
        # A new segment at each start: a line torn by a crash stays at the end of its own segment.
        self._drop_file()
        self._number += 1
        file = (self._folder / f"{self._number:06d}.spool").open("xb", buffering=0)
        try:
            sync_folder(self._folder)
        except OSError:
            file.close()
            raise
        self._file = file


def sync_folder(folder: Path) -> None:
    """Makes renames and new names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class SpoolReader:
    """Reads a spool from any place in it, also while it is being written."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.lines = 0  # parsed so far: what reading costs
        self.newest = ""  # the segment that a writer may be at, as of the last look

    def read(self, start: Place, *, live: bool) -> Iterator[tuple[dict[str, Any] | None, BadRecord | None, Place]]:
        """Yields (event, None, place after it) in order, and (None, bad, place after it) for every line that cannot be trusted.

        `live`: a writer may be at work, so a last line without its end is not torn, only unfinished: reading stops before it.
        """
        segments = {number: path for number, path in sorted(_segments(self._folder).items()) if number >= start.segment}
        newest = max(segments, default=0)
        self.newest = segments[newest].name if segments else ""
        for number, path in segments.items():
            offset = start.offset if number == start.segment else 0
            with path.open("rb") as lines:
                lines.seek(offset)
                for line in lines:
                    if live and number == newest and not line.endswith(b"\n"):
                        return
                    self.lines += 1
                    event, reason = _parse(line)
                    bad = BadRecord(path.name, offset, reason) if event is None else None
                    offset += len(line)
                    yield event, bad, Place(number, offset)


def read_spool(folder: Path, after: int = 0) -> Iterator[tuple[dict[str, Any] | None, BadRecord | None]]:
    """A spool that nobody writes: (event, None) beyond `after`, in order of seq, and (None, bad) for every line that cannot be trusted."""
    for event, bad, _ in SpoolReader(folder).read(Place(), live=False):
        if event is None or event["seq"] > after:
            after = event["seq"] if event else after  # what was written again after a fault of the disk is there twice
            yield event, bad


def _segments(folder: Path) -> dict[int, Path]:
    return {int(path.stem): path for path in folder.glob("*.spool") if path.stem.isdecimal()}


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
