"""Bands over seeds: the runs whose config is this run's but for the seed, and how far they lie apart at every point of an axis."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from headrace.experiments.models import Run
from headrace.telemetry import selectors, series

MOST_RUNS = 16
MOST_NAMES = 16
LOOKED_AT = 300  # newest runs of the group or project that are compared with this one
CUMULATIVE = {"samples": "samples/trained", "tokens": "samples/tokens"}
# Two-sided 95 % quantiles of Student's t, by degrees of freedom; from 16 on the normal's will do
_T95 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)

Axis = Literal["step", "time", "samples", "tokens"]
Column = NDArray[np.float64]


def siblings(run: Run) -> list[Run]:
    """Other runs of the team with this run's config and another seed, newest first: of its group where it has one, else its project."""
    rows = Run.objects.for_team(run.team_id).filter(deleted_at=None, config__schema_version=run.config.schema_version).exclude(pk=run.pk)
    rows = rows.filter(group=run.group) if run.group else rows.filter(project=run.project_id, preset=run.preset)
    mine = _but_seed(run.config.data)
    near = rows.exclude(seed=run.seed).select_related("config").order_by("-created_at", "-pk")[:LOOKED_AT]
    kept: dict[int, Run] = {}
    for other in near:
        if _but_seed(other.config.data) == mine:
            kept.setdefault(other.seed, other)  # of one seed run twice the newer counts
    return list(kept.values())[:MOST_RUNS]


def read(run: Run, others: list[Run], names: list[str], *, x: Axis, buckets: int) -> dict[str, dict[str, Any]]:
    """{name: {x, mean, low, high, interval_low, interval_high, n}} over this run and the others; null where no run has a point.

    x "time" is seconds since each run's own first event. low and high are the extremes; the interval is the 95 % interval of the mean.
    """
    wanted = [*names, *CUMULATIVE.values()]
    lines: dict[str, list[tuple[Column, Column]]] = {name: [] for name in names}
    for one in [run, *others]:
        columns = series.read(one, wanted, buckets=series.MAX_BUCKETS)
        start = (selectors.began(one) or 0.0) if x == "time" else 0.0
        for name in names:
            line = _line(columns, name, x, start)
            if line is not None:
                lines[name].append(line)
    return {name: _band(found, buckets) for name, found in lines.items() if found}


def _but_seed(data: Any) -> Any:
    return {key: value for key, value in data.items() if key != "seed"} if isinstance(data, dict) else data


def _line(columns: dict[str, dict[str, Any]], name: str, x: Axis, start: float) -> tuple[Column, Column] | None:
    part = columns.get(name)
    if part is None:
        return None
    value = np.array([np.nan if item is None else item for item in part["value"]], dtype=np.float64)
    kept = ~np.array(part["faint"], dtype=bool) & np.isfinite(value)
    t = np.array(part["t"], dtype=np.float64)
    if x == "step":
        place = np.array(part["step"], dtype=np.float64)
    elif x == "time":
        place = t - start
    else:
        counted = columns.get(CUMULATIVE[x])
        if counted is None:
            return None
        count = np.array([np.nan if item is None else item for item in counted["value"]], dtype=np.float64)
        good = np.isfinite(count) & ~np.array(counted["faint"], dtype=bool)
        if not good.any():
            return None
        # Nothing is known of the count before it was first told
        place = np.interp(t, np.array(counted["t"], dtype=np.float64)[good], count[good], left=np.nan)
        kept &= np.isfinite(place)
    place, value = place[kept], value[kept]
    order = np.argsort(place, kind="stable")
    return (place[order], value[order]) if len(order) else None


def _band(lines: list[tuple[Column, Column]], buckets: int) -> dict[str, Any]:
    places = np.unique(np.concatenate([place for place, _ in lines]))
    grid = places if len(places) <= buckets else np.linspace(places[0], places[-1], buckets)
    table = np.stack([np.interp(grid, place, value, left=np.nan, right=np.nan) for place, value in lines])
    there = np.isfinite(table)
    n = there.sum(axis=0)
    kept = n > 0
    grid, table, there, n = grid[kept], table[:, kept], there[:, kept], n[kept]
    mean = np.where(there, table, 0.0).sum(axis=0) / n
    spread = np.sqrt(np.where(there, (table - mean) ** 2, 0.0).sum(axis=0) / np.maximum(n - 1, 1))
    quantile = np.array([_T95[min(count - 2, len(_T95) - 1)] if count > 1 else np.nan for count in n])
    half = quantile * spread / np.sqrt(n)
    return {
        "x": grid.tolist(),
        "mean": mean.tolist(),
        "low": np.where(there, table, np.inf).min(axis=0).tolist(),
        "high": np.where(there, table, -np.inf).max(axis=0).tolist(),
        "interval_low": _or_none(mean - half),
        "interval_high": _or_none(mean + half),
        "n": n.tolist(),
    }


def _or_none(values: Column) -> list[float | None]:
    return [value if np.isfinite(value) else None for value in values.tolist()]
