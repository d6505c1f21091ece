"""Rules over series and states, looked at when something came in: after the commit of a batch, after a move of a run.

Cheap where nothing is to be watched: a team's rules are kept in memory for a few seconds. What holds is read from the end of the stored
series, so several web processes, restarts and edited rules need no state of their own.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from django.utils import timezone

from headrace.alerts import firing
from headrace.alerts.kinds import OVER_SERIES, NonFinite, Options, Point, StateChange, Threshold, parse, points_needed, watch_for
from headrace.alerts.models import Alert, AlertRule
from headrace.experiments.models import Attempt, Run, RunTransition
from headrace.experiments.problems import BadInput
from headrace.telemetry.columns import Rows, concatenate, unpack
from headrace.telemetry.models import SeriesChunk

KEPT_S = 5.0
MOST_SEEN = 200  # points of one look of a rule over seconds
OLD_NEWS_S = 900.0  # a backlog that comes after an outage tells of then; alerts speak of now
Rule = tuple[AlertRule, Options]

_kept: dict[int, tuple[float, list[Rule]]] = {}


def on_batch(attempt: Attempt, points: Mapping[str, Rows], last_t: float) -> None:
    """Called after the commit of new events, never for a replayed spool."""
    run = attempt.run
    rules = [(rule, options) for rule, options in rules_for(run) if rule.kind in OVER_SERIES]
    if not rules or time.time() - last_t > OLD_NEWS_S:
        return
    opened: dict[int | None, Alert] | None = None
    for rule, options in rules:
        found, looked = _look(attempt, options, points)
        if not looked:
            continue
        if opened is None:
            opened = firing.open_alerts(run)
        alert = opened.get(rule.pk)
        if found is None and alert is not None:
            firing.resolve(alert, rule)
        elif found is not None and alert is None:  # what is open already costs a read a batch, never a write
            firing.fire(rule, run, found)


def on_move(run: Run, transition: RunTransition) -> None:
    """Called after the commit of a transition."""
    for rule, options in rules_for(run):
        if isinstance(options, StateChange) and transition.to_state in options.states:
            cause = transition.cause.get("message", "") if isinstance(transition.cause, dict) else ""
            words = f"{run.name} {_BECAME.get(transition.to_state, f'is {transition.to_state}')}"
            firing.fire(rule, run, firing.Found(words, transition.at.timestamp(), _step(run), detail=str(cause)))
    if run.is_over:
        for alert in firing.open_alerts(run).values():
            firing.resolve(alert, alert.rule)


_BECAME = {"failed": "failed", "lost": "is lost", "succeeded": "has succeeded", "cancelled": "was cancelled"}


def rules_for(run: Run) -> list[Rule]:
    """The enabled rules whose scope holds this run."""
    return [(rule, options) for rule, options in _rules_of(run.team_id) if in_scope(rule, run)]


def in_scope(rule: AlertRule, run: Run) -> bool:
    """One run, or the team's runs of a preset and with a tag where those are given."""
    if rule.team_id != run.team_id or (rule.run_id is not None and rule.run_id != run.pk):
        return False
    if rule.preset and run.preset.partition("@")[0] != rule.preset:
        return False
    return not rule.tag or rule.tag in run.tags


def forget(team_id: int) -> None:
    """Called by services: rules have changed."""
    _kept.pop(team_id, None)


def tail(attempt: Attempt, name: str, wanted: int) -> list[Point]:
    """The last `wanted` points of a series of one attempt, oldest first."""
    parts: list[Rows] = []
    held = 0
    for rows in _newest(attempt, name):
        parts.append(rows)
        held += len(rows)
        if held >= wanted:
            break
    rows = concatenate(parts[::-1])
    return _points(rows.slice(max(0, len(rows) - wanted), len(rows)))


def stretch(attempt: Attempt, options: Threshold) -> list[Point]:
    """What a rule over seconds has to see, however many points a second brings: the last one within its bounds and those since,
    thinned. Reads back no further than the rule's seconds."""
    parts: list[Rows] = []
    for rows in _newest(attempt, options.metric):
        beyond = rows.first > options.value if options.side == "above" else rows.first < options.value
        within = np.flatnonzero(np.isfinite(rows.first) & ~beyond)
        parts.append(rows.slice(int(within[-1]), len(rows)) if len(within) else rows)
        if len(within) or parts[0].t1[-1] - rows.t0[0] > options.seconds:
            break
    rows = concatenate(parts[::-1])
    rows = rows.where(np.isfinite(rows.first))
    if len(rows) > MOST_SEEN:
        kept = np.zeros(len(rows), dtype=bool)
        kept[[1, *np.linspace(0, len(rows) - 1, MOST_SEEN).astype(int)]] = True
        rows = rows.where(kept)
    return _points(rows)


def _newest(attempt: Attempt, name: str) -> Iterator[Rows]:
    """Chunks of a series' points, the newest first."""
    chunks = SeriesChunk.objects.for_team(attempt.team_id).filter(series__attempt=attempt, series__name=name, level=0).order_by("-index")
    for body in chunks.values_list("body", flat=True).iterator(chunk_size=16):
        yield unpack(body)


def _points(rows: Rows) -> list[Point]:
    columns = zip(rows.t0.tolist(), rows.step0.tolist(), rows.first.tolist(), strict=True)
    return [Point(t, step, value) for t, step, value in columns]


def _look(attempt: Attempt, options: Options, points: Mapping[str, Rows]) -> tuple[firing.Found | None, bool]:
    """(what was found, whether this batch had anything to say about it)."""
    if isinstance(options, NonFinite):
        names = [options.metric] if options.metric else list(points)
        for name in names:
            rows = points.get(name)
            if rows is not None and rows.nonfinite.any():
                place = int(rows.nonfinite.argmax())
                title = f"{name} is {rows.first[place]}"
                return firing.Found(title, float(rows.t0[place]), int(rows.step0[place])), True
        return None, False
    metric = str(getattr(options, "metric", ""))
    if metric not in points:
        return None, False
    watch = watch_for(options)
    last: Point | None = None
    holds = False
    if isinstance(options, Threshold) and options.seconds > 0:
        seen = stretch(attempt, options)
    else:
        seen = tail(attempt, metric, points_needed(options))
    for point in seen:
        holds, last = watch.see(point), point
    if not holds or last is None:
        return None, True
    return firing.Found(watch.words(), last.t, last.step, last.value if math.isfinite(last.value) else None), True


def _rules_of(team_id: int) -> list[Rule]:
    now = time.monotonic()
    known = _kept.get(team_id)
    if known is not None and now - known[0] < KEPT_S:
        return known[1]
    rules: list[Rule] = []
    for rule in AlertRule.objects.for_team(team_id).filter(enabled=True).prefetch_related("channels"):
        options = _options(rule)
        if options is not None:
            rules.append((rule, options))
    _kept[team_id] = (now, rules)
    return rules


def _options(rule: AlertRule) -> Options | None:
    """None for a rule of a kind that this version does not know: it is shown as such on its page and watches nothing."""
    try:
        return parse(rule.kind, rule.options)
    except BadInput:
        return None


def _step(run: Run) -> int | None:
    steps: Any = run.summary.get("steps") if isinstance(run.summary, dict) else None
    return int(steps) if isinstance(steps, int) else None


def now_t() -> float:
    """Unix seconds of the server."""
    return timezone.now().timestamp()
