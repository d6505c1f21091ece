"""Writes of the derived tables. Called inside ingest's transaction, with the attempt's row locked, and by `rebuild`.

A series grows by small pieces, one a batch. When MERGE_PIECES pieces or a whole chunk have come together they are merged, full
chunks are sealed, and each sealed chunk adds its summary to the level above. So a point is rewritten once or twice, not per batch.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Iterable

import numpy as np
from django.db.models import Count, Max, Sum

from headrace.experiments.models import Attempt
from headrace.telemetry.columns import CHUNK_ROWS, Rows, concatenate, next_level, pack, unpack
from headrace.telemetry.derive import LOG_LEVELS, Derived, LogLine
from headrace.telemetry.models import LatestState, LogChunk, Moment, Sample, Series, SeriesChunk
from headrace.telemetry.problems import QuotaExceeded

MERGE_PIECES = 32
KEPT_EVALUATIONS = 500


def apply(attempt: Attempt, found: Derived, last_seq: int, *, names_quota: int | None) -> None:
    """Add what a stretch of events means to the derived tables. `names_quota` None: rebuilding, names were accepted before."""
    if found.points:
        _append_points(attempt, found.points, names_quota)
    if found.samples:
        Sample.unscoped.bulk_create([Sample(attempt=attempt, **row) for row in found.samples])
    if found.logs:
        LogChunk.unscoped.bulk_create([_log_chunk(attempt, found.logs)])
    if found.moments:
        Moment.unscoped.bulk_create([Moment(attempt=attempt, **row) for row in found.moments])
    _update_latest(attempt, found, last_seq)


def clear(attempt: Attempt) -> None:
    """Forget everything derived of this attempt; its events stay."""
    for model in (SeriesChunk, Series, Sample, LogChunk, Moment, LatestState):
        model.unscoped.filter(attempt=attempt).delete()


def read_log_lines(body: bytes | memoryview) -> list[LogLine]:
    """Lines of a LogChunk, oldest first."""
    return [LogLine(*row) for row in json.loads(zlib.decompress(bytes(body)))]


def _log_chunk(attempt: Attempt, lines: list[LogLine]) -> LogChunk:
    rows = [[line.seq, line.t, line.step, line.level, line.message, line.source] for line in lines]
    return LogChunk(
        attempt=attempt,
        first_seq=lines[0].seq,
        last_seq=lines[-1].seq,
        t0=lines[0].t,
        t1=lines[-1].t,
        count=len(lines),
        worst_level=max((line.level for line in lines), key=LOG_LEVELS.index),
        body=zlib.compress(json.dumps(rows, separators=(",", ":")).encode(), 1),
    )


def _append_points(attempt: Attempt, points: dict[str, Rows], names_quota: int | None) -> None:
    known = {row.name: row for row in Series.unscoped.filter(attempt=attempt, name__in=list(points))}
    fresh = points.keys() - known.keys()
    if fresh and names_quota is not None:
        _check_quota(attempt, fresh, names_quota)
    grown = [_grown(attempt, name, rows, known.get(name)) for name, rows in points.items()]
    before = {name: row.count for name, row in known.items()}
    Series.unscoped.bulk_create(
        grown,
        update_conflicts=True,
        unique_fields=["attempt", "name"],
        update_fields=["count", "last_seq", "last_step", "last_t", "last_value"],
    )
    open_pieces = (
        SeriesChunk.unscoped.filter(series_id__in=[row.pk for row in known.values()], level=0, sealed=False)
        .values("series_id")
        .annotate(pieces=Count("id"), rows=Sum("n"), last_index=Max("index"))
    )
    waiting = {row["series_id"]: row for row in open_pieces}
    pieces: list[SeriesChunk] = []
    for series in grown:
        rows = points[series.name]
        tail = waiting.get(series.pk)
        first_index = before.get(series.name, 0) // CHUNK_ROWS
        held, joined = (tail["rows"], tail["pieces"]) if tail else (0, 0)
        if joined + 1 >= MERGE_PIECES or held + len(rows) >= CHUNK_ROWS:
            pieces.extend(_merge(series, rows, first_index))
        else:
            pieces.append(_chunk(series, 0, tail["last_index"] + 1 if tail else first_index, rows, compress=False))
    SeriesChunk.unscoped.bulk_create(pieces)


def _check_quota(attempt: Attempt, fresh: Iterable[str], quota: int) -> None:
    names = Series.unscoped.filter(attempt__run_id=attempt.run_id)
    others = set(names.filter(name__in=list(fresh)).values_list("name", flat=True))
    added = sorted(set(fresh) - others)
    held = names.values("name").distinct().count()
    if held + len(added) > quota:
        raise QuotaExceeded(
            f"the run holds {held} distinct series names of at most {quota}",
            field="data.values",
            value=added[0],
            cure="put changing parts, such as ids, into the sample or log instead of the name",
        )


def _grown(attempt: Attempt, name: str, rows: Rows, known: Series | None) -> Series:
    finite = rows.first[np.isfinite(rows.first)]
    last_value = float(finite[-1]) if len(finite) else (known.last_value if known else None)
    return Series(
        attempt=attempt,
        name=name,
        count=(known.count if known else 0) + len(rows),
        last_seq=int(rows.seq[-1]),
        last_step=int(rows.step1[-1]),
        last_t=float(rows.t1[-1]),
        last_value=last_value,
    )


def _merge(series: Series, rows: Rows, first_index: int) -> list[SeriesChunk]:
    """Chunks that replace the open pieces of level 0: full ones sealed, the rest one open piece."""
    pieces = SeriesChunk.unscoped.filter(series=series, level=0, sealed=False).order_by("index")
    parts = [unpack(body) for body in pieces.values_list("body", flat=True)]
    pieces.delete()
    together = concatenate([*parts, rows])
    chunks: list[SeriesChunk] = []
    summaries: list[Rows] = []
    for start in range(0, len(together), CHUNK_ROWS):
        part = together.slice(start, start + CHUNK_ROWS)
        chunks.append(_chunk(series, 0, first_index + len(chunks), part))
        if len(part) == CHUNK_ROWS:
            summaries.append(next_level(part))
    if summaries:
        _promote(series, 1, concatenate(summaries))
    return chunks


def _promote(series: Series, level: int, rows: Rows) -> None:
    """Append rows to a level above the points; full chunks go on to the next."""
    last = SeriesChunk.unscoped.filter(series=series, level=level).order_by("-index").first()
    index = 0 if last is None else last.index + (1 if last.sealed else 0)
    if last is not None and not last.sealed:
        rows = concatenate([unpack(last.body), rows])
        last.delete()
    chunks: list[SeriesChunk] = []
    summaries: list[Rows] = []
    for start in range(0, len(rows), CHUNK_ROWS):
        part = rows.slice(start, start + CHUNK_ROWS)
        chunks.append(_chunk(series, level, index + len(chunks), part))
        if len(part) == CHUNK_ROWS:
            summaries.append(next_level(part))
    SeriesChunk.unscoped.bulk_create(chunks)
    if summaries:
        _promote(series, level + 1, concatenate(summaries))


def _chunk(series: Series, level: int, index: int, rows: Rows, compress: bool = True) -> SeriesChunk:
    return SeriesChunk(
        series=series,
        attempt_id=series.attempt_id,
        level=level,
        index=index,
        first_seq=int(rows.seq[0]),
        last_seq=int(rows.seq[-1]),
        # a range over the rows, not their ends: points of one event may come in any order
        first_step=int(rows.step0.min()),
        last_step=int(rows.step1.max()),
        t0=float(rows.t0.min()),
        t1=float(rows.t1.max()),
        n=len(rows),
        sealed=len(rows) == CHUNK_ROWS,
        body=pack(rows, level, compress),
    )


def _update_latest(attempt: Attempt, found: Derived, last_seq: int) -> None:
    latest, _ = LatestState.unscoped.get_or_create(attempt=attempt)
    changed = {"seq", "t", "step", "updated_at", *found.latest}
    for kind, summary in found.latest.items():
        setattr(latest, kind, summary)
    if found.started is not None or found.ended is not None:
        latest.finished = found.ended  # a start after an end, as of an upload that was resumed in place, takes the end back
        changed.add("finished")
    if found.evaluations:
        changed.add("evaluation")
        latest.evaluation = [*(latest.evaluation or []), *found.evaluations][-KEPT_EVALUATIONS:]
    newest = max((s for s in (*found.latest.values(), found.ended) if s), key=lambda s: s["seq"], default=None)
    if newest is not None and math.isfinite(newest["t"]):
        latest.t, latest.step = newest["t"], newest["step"]
    latest.seq = last_seq
    latest.save(update_fields=changed)
