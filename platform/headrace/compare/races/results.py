"""The result of a race from the facts of its entries: figures at equal wall time and at equal samples, verdicts, curves. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from headrace.compare.races.curves import Curve, band, common_end, smooth
from headrace.compare.races.facts import AXES, KINDS, Facts
from headrace.compare.races.verdict import Ranking, interval, rank

AXIS_WORDS = {"wall_s": ("equal wall time", "s"), "samples": ("equal samples", "samples")}
CURVE_WORDS = {"heldout": "Held-out reward", "train": "Train reward"}
SMOOTH_OVER = 5


@dataclass(frozen=True)
class Figure:
    """One row of the table. better: "high", "low", or "" where neither is. judged: it gets a verdict."""

    key: str
    title: str
    unit: str
    better: str
    text: str
    judged: bool = False


FIGURES: tuple[Figure, ...] = (
    Figure("samples_per_s", "Samples a second", "1/s", "high", "Samples trained, over wall time without start-up.", judged=True),
    Figure("tokens_per_s", "Tokens a second", "1/s", "high", "Completion tokens trained, over the same time."),
    Figure(
        "overlap",
        "Overlap",
        "share",
        "",
        "Of the time without start-up, in which engines generated while the trainer trained; untold, the least.",
    ),
    Figure("lag_mean", "Lag, mean", "versions", "low", "Over trained tokens: versions between sampling and training."),
    Figure("lag_p95", "Lag, 95 % within", "versions", "low", "95 % of the trained tokens were at most so old."),
    Figure("dropped_share", "Dropped", "share", "low", "Samples thrown away, of those dispatched."),
    Figure("sync_pause_s", "Pause of a sync", "s", "low", "Mean extra gap in decoding at a weight change."),
    Figure("sync_share", "Time in sync pauses", "share", "low", "All pauses together, of the time without start-up."),
    Figure("startup_s", "Start-up", "s", "low", "From the start to the first dispatch: loading models, first weights."),
    Figure("wall_s", "Wall time", "s", "", "From the start of the entry to its end."),
    Figure("samples", "Samples trained", "samples", "", "In the whole entry."),
    Figure("tokens", "Tokens trained", "tokens", "", "In the whole entry."),
    Figure("device_hours", "Device-hours", "h", "low", "Engines and trainer ranks, times wall time."),
)


@dataclass(frozen=True)
class Finished:
    """An entry that counts: contender's label, seed, and what its run shows."""

    label: str
    seed: int
    facts: Facts


def results(labels: Sequence[str], finished: Sequence[Finished], *, price: float | None = None, currency: str = "") -> dict[str, Any]:
    """Everything the page, the report and the table of a race show, as JSON. `price`: of a device-hour."""
    by_label: dict[str, dict[int, Facts]] = {label: {} for label in labels}
    for entry in finished:
        by_label[entry.label][entry.seed] = entry.facts
    ends = {axis: _ends(finished, axis) for axis in AXES}
    headlines = [_headline(curve, axis, by_label, ends[axis][curve]) for curve in CURVE_WORDS for axis in AXES]
    rows = [_row(figure, by_label) for figure in _figures(price, currency)]
    return {
        "finished": len(finished),
        "ends": ends,
        "headlines": headlines,
        "rows": rows,
        "curves": {curve: {axis: _bands(curve, axis, by_label, ends[axis][curve]) for axis in AXES} for curve in CURVE_WORDS},
        "time": {label: _time(seeds) for label, seeds in by_label.items() if seeds},
    }


def _figures(price: float | None, currency: str) -> list[Figure]:
    if price is None:
        return list(FIGURES)
    return [*FIGURES, Figure("cost", "Cost", currency, "low", f"Device-hours at {price:g} {currency} each.")]


def _ends(finished: Sequence[Finished], axis: str) -> dict[str, float | None]:
    """How far the slowest entry reaches, for each kind of curve. Entries without a point of it are left out of that one."""
    found = {}
    for curve in CURVE_WORDS:
        told = [entry.facts.curves[curve][axis] for entry in finished]
        found[curve] = common_end([one for one in told if one.end is not None])
    return found


