"""The log, read for people: the end, further back, from a time on, searched. A request reads a bounded number of chunks.

Each function takes an attempt whose access the caller has checked, and stays in its team.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from headrace.experiments.models import Attempt
from headrace.telemetry.derive import LOG_LEVELS, LogLine
from headrace.telemetry.models import LogChunk
from headrace.telemetry.store import read_log_lines

MAX_LINES = 2000
CHUNKS_A_REQUEST = 3000
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
_CONTROLS = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which lines: of this level and above, of this source, with this text in them (letters of either case)."""

    level: str = "debug"
    source: str = ""
    text: str = ""

    def test(self) -> Callable[[LogLine], bool]:
        least, text = LOG_LEVELS.index(self.level), self.text.casefold()
        return lambda line: (
            LOG_LEVELS.index(line.level) >= least
            and (not self.source or line.source == self.source)
            and (not text or text in line.message.casefold() or text in line.source.casefold())
        )


def before(attempt: Attempt, wanted: Wanted, seq: int | None, limit: int) -> dict[str, Any]:
    """The last `limit` lines that fit before event `seq` (None: the end), oldest first. `older`: where to go on from, or null."""
    chunks = _chunks(attempt, wanted).order_by("-first_seq")
    if seq is not None:
        chunks = chunks.filter(first_seq__lt=seq)
    fits = wanted.test()
    lines: list[LogLine] = []
    older: int | None = None
    for read, chunk in enumerate(chunks.iterator(chunk_size=64), start=1):
        fresh = [line for line in read_log_lines(chunk.body) if (seq is None or line.seq < seq) and fits(line)]
        lines = [*fresh, *lines]
        if len(lines) >= limit or read >= CHUNKS_A_REQUEST:
            older = chunk.first_seq
            break
    if len(lines) > limit:
        lines = lines[-limit:]
        older = lines[0].seq
    elif older is not None and not _chunks(attempt, wanted).filter(first_seq__lt=older).exists():
        older = None
    return {"logs": [as_row(line) for line in lines], "older": older, "newer": None}


def after(attempt: Attempt, wanted: Wanted, seq: int, limit: int) -> dict[str, Any]:
    """The first `limit` lines that fit after event `seq`, oldest first. `newer`: where to go on from, or null at the end."""
    fits = wanted.test()
    lines: list[LogLine] = []
    newer: int | None = None
    for read, chunk in enumerate(_chunks(attempt, wanted).filter(last_seq__gt=seq).order_by("first_seq").iterator(chunk_size=64), start=1):
        lines += [line for line in read_log_lines(chunk.body) if line.seq > seq and fits(line)]
        if len(lines) > limit or read >= CHUNKS_A_REQUEST:
            newer = chunk.last_seq
            break
    if len(lines) > limit:
        lines = lines[:limit]
        newer = lines[-1].seq
    return {"logs": [as_row(line) for line in lines], "older": lines[0].seq if lines else None, "newer": newer}


def at(attempt: Attempt, wanted: Wanted, t: float, limit: int) -> dict[str, Any]:
    """The lines from Unix second `t` on; where none is that late, the last ones."""
    chunk = LogChunk.objects.for_team(attempt.team_id).filter(attempt=attempt, t1__gte=t).order_by("first_seq").first()
    if chunk is None:
        return before(attempt, wanted, None, limit)
    first = next((line.seq for line in read_log_lines(chunk.body) if line.t >= t), chunk.last_seq)
    return after(attempt, wanted, first - 1, limit)


def as_text(attempt: Attempt, seq: int, chunks: int) -> tuple[str, int | None]:
    """Lines after `seq` of up to `chunks` chunks as they are downloaded, and the seq to go on from; None at the end."""
    rows = list(LogChunk.objects.for_team(attempt.team_id).filter(attempt=attempt, last_seq__gt=seq).order_by("first_seq")[:chunks])
    text = "".join(_written(rows))
    return text, rows[-1].last_seq if len(rows) == chunks else None


def as_row(line: LogLine) -> dict[str, Any]:
    """One line as pages read it."""
    return {"seq": line.seq, "t": line.t, "step": line.step, "level": line.level, "message": plain(line.message), "source": line.source}


def plain(text: str) -> str:
    """Without terminal escapes; other control characters as their code points, so that no line can move a cursor or turn text around."""
    return _CONTROLS.sub(_picture, _ESCAPES.sub("", text))


def _picture(found: re.Match[str]) -> str:
    return f"<U+{ord(found.group()):04X}>"


def _written(chunks: list[LogChunk]) -> Iterator[str]:
    for chunk in chunks:
        for line in read_log_lines(chunk.body):
            when = datetime.fromtimestamp(min(max(line.t, 0.0), 4e9), UTC).isoformat(timespec="milliseconds")
            message = plain(line.message).replace("\n", "\n    ")
            yield f"{when} {line.level:<7} [{plain(line.source)}] step {line.step}: {message}\n"


def _chunks(attempt: Attempt, wanted: Wanted) -> Any:
    chunks = LogChunk.objects.for_team(attempt.team_id).filter(attempt=attempt)
    levels = LOG_LEVELS[LOG_LEVELS.index(wanted.level) :]
    return chunks if wanted.level == LOG_LEVELS[0] else chunks.filter(worst_level__in=levels)
