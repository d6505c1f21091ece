"""Series for charts: one level of chunks plus the open tails below it, at most MAX_BUCKETS rows a series, across attempts.

After a resume the view is each attempt up to its successor's start; what the successor trained again stays, marked faint.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.experiments.models import Attempt, Run
from headrace.telemetry.columns import FANOUT, Rows, bucket, concatenate, empty, unpack
from headrace.telemetry.derive import LAG_PREFIX, SPAN_PREFIX
from headrace.telemetry.models import Series, SeriesChunk
from workers.contract import metrics

MAX_BUCKETS = 2000
MAX_NAMES = 64
READ_ROWS = 8192  # a level is fine enough when it holds at most this many rows of the range
_RETRIES = 5

Axis = Literal["step", "time"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Rows of one series in one attempt. faint: a later attempt trained these steps again."""

    attempt: int
    rows: Rows
    faint: NDArray[np.bool_]
    level: int


class ChunksMoved(RuntimeError):
    """Ingest merged chunks between two reads; the reader starts over."""


def read(
    run: Run,
    names: list[str],
    *,
    x: Axis = "step",
    lo: float | None = None,
    hi: float | None = None,
    buckets: int = 500,
) -> dict[str, dict[str, Any]]:
    """Columns for each name that has data, ready for JSON. The caller has checked access to the run."""
    buckets = max(2, min(buckets, MAX_BUCKETS))
    return {name: _columns(parts, x, buckets) for name, parts in segments(run, names, x, lo, hi).items()}


