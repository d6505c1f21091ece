"""Rows of the run list: what is shown of a run at a glance, read with a fixed number of queries however many rows there are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from django.db.models import Q, QuerySet

from headrace.experiments.models import Run
from headrace.experiments.selectors import runs_for
from headrace.experiments.states import RunState
from headrace.teams.models import Team
from headrace.telemetry import series
from headrace.telemetry.models import Series

PAGE = 50
REWARD = "reward/mean"
SPARK_WIDTH, SPARK_HEIGHT, SPARK_POINTS = 96, 24, 48


def matching(user: Any, team: Team | None, *, state: str = "", text: str = "") -> QuerySet[Run]:
    """The team's runs that fit the filters, newest first."""
    runs = runs_for(user, team)
    if state in RunState.values:
        runs = runs.filter(state=state)
    if text:
        words = (
            Q(name__icontains=text) | Q(preset__icontains=text) | Q(public_id=text) | Q(config__data__environment__dataset__icontains=text)
        )
        runs = runs.filter(words)
    return runs


def page_number(text: str) -> int:
    """What ?page= asks for; anything else is the first page."""
    return max(1, int(text)) if text.isascii() and text.isdigit() and len(text) <= 6 else 1


def rows(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """What the list shows of these runs (of one team)."""
    if not runs:
        return []
    found = Series.objects.for_team(runs[0].team_id).filter(attempt__run__in=runs, name=REWARD)
    latest = {item.attempt.run_id: item for item in found.select_related("attempt").order_by("attempt__number")}
    curves = series.read_runs([run for run in runs if run.pk in latest], REWARD, buckets=SPARK_POINTS)
    return [_row(run, latest.get(run.pk), curves.get(run.pk)) for run in runs]


def _row(run: Run, latest: Series | None, curve: dict[str, Any] | None) -> dict[str, Any]:
    data = run.config.data
    return {
        "id": run.public_id,
        "name": run.name,
        "state": run.state,
        "task": data["environment"]["dataset"],
        "preset": run.preset.partition("@")[0],
        "step": latest.last_step if latest else None,
        "steps_total": data["budget"]["steps"],
        "reward": latest.last_value if latest else None,
        "spark": sparkline(curve),
        "started": run.created_at,
        "by": maker(run),
    }


def maker(run: Run) -> str:
    """Who started it: a person, or the part of Headrace that did."""
    return str(run.created_by.get_short_name() if run.created_by else Run.Source(run.source).label)


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
