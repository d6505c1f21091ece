"""Rows of the runs table: what is shown of a run at a glance, read with a fixed number of queries however many rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from headrace.compare import fields
from headrace.compare.fields import RunField
from headrace.compare.races.plan import STEPS_WITHOUT_BOUND
from headrace.compare.values import maker as maker
from headrace.compare.values import values
from headrace.experiments.models import Run
from headrace.experiments.text import duration
from headrace.telemetry import series

PAGE = 50
REWARD = "reward/mean"
SPARK_WIDTH, SPARK_HEIGHT, SPARK_POINTS = 96, 24, 48
# What is shown beside the name unless the link names other columns.
COLUMNS = ("state", "task", "preset", "step", "reward", "created", "by")
MOST_COLUMNS = 20


def page_number(text: str) -> int:
    """What ?page= asks for; anything else is the first page."""
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) <= 6 else 1


def rows(runs: Sequence[Run], columns: Sequence[RunField] | None = None) -> list[dict[str, Any]]:
    """What the table shows of these runs (of one team), cell by cell."""
    if not runs:
        return []
    shown = list(columns) if columns is not None else [fields.OWN[key] for key in COLUMNS]
    found = values(runs, shown)
    keys = {item.key for item in shown}
    rewarded = [run for run in runs if found[run.pk].get("reward") is not None]
    curves = series.read_runs(rewarded, REWARD, buckets=SPARK_POINTS) if "reward" in keys else {}
    return [_row(run, shown, found[run.pk], curves.get(run.pk)) for run in runs]


def _row(run: Run, shown: list[RunField], found: dict[str, Any], curve: dict[str, Any] | None) -> dict[str, Any]:
    return {
        "id": run.public_id,
        "name": run.name,
        "state": run.state,
        "tags": run.tags,
        "archived": run.archived_at is not None,
        "steps_total": _bound(run),
        "step": found.get("step"),
        "reward": found.get("reward"),
        "spark": sparkline(curve),
        "cells": [_cell(item, found[item.key]) for item in shown],
    }


def _bound(run: Run) -> int | None:
    """The steps that end the run, as last asked of it; None where another bound of the budget does, as in a race."""
    steps = run.control.get("steps") or run.config.data.get("budget", {}).get("steps")
    return steps if isinstance(steps, int) and steps < STEPS_WITHOUT_BOUND else None


def _cell(item: RunField, value: Any) -> dict[str, Any]:
    """`special` names the columns that are drawn; the rest is text."""
    special = item.key if item.key in ("state", "step", "reward") else item.kind if item.kind == "time" else ""
    return {"key": item.key, "title": item.title, "kind": item.kind, "special": special, "value": value, "text": text_of(item, value)}


def text_of(item: RunField, value: Any) -> str:
    """A value in words; "" where there is none."""
    if value is None or value == []:
        return ""
    if item.kind == "duration":
        return duration(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e15 else f"{value:.3e}"
    return ", ".join(str(part) for part in value) if isinstance(value, list) else str(value)


def sparkline(columns: dict[str, Any] | None) -> str:
    """Points of an SVG polyline over a run's reward, without what a later attempt trained again; "" below two finite values."""
    if not columns:
        return ""
    told = zip(columns["step"], columns["value"], columns["faint"], strict=True)
    points = [(step, value) for step, value, faint in told if value is not None and not faint]
    if len(points) < 2:
        return ""
    low, high = min(0.0, min(value for _, value in points)), max(1e-9, max(value for _, value in points))
    first, last = points[0][0], points[-1][0]
    span, height = max(1, last - first), high - low
    placed = ((SPARK_WIDTH * (step - first) / span, SPARK_HEIGHT * (1 - (value - low) / height)) for step, value in points)
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in placed)
