"""What every lane did and when, for any stretch of a run: single spans where few are in it, shares a bucket where many are.

Spans are kept as series, one for each cause and lane (`derive.SPAN_PREFIX`): a point's time is when the span began, its value how long
it took. So a week of them is read like any chart, one level of chunks. A run that sent none (it began before its engine told them) is
drawn from the differences of the time ledger between its state events, and the answer says so.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import numpy as np
from django.db.models import Max, Min, QuerySet
from numpy.typing import NDArray

from headrace.experiments.models import Attempt, Run
from headrace.telemetry import codec
from headrace.telemetry.columns import Rows, concatenate, unpack
from headrace.telemetry.derive import SPAN_PREFIX
from headrace.telemetry.models import EventBatch, LatestState, Moment, Series, SeriesChunk
from headrace.telemetry.series import Segment, segments

MOST_SPANS = 4000  # more of them in the window are told as shares
LEDGER_POINTS = 240
SYNCS = 200

Lanes = dict[str, dict[str, Any]]


def timeline(run: Run, lo: float | None = None, hi: float | None = None, *, buckets: int = 600) -> dict[str, Any]:
    """{source, began, ended, from, to, mode, lanes, edges}: times in Unix seconds.

    mode "spans": lanes[lane][cause] = [[began, ended], ...]; "shares": lanes[lane][cause] = seconds in each bucket between `edges`.
    source "none": nothing was told yet.
    """
    chunks = SeriesChunk.objects.for_team(run.team_id).filter(attempt__run=run, level=0, series__name__startswith=SPAN_PREFIX)
    outer = chunks.aggregate(first=Min("t0"), last=Max("t1"))
    bounds = _bounds(run, outer["last"])
    if bounds is None:
        return {"source": "none", "mode": "shares", "lanes": {}, "edges": []}
    # A lane may have begun before the first event was written
    began, ended = bounds if outer["first"] is None else (min(bounds[0], outer["first"]), bounds[1])
    if ended <= began:
        return {"source": "none", "mode": "shares", "lanes": {}, "edges": []}
    low, high = began if lo is None else max(lo, began), ended if hi is None else min(hi, ended)
    if high <= low:
        low, high = began, ended
    frame = {"began": began, "ended": ended, "from": low, "to": high}
    told = Series.objects.for_team(run.team_id).filter(attempt__run=run, name__startswith=SPAN_PREFIX)
    names = list(told.values_list("name", flat=True).distinct())
    if not names:
        return {**frame, "source": "ledger", "mode": "shares", **_from_ledger(run, low, high)}
    # A span that began before the window may reach into it, one as long as the window or one much longer
    found = segments(run, names, "time", low - (high - low), high)
    rows = {name: (_joined(parts), max(part.level for part in parts)) for name, parts in found.items()}
    for name, span in _reaching(chunks, low) if low > began else ():
        part, level = rows.get(name, (span, 0))
        if name not in rows or not ((part.t0 <= span.t0) & (part.t1 >= span.t0)).any():
            rows[name] = (concatenate([span, part]) if name in rows else span, level)
    exact = all(level == 0 for _, level in rows.values())
    if exact and sum(len(part) for part, _ in rows.values()) <= MOST_SPANS:
        return {**frame, "source": "spans", "mode": "spans", "lanes": _spans(rows, low, high)}
    edges = np.linspace(low, high, buckets + 1)
    return {**frame, "source": "spans", "mode": "shares", "lanes": _shares(rows, edges), "edges": _rounded(edges)}


def ledgers(run: Run) -> list[dict[str, Any]]:
    """The time ledger of every attempt as it last told it: {attempt, wall_s, lanes[lane][cause] seconds}."""
    rows = LatestState.objects.for_team(run.team_id).filter(attempt__run=run).select_related("attempt").order_by("attempt__number")
    found = []
    for row in rows:
        time = ((row.state or {}).get("data") or {}).get("time")
        if isinstance(time, dict) and isinstance(time.get("lanes"), dict):
            found.append({"attempt": row.attempt.number, "wall_s": time.get("wall_s"), "lanes": time["lanes"]})
    return found


def syncs(run: Run, limit: int = SYNCS) -> list[dict[str, Any]]:
    """The newest publishes, oldest first: version, bytes, transport, payload, phases and pauses as the engine told them."""
    rows = Moment.objects.for_team(run.team_id).filter(attempt__run=run, kind="sync").select_related("attempt")
    newest = rows.order_by("-attempt__number", "-seq")[:limit]
    return [{**row.data, "attempt": row.attempt.number, "seq": row.seq, "t": row.t, "step": row.step} for row in newest][::-1]


def _reaching(chunks: QuerySet[SeriesChunk], low: float) -> Iterator[tuple[str, Rows]]:
    """(series name, one row) of the last span of each series that began before `low`, where it lasted beyond it."""
    heads = chunks.filter(t0__lt=low).order_by("series_id", "-index").values_list("series_id", "pk")
    newest: dict[int, int] = {}
    for series, chunk in heads:
        newest.setdefault(series, chunk)
    for name, body in chunks.filter(pk__in=newest.values()).values_list("series__name", "body"):
        rows = unpack(body)
        place = int(np.flatnonzero(rows.t0 < low)[-1])
        span = rows.slice(place, place + 1)
        if _ends(span)[0] >= low:
            yield name, span


def _bounds(run: Run, last_span: float | None) -> tuple[float, float] | None:
    attempts = list(Attempt.objects.for_team(run.team_id).filter(run=run).order_by("number"))
    first = last = None
    for attempt in attempts:
        batches = EventBatch.objects.for_team(run.team_id).filter(attempt=attempt)
        head = batches.order_by("first_seq").values_list("t0", flat=True).first()
        if head is None:
            continue
        tail = batches.order_by("-first_seq").values_list("t1", flat=True).first()
        first = head if first is None else min(first, head)
        last = max(tail or head, last or head)
    if first is None or last is None:  # retention has taken the events; what was derived of them is left
        return None if last_span is None else (last_span, last_span)
    return (first, last) if last > first else None


def _joined(parts: list[Segment]) -> Rows:
    return concatenate([part.rows for part in parts])


def _named(name: str) -> tuple[str, str]:
    """(lane, cause) of a span series."""
    cause, _, lane = name.removeprefix(SPAN_PREFIX).partition("/")
    return lane, cause


def _ends(rows: Rows) -> NDArray[np.float64]:
    return rows.t1 + np.nan_to_num(rows.last)


def _spans(rows: dict[str, tuple[Rows, int]], low: float, high: float) -> Lanes:
    lanes: Lanes = {}
    for name, (part, _) in sorted(rows.items()):
        lane, cause = _named(name)
        ends = _ends(part)
        kept = (ends >= low) & (part.t0 <= high)
        if kept.any():
            pairs = np.stack([np.maximum(part.t0[kept], low), np.minimum(ends[kept], high)], axis=1)
            lanes.setdefault(lane, {})[cause] = np.round(pairs, 4).tolist()
    return lanes


def _shares(rows: dict[str, tuple[Rows, int]], edges: NDArray[np.float64]) -> Lanes:
    lanes: Lanes = {}
    for name, (part, _) in sorted(rows.items()):
        lane, cause = _named(name)
        busy = np.nan_to_num(part.mean) * (part.count - part.nonfinite)
        # Work done up to each start and end: what lies between two edges is the difference there
        before = np.concatenate([[0.0], np.cumsum(busy)])
        instants = np.maximum.accumulate(np.stack([part.t0, np.maximum(_ends(part), part.t0)], axis=1).ravel())
        done = np.repeat(before, 2)[1:-1]
        spent = np.diff(np.interp(edges, instants, done))
        if spent.any():
            lanes.setdefault(lane, {})[cause] = _rounded(spent)
    return lanes


def _from_ledger(run: Run, low: float, high: float) -> dict[str, Any]:
    """Differences between state events, of at most LEDGER_POINTS batches spread over the window."""
    edges: list[float] = [low]
    spent: dict[tuple[str, str], dict[int, float]] = defaultdict(dict)
    for attempt in Attempt.objects.for_team(run.team_id).filter(run=run).order_by("number"):
        before: dict[str, Any] = {}
        for t, ledger in _states(attempt, low, high):
            lanes = ledger.get("lanes") or {}
            start = t - float(ledger.get("wall_s") or 0.0)
            if not before and start > edges[-1]:
                edges.append(start)  # nothing is known of the time between two attempts
            if t > edges[-1]:
                known = before or start >= low - 1.0
                for lane, causes in lanes.items() if known else ():
                    for cause, value in causes.items():
                        gained = float(value) - float(before.get(lane, {}).get(cause, 0.0))
                        if gained > 0:
                            spent[lane, cause][len(edges) - 1] = gained
                edges.append(t)
            before = lanes
    lanes_found: Lanes = {}
    for (lane, cause), places in sorted(spent.items()):
        lanes_found.setdefault(lane, {})[cause] = [round(places.get(place, 0.0), 4) for place in range(len(edges) - 1)]
    return {"lanes": lanes_found, "edges": [round(edge, 4) for edge in edges]}


def _states(attempt: Attempt, low: float, high: float) -> list[tuple[float, dict[str, Any]]]:
    """(t, time ledger) of the last state event of some batches of the window, oldest first, and of one before it."""
    batches = EventBatch.objects.for_team(attempt.team_id).filter(attempt=attempt)
    keys = list(batches.filter(t1__gte=low, t0__lte=high).order_by("first_seq").values_list("pk", flat=True))
    before = batches.filter(t1__lt=low).order_by("-first_seq").values_list("pk", flat=True).first()
    places = np.linspace(0, len(keys) - 1, min(len(keys), LEDGER_POINTS)).astype(int) if keys else ()
    chosen = {keys[place] for place in places}
    if before is not None:
        chosen.add(before)
    found = []
    for body, first, packing in (
        batches.filter(pk__in=chosen).order_by("first_seq").values_list("body", "first_seq", "codec").iterator(chunk_size=16)
    ):
        states = [event for event in codec.unpack(body, first, packing).events() if event.kind == "state"]
        if states and isinstance(states[-1].data.get("time"), dict):
            found.append((states[-1].t, states[-1].data["time"]))
    return found


def _rounded(values: NDArray[np.float64]) -> list[float]:
    rounded: list[float] = np.round(values, 4).tolist()
    return rounded