def read_runs(runs: Sequence[Run], name: str, *, buckets: int) -> dict[int, dict[str, Any]]:
    """{run key: columns} of one series over many runs of one team, read with a fixed number of queries: the run list's sparklines."""
    if not runs:
        return {}
    attempts = Attempt.objects.for_team(runs[0].team_id).filter(run__in=runs).order_by("number")
    by_run: dict[int, list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        by_run[attempt.run_id].append(attempt)
    rows = Series.objects.for_team(runs[0].team_id).filter(attempt__run__in=runs, name=name)
    keys = dict(rows.values_list("attempt_id", "pk"))
    stored = _read_rows(runs[0], list(keys.values()), "step", None, None)
    found: dict[int, dict[str, Any]] = {}
    for run, mine in by_run.items():
        starts = successor_starts(mine)
        parts = [_segment(attempt, starts[attempt.pk], stored.get(keys.get(attempt.pk, -1), (0, empty()))) for attempt in mine]
        if kept := [part for part in parts if len(part.rows)]:
            found[run] = _columns(kept, "step", buckets)
    return found


def names(run: Run) -> list[str]:
    """Every series name of the run, in order; what the lag histogram and the timeline are kept in is left out."""
    found = Series.objects.for_team(run.team_id).filter(attempt__run=run).values_list("name", flat=True).distinct()
    return sorted(name for name in found if not name.startswith((LAG_PREFIX, SPAN_PREFIX)))


def described(run: Run) -> list[dict[str, Any]]:
    """The same series, each with what the catalogue says of it and its last value: what a reader searches. In order of name."""
    rows = Series.objects.for_team(run.team_id).filter(attempt__run=run).order_by("name", "attempt__number")
    found: dict[str, dict[str, Any]] = {}
    for name, count, step, value in rows.values_list("name", "count", "last_step", "last_value"):
        if name.startswith((LAG_PREFIX, SPAN_PREFIX)):
            continue
        known = metrics.describe(name)
        row = {
            "name": name,
            "title": known.title if known else name,
            "unit": known.unit if known else "",
            "group": known.group if known else name.partition("/")[0],
            "text": known.description if known else "",
            "overview": bool(known and known.overview),
        }
        points = found[name]["points"] if name in found else 0
        found[name] = {**row, "points": points + count, "last": value, "step": step}
    return list(found.values())


def lag_histogram(run: Run, buckets: int = 500) -> dict[str, list[Any]]:
    """{steps, lags, tokens[lag][step]}: tokens trained at each lag, over steps. Superseded steps are left out."""
    every = Series.objects.for_team(run.team_id).filter(attempt__run=run, name__startswith=LAG_PREFIX)
    lags = sorted({int(name.removeprefix(LAG_PREFIX)) for name in every.values_list("name", flat=True)})
    found = segments(run, [f"{LAG_PREFIX}{lag}" for lag in lags], "step", None, None)
    kept = {lag: concatenate([part.rows.where(~part.faint) for part in found.get(f"{LAG_PREFIX}{lag}", [])]) for lag in lags}
    all_steps = np.unique(np.concatenate([rows.step1 for rows in kept.values()])) if kept else np.empty(0, dtype=np.int64)
    if not len(all_steps):
        return {"steps": [], "lags": [], "tokens": []}
    edges = (
        all_steps if len(all_steps) <= buckets else np.unique(np.linspace(all_steps[0], all_steps[-1] + 1, buckets + 1)[:-1].astype(int))
    )
    table = np.zeros((len(lags), len(edges)))
    for place, lag in enumerate(lags):
        rows = kept[lag]
        finite = rows.count - rows.nonfinite
        np.add.at(table[place], np.searchsorted(edges, rows.step1, side="right") - 1, np.where(finite > 0, rows.mean, 0.0) * finite)
    return {"steps": edges.tolist(), "lags": lags, "tokens": table.tolist()}


def successor_starts(attempts: Iterable[Attempt]) -> dict[int, int | None]:
    """{attempt id: the last step that still counts of it, or None while no later attempt has begun}."""
    starts: dict[int, int | None] = {}
    earliest: int | None = None
    for attempt in sorted(attempts, key=lambda row: -row.number):
        starts[attempt.pk] = earliest
        if "resumed_from" in attempt.provenance:
            resumed = attempt.provenance["resumed_from"]
            start = int(resumed["step"]) if isinstance(resumed, dict) and isinstance(resumed.get("step"), int) else -1
            earliest = start if earliest is None else min(earliest, start)
    return starts


def segments(run: Run, wanted: list[str], x: Axis, lo: float | None, hi: float | None) -> dict[str, list[Segment]]:
    """{name: rows of each attempt that has some}, from one level of chunks each; names without data are left out."""
    attempts = list(Attempt.objects.for_team(run.team_id).filter(run=run).order_by("number"))
    starts = successor_starts(attempts)
    rows = Series.objects.for_team(run.team_id).filter(attempt__run=run, name__in=wanted)
    by_key = {(row.name, row.attempt_id): row.pk for row in rows}
    stored = _read_rows(run, list(by_key.values()), x, lo, hi)
    found: dict[str, list[Segment]] = {}
    for name in dict.fromkeys(wanted):
        for attempt in attempts:
            part = _segment(attempt, starts[attempt.pk], stored.get(by_key.get((name, attempt.pk), -1), (0, empty())))
            if len(part.rows):
                found.setdefault(name, []).append(part)
    return found


def _segment(attempt: Attempt, last_kept: int | None, stored: tuple[int, Rows]) -> Segment:
    level, rows = stored
    faint = np.zeros(len(rows), dtype=bool) if last_kept is None else rows.step0 > last_kept
    return Segment(attempt.number, rows, faint, level)


def _read_rows(run: Run, series: list[int], x: Axis, lo: float | None, hi: float | None) -> dict[int, tuple[int, Rows]]:
    for attempt in range(_RETRIES):
        try:
            return _read_rows_once(run, series, x, lo, hi)
        except ChunksMoved:
            if attempt == _RETRIES - 1:
                raise
    return {}


def _read_rows_once(run: Run, series: list[int], x: Axis, lo: float | None, hi: float | None) -> dict[int, tuple[int, Rows]]:
    low, high = ("first_step", "last_step") if x == "step" else ("t0", "t1")
    chunks = SeriesChunk.objects.for_team(run.team_id).filter(series_id__in=series)
    if lo is not None:
        chunks = chunks.filter(**{f"{high}__gte": lo})
    if hi is not None:
        chunks = chunks.filter(**{f"{low}__lte": hi})
    heads: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for head in chunks.order_by("series_id", "level", "index").values("id", "series_id", "level", "n", "sealed"):
        heads[head["series_id"]].append(head)
    chosen = {pk: _choose(rows) for pk, rows in heads.items()}
    ids = [head for _, parts in chosen.values() for head in parts]
    bodies = dict(SeriesChunk.objects.for_team(run.team_id).filter(pk__in=ids).values_list("pk", "body"))
    if len(bodies) != len(ids):
        raise ChunksMoved("series chunks changed while they were read")
    return {
        pk: (level, _within(concatenate([unpack(bodies[chunk]) for chunk in parts]), x, lo, hi)) for pk, (level, parts) in chosen.items()
    }


def _choose(heads: list[Mapping[str, Any]]) -> tuple[int, list[int]]:
    """(level, chunk ids in order): all chunks of the level, then the open tails of the levels below."""
    points = sum(head["n"] for head in heads if head["level"] == 0)
    highest = max(head["level"] for head in heads)
    level = 0
    while level < highest and points / FANOUT**level > READ_ROWS:
        level += 1
    ids = [head["id"] for head in heads if head["level"] == level]
    for below in range(level - 1, -1, -1):
        ids.extend(head["id"] for head in heads if head["level"] == below and not head["sealed"])
    return level, ids


def _within(rows: Rows, x: Axis, lo: float | None, hi: float | None) -> Rows:
    low, high = (rows.step0, rows.step1) if x == "step" else (rows.t0, rows.t1)
    mask = np.ones(len(rows), dtype=bool)
    if lo is not None:
        mask &= high >= lo
    if hi is not None:
        mask &= low <= hi
    return rows if mask.all() else rows.where(mask)


def _columns(parts: list[Segment], x: Axis, buckets: int) -> dict[str, Any]:
    stretches = [
        (part.attempt, flag, part.rows.where(part.faint == flag), part.level)
        for part in parts
        for flag in (False, True)
        if (part.faint == flag).any()
    ]
    total = sum(len(rows) for _, _, rows, _ in stretches)
    spare = max(0, buckets - len(stretches))
    out: dict[str, Any] = {key: [] for key in ("attempt", "faint", "step", "t", "value", "min", "max", "count", "nonfinite")}
    for number, flag, rows, _ in stretches:
        axis = (rows.step1 if x == "step" else rows.t1).astype(np.float64)
        share = len(rows) if total <= buckets else 1 + math.floor(spare * len(rows) / total)
        reduced = bucket(rows, axis, share)
        out["attempt"].extend([number] * len(reduced))
        out["faint"].extend([flag] * len(reduced))
        out["step"].extend(reduced.step1.tolist())
        out["t"].extend(reduced.t1.tolist())
        out["value"].extend(_shown(reduced.mean))
        out["min"].extend(_shown(reduced.low))
        out["max"].extend(_shown(reduced.high))
        out["count"].extend(reduced.count.tolist())
        out["nonfinite"].extend(reduced.nonfinite.tolist())
    out["level"] = max(level for _, _, _, level in stretches)
    return out


def _shown(column: NDArray[np.float64]) -> list[float | None]:
    """A chart draws a gap where no finite value is; `nonfinite` says how many there were."""
    return [None if math.isnan(value) else value for value in column.tolist()]
