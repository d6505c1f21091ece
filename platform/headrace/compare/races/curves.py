"""Learning curves on a common range. Pure: never a value beyond the end of the slowest entry, never one made up.

A curve is a pair of equally long arrays, x ascending. A value between two points is interpolated; before the first and after the
last there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headrace.compare.races.verdict import Interval, interval

Array = NDArray[np.float64]
GRID = 60
WINDOW = 0.1  # the train reward at x is the mean over the last tenth of the range up to x: single steps are noisy


@dataclass(frozen=True)
class Curve:
    """One figure of one entry along one axis."""

    x: Array
    y: Array

    @staticmethod
    def of(x: Sequence[float] | Array, y: Sequence[float | None] | Array) -> Curve:
        """Points in any order with gaps: sorted, gaps left out, of equal x the last."""
        told = np.asarray(x, dtype=np.float64)
        values = np.array([np.nan if value is None else float(value) for value in y], dtype=np.float64)
        keep = np.isfinite(told) & np.isfinite(values)
        told, values = told[keep], values[keep]
        order = np.argsort(told, kind="stable")
        told, values = told[order], values[order]
        last = np.append(np.diff(told) > 0, True) if len(told) else np.zeros(0, dtype=bool)
        return Curve(told[last], values[last])

    @property
    def end(self) -> float | None:
        return float(self.x[-1]) if len(self.x) else None

    def at(self, x: float) -> float | None:
        """The value at x, interpolated; None outside the curve."""
        if not len(self.x) or not self.x[0] <= x <= self.x[-1]:
            return None
        return float(np.interp(x, self.x, self.y))

    def mean_before(self, x: float) -> float | None:
        """The mean of the points in the last tenth before x (the nearest point before it, if there is none)."""
        if not len(self.x) or x < self.x[0] or x > self.x[-1]:
            return None
        inside = (self.x <= x) & (self.x >= x - WINDOW * x)
        return float(self.y[inside].mean()) if inside.any() else float(self.y[self.x <= x][-1])


def along(x_of_t: Curve, t: Sequence[float]) -> list[float | None]:
    """Another axis for points of time: x at each t, held at its ends (a counter neither runs ahead nor back)."""
    if not len(x_of_t.x):
        return [None] * len(t)
    return [float(value) for value in np.interp(np.asarray(t, dtype=np.float64), x_of_t.x, x_of_t.y)]


def common_end(curves: Sequence[Curve]) -> float | None:
    """How far every curve reaches; None if one has no point."""
    ends = [curve.end for curve in curves]
    return min(end for end in ends if end is not None) if ends and all(end is not None for end in ends) else None


def band(curves: Mapping[int, Curve], end: float | None) -> dict[str, list[Any]]:
    """{x, mean, lo, hi, n}: the mean over the seeds with its interval, on a grid up to `end`. lo, hi: None with one seed."""
    out: dict[str, list[Any]] = {"x": [], "mean": [], "lo": [], "hi": [], "n": []}
    starts = [float(curve.x[0]) for curve in curves.values() if len(curve.x)]
    if end is None or not starts or max(starts) > end:
        return out
    for x in np.unique(np.linspace(max(starts), end, GRID)):
        values = [value for curve in curves.values() if (value := curve.at(float(x))) is not None]
        found: Interval | None = interval(values)
        if found is None:
            continue
        for key, value in (("x", float(x)), ("mean", found.mean), ("lo", found.lo), ("hi", found.hi), ("n", found.n)):
            out[key].append(value)
    return out


def smooth(curve: Curve, points: int) -> Curve:
    """A trailing mean over so many points, for drawing."""
    if len(curve.y) < 2 or points < 2:
        return curve
    total = np.cumsum(np.insert(curve.y, 0, 0.0))
    ends = np.arange(1, len(curve.y) + 1)
    starts = np.maximum(0, ends - points)
    return Curve(curve.x, (total[ends] - total[starts]) / (ends - starts))


def percentile(counts: Mapping[int, float], share: float) -> float | None:
    """The smallest key below which (itself included) at least this share of the counts lies. None without counts."""
    total = sum(counts.values())
    if total <= 0:
        return None
    seen = 0.0
    for key in sorted(counts):
        seen += counts[key]
        if seen >= share * total - 1e-9:
            return float(key)
    return float(max(counts))
