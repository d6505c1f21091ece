"""Series of many runs on one x-axis, and groups of them as mean and band. Called by the comparison page, once for all its charts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.compare.fields import RunField
from headrace.compare.values import values
from headrace.experiments.listing import text_of
from headrace.experiments.models import Run
from headrace.telemetry import series
from headrace.telemetry.models import EventBatch

MOST_NAMES = 16
MOST_POINTS = 60_000  # of one answer: under a megabyte
GRID = 400  # places at which the runs of a group are averaged
AXES = {"step": "", "time": "", "samples": "samples/trained", "tokens": "samples/tokens"}
BANDS = ("sd", "ci", "range")
# Two-sided 95 % quantiles of Student's t for 1, 2, ... degrees of freedom; above them 1.96 is close enough.
_T95 = (
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
)

Floats = NDArray[np.float64]
Line = tuple[Floats, Floats]


def buckets_for(runs: int, names: int) -> int:
    """Points of one line, so that the whole answer stays within MOST_POINTS."""
    return max(50, min(series.MAX_BUCKETS, MOST_POINTS // max(1, runs * names)))


def lines(runs: Sequence[Run], names: Sequence[str], x: str, buckets: int | None = None) -> dict[str, dict[int, Line]]:
    """{series name: {run key: (x, y)}}, finite values of the current history alone, x rising. x: step, samples and tokens trained, or
    minutes since the run's first event. A run without the cumulative series of the axis is left out."""
    if not runs:
        return {}
    many = buckets or buckets_for(len(runs), len(names))
    starts = _starts(runs) if x == "time" else {}
    counted = _kept(runs, AXES[x], series.MAX_BUCKETS) if AXES[x] else {}
    found: dict[str, dict[int, Line]] = {}
    for name in dict.fromkeys(names):
        mine: dict[int, Line] = {}
        for run, (step, t, value) in _kept(runs, name, many).items():
            if x == "step":
                place = step
            elif x == "time":
                place = (t - starts.get(run, t[0])) / 60
            elif run in counted:
                _, when, count = counted[run]
                place = np.interp(t, when, count, left=np.nan)
            else:
                continue
            good = np.isfinite(place)
            if good.any():
                mine[run] = (np.maximum.accumulate(place[good]), value[good])
        found[name] = mine
    return found


def groups(runs: Sequence[Run], by: RunField) -> list[tuple[str, list[Run]]]:
    """(value in words, its runs), in the order in which the values first come."""
    found: dict[str, list[Run]] = {}
    told = values(runs, [by])
    for run in runs:
        found.setdefault(text_of(by, told[run.pk][by.key]) or "none", []).append(run)
    return list(found.items())


def band(members: Sequence[Line], kind: str) -> dict[str, Floats]:
    """x, mean, low, high and n of several lines. A line counts only where it has data: between its first and its last point."""
    low, high = min(line[0][0] for line in members), max(line[0][-1] for line in members)
    whole = all(np.array_equal(line[0], np.round(line[0])) for line in members)
    grid = np.arange(low, high + 1) if whole and high - low < GRID else np.linspace(low, high, GRID)
    table = np.array([np.interp(grid, x, y, left=np.nan, right=np.nan) for x, y in members])
    n = np.sum(np.isfinite(table), axis=0)
    there = n > 0
    grid, table, n = grid[there], table[:, there], n[there]
    mean = np.nanmean(table, axis=0)
    if kind == "range":
        return {"x": grid, "mean": mean, "low": np.nanmin(table, axis=0), "high": np.nanmax(table, axis=0), "n": n}
    spread = np.sqrt(np.nansum((table - mean) ** 2, axis=0) / np.maximum(1, n - 1))
    if kind == "ci":
        spread = spread * np.array([_t95(int(count)) / np.sqrt(count) for count in n])
    spread = np.where(n > 1, spread, 0.0)
    return {"x": grid, "mean": mean, "low": mean - spread, "high": mean + spread, "n": n}


def overlay(runs: Sequence[Run], names: Sequence[str], x: str, by: RunField | None, kind: str) -> dict[str, Any]:
    """{runs: {id: {name: {x, y}}}, groups: [{label, runs, series: {name: {x, mean, low, high, n}}}]}, ready for JSON."""
    drawn = lines(runs, names, x)
    answer: dict[str, Any] = {
        "x": x,
        "runs": {
            run.public_id: {
                name: {"x": _list(mine[run.pk][0]), "y": _list(mine[run.pk][1])} for name, mine in drawn.items() if run.pk in mine
            }
            for run in runs
        },
        "groups": [],
    }
    for label, members in groups(runs, by) if by else []:
        bands = {}
        for name, mine in drawn.items():
            if found := [mine[run.pk] for run in members if run.pk in mine]:
                columns = band(found, kind)
                bands[name] = {key: column.tolist() if key == "n" else _list(column) for key, column in columns.items()}
        answer["groups"].append({"label": label, "runs": [run.public_id for run in members], "series": bands})
    return answer


def _kept(runs: Sequence[Run], name: str, buckets: int) -> dict[int, tuple[Floats, Floats, Floats]]:
    """{run key: (step, t, value)} without what a later attempt trained again and without gaps."""
    found = {}
    for run, columns in series.read_runs(runs, name, buckets=buckets).items():
        value = np.array([np.nan if item is None else item for item in columns["value"]], dtype=np.float64)
        good = np.isfinite(value) & ~np.array(columns["faint"], dtype=bool)
        if good.any():
            step, t = (np.array(columns[key], dtype=np.float64)[good] for key in ("step", "t"))
            found[run] = (step, t, value[good])
    return found


def _starts(runs: Sequence[Run]) -> dict[int, float]:
    """{run key: Unix seconds of its first event}."""
    firsts = EventBatch.objects.for_team(runs[0].team_id).filter(attempt__run__in=runs, first_seq=1)
    found: dict[int, float] = {}
    for run, t in firsts.values_list("attempt__run_id", "t0"):
        found[run] = min(found.get(run, t), t)
    return found


def _t95(n: int) -> float:
    return _T95[n - 2] if 2 <= n <= len(_T95) + 1 else 1.96


def _pair(line: Line) -> dict[str, list[float]]:
    return {"x": _list(line[0]), "y": _list(line[1])}


def _list(column: Floats) -> list[float]:
    """Six significant digits: a third of the bytes, and finer than a screen. Whole numbers without a point."""
    short = [float(f"{value:.6g}") if abs(value) < 1e5 else value for value in column.tolist()]
    return [int(value) if value.is_integer() else value for value in short]
