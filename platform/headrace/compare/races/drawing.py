"""Charts and bars of a race as numbers for inline SVG: drawn by the page without script, and by the report that stands alone. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 640, 300
LEFT, RIGHT, TOP, BOTTOM = 52, 12, 10, 40
COLORS = 6
CAUSES = (
    *("generate", "train", "score", "environment", "sync_pause", "evaluation", "checkpoint", "wait_buffer_empty", "wait_buffer_full"),
    *("wait_depth_bound", "wait_sync", "straggler_tail", "paused", "idle", "startup", "down"),
)
CAUSE_WORDS = {
    "wait_buffer_empty": "waits: buffer empty",
    "wait_buffer_full": "waits: buffer full",
    "wait_depth_bound": "waits: dispatch bound",
    "wait_sync": "waits: weight swap",
    "startup": "start-up",
}


@dataclass(frozen=True)
class Line:
    """One contender's curve: its polyline, its band as a polygon ("" with one seed), colour 1..6 and dash 0..3."""

    label: str
    points: str
    band: str
    color: int
    dash: int
    last: str
    dot: tuple[float, float] | None = None


@dataclass(frozen=True)
class Drawing:
    """A chart: ticks as (position, text)."""

    title: str
    x_title: str
    lines: list[Line]
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    width: int = WIDTH
    height: int = HEIGHT

    @property
    def left(self) -> int:
        return LEFT

    @property
    def right(self) -> int:
        return self.width - RIGHT

    @property
    def bottom(self) -> int:
        return self.height - BOTTOM

    @property
    def words(self) -> str:
        """What it shows, for those who do not see it."""
        told = "; ".join(f"{line.label} ends at {line.last}" for line in self.lines if line.last)
        return f"{self.title} over {self.x_title}. {told or 'No data yet'}."


def chart(title: str, x_title: str, series: Sequence[Mapping[str, Any]]) -> Drawing:
    """`series`: results()["curves"][...][axis]."""
    xs = [x for one in series for x in one["x"]]
    ys = [y for one in series for key in ("mean", "lo", "hi") for y in one[key] if y is not None]
    if not xs or not ys:
        return Drawing(title, x_title, [], [], [])
    x_low, x_high = 0.0, max(xs) or 1.0
    y_low, y_high = min(0.0, *ys), max(ys)
    y_high = y_high if y_high > y_low else y_low + 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (WIDTH - LEFT - RIGHT) * (x - x_low) / (x_high - x_low)
        return across, TOP + (HEIGHT - TOP - BOTTOM) * (1 - (y - y_low) / (y_high - y_low))

    lines = [_line(number, one, place) for number, one in enumerate(series)]
    x_ticks = [(place(x, 0)[0], _short(x)) for x in ticks(x_low, x_high)]
    y_ticks = [(place(0, y)[1], _short(y)) for y in ticks(y_low, y_high)]
    return Drawing(title, x_title, lines, x_ticks, y_ticks)


def _line(number: int, one: Mapping[str, Any], place: Any) -> Line:
    middle = [place(x, y) for x, y in zip(one["x"], one["mean"], strict=True)]
    high = [place(x, y) for x, y in zip(one["x"], one["hi"], strict=True) if y is not None]
    low = [place(x, y) for x, y in zip(one["x"], one["lo"], strict=True) if y is not None]
    band = _points([*high, *reversed(low)]) if len(high) > 1 else ""
    last = _short(one["mean"][-1]) if one["mean"] else ""
    dot = middle[0] if len(middle) == 1 else None
    return Line(one["label"], _points(middle), band, number % COLORS + 1, number // COLORS % 4, last, dot)


def ticks(low: float, high: float, most: int = 5) -> list[float]:
    """Round numbers within the range, at most about so many."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    raw = span / most
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= raw * 0.999)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)]


def bars(shares: Mapping[str, float]) -> list[dict[str, Any]]:
    """Pieces of a bar of width 100, in the causes' order: {cause, words, x, width, share}."""
    known = [cause for cause in CAUSES if cause in shares] + [cause for cause in shares if cause not in CAUSES]
    found: list[dict[str, Any]] = []
    x = 0.0
    for cause in known:
        share = shares[cause]
        shown = cause if cause in CAUSES else "other"
        words = CAUSE_WORDS.get(cause, cause.replace("_", " "))
        found.append({"cause": shown, "words": words, "x": round(x, 3), "width": round(100 * share, 3), "share": f"{100 * share:.1f} %"})
        x += 100 * share
    return found


def _points(pairs: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in pairs)


def _short(value: float) -> str:
    if value != 0 and (abs(value) < 0.001 or abs(value) >= 1e6):
        return f"{value:.1e}"
    return f"{value:,.3g}" if abs(value) < 1000 else f"{value:,.0f}"