def _headline(curve: str, axis: str, by_label: Mapping[str, Mapping[int, Facts]], end: float | None) -> dict[str, Any]:
    title = f"{CURVE_WORDS[curve]} at {AXIS_WORDS[axis][0]}"
    values: dict[str, dict[int, float]] = {label: {} for label in by_label}
    if end is not None:
        for label, seeds in by_label.items():
            for seed, facts in seeds.items():
                one = facts.curves[curve][axis]
                value = one.mean_before(end) if curve == "train" else one.at(end)
                if value is not None:
                    values[label][seed] = value
    how = "the mean over the last tenth of the range" if curve == "train" else "interpolated between two tests"
    text = f"At the end of the slowest entry; {how}."
    ranking = rank(values)
    return {
        "key": f"{curve}@{axis}",
        "title": title,
        "unit": "",
        "better": "high",
        "text": text,
        "at": end,
        "at_unit": AXIS_WORDS[axis][1],
        "cells": _cells(values),
        "ranking": _ranking(ranking),
    }


def _row(figure: Figure, by_label: Mapping[str, Mapping[int, Facts]]) -> dict[str, Any]:
    values: dict[str, dict[int, float]] = {label: {} for label in by_label}
    for label, seeds in by_label.items():
        for seed, facts in seeds.items():
            value = facts.figures.get(figure.key)
            if value is not None:
                values[label][seed] = value
    ranking = rank(values, higher_is_better=figure.better != "low") if figure.judged else None
    return {**asdict(figure), "cells": _cells(values), "ranking": _ranking(ranking)}


def with_cost(facts: Facts, price: float) -> Facts:
    """The same facts with `cost` among the figures: device-hours times the price of one."""
    hours = facts.figures.get("device_hours")
    figures = {**facts.figures, "cost": hours * price if hours is not None else None}
    return Facts(facts.curves, figures, facts.time, facts.provenance)


def _cells(values: Mapping[str, Mapping[int, float]]) -> dict[str, dict[str, Any] | None]:
    found: dict[str, dict[str, Any] | None] = {}
    for label, seeds in values.items():
        told = interval(list(seeds.values()))
        found[label] = {**asdict(told), "half": told.half, "seeds": {str(seed): value for seed, value in seeds.items()}} if told else None
    return found


def _ranking(ranking: Ranking | None) -> dict[str, Any] | None:
    if ranking is None:
        return None
    pairs = [{**asdict(item), "significant": item.significant} for item in ranking.comparisons]
    return {"order": ranking.order, "winner": ranking.winner, "tied": ranking.tied, "words": ranking.words, "comparisons": pairs}


def _bands(curve: str, axis: str, by_label: Mapping[str, Mapping[int, Facts]], end: float | None) -> list[dict[str, Any]]:
    found = []
    for label, seeds in by_label.items():
        curves: dict[int, Curve] = {seed: facts.curves[curve][axis] for seed, facts in seeds.items()}
        if curve == "train":
            curves = {seed: smooth(one, SMOOTH_OVER) for seed, one in curves.items()}
        curves = {seed: one for seed, one in curves.items() if one.end is not None}
        found.append({"label": label, **band(curves, end)})
    return found


def _time(seeds: Mapping[int, Facts]) -> dict[str, dict[str, float]]:
    """{kind of lane: {cause: share}}, over all seeds."""
    found: dict[str, dict[str, float]] = {}
    for kind in KINDS:
        total: dict[str, float] = {}
        for facts in seeds.values():
            for cause, seconds in facts.time.get(kind, {}).items():
                total[cause] = total.get(cause, 0.0) + seconds
        whole = sum(total.values())
        if whole > 0:
            found[kind] = {cause: seconds / whole for cause, seconds in sorted(total.items(), key=lambda item: -item[1]) if seconds > 0}
    return found
