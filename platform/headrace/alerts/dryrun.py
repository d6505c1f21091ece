"""What a rule would have told about a run that has a history: the test button of rules. Reads only."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

from headrace.alerts import watch
from headrace.alerts.kinds import Collapse, NonFinite, Options, Queue, Stall, StateChange, Threshold, firings, parse, second_of
from headrace.alerts.models import AlertRule
from headrace.experiments.models import Attempt, Run, RunTransition
from headrace.experiments.states import RunState
from headrace.telemetry.models import EventBatch, Series

MOST_POINTS = 200_000
MOST_FOUND = 100
MOST_NAMES = 300


@dataclass(frozen=True, slots=True)
class Would:
    """One time it would have told."""

    t: float
    step: int | None
    words: str

    @property
    def second(self) -> str:
        """`?t=` of the run's page."""
        return second_of(self.t)


def dry_run(rule: AlertRule, run: Run) -> dict[str, Any]:
    """{found: [Would], looked: words on what was read, scope: whether the rule would watch this run at all}."""
    options = parse(rule.kind, rule.options)
    found, looked = _search(options, run, float(rule.cooldown_s))
    found.sort(key=lambda one: one.t)
    steps = [one.step for one in found if one.step is not None]
    return {
        "found": found[:MOST_FOUND],
        "more": max(0, len(found) - MOST_FOUND),
        "steps": ", ".join(map(str, steps[:20])),
        "looked": looked,
        "in_scope": watch.in_scope(rule, run),
    }


def _search(options: Options, run: Run, cooldown_s: float) -> tuple[list[Would], str]:
    attempts = list(Attempt.objects.for_team(run.team_id).filter(run=run).order_by("number"))
    if isinstance(options, StateChange):
        moves = RunTransition.objects.for_team(run.team_id).filter(run=run, to_state__in=options.states).order_by("at")
        return [Would(row.at.timestamp(), None, f"it became {row.to_state}") for row in moves], "every change of its state"
    if isinstance(options, Queue):
        return _queues(run, options), "every time it waited"
    if isinstance(options, Stall):
        return _stalls(attempts, options), "the gaps between " + ("steps" if options.of == "step" else "batches of events")
    if isinstance(options, NonFinite) and not options.metric:
        names = Series.objects.for_team(run.team_id).filter(attempt__run=run).values_list("name", flat=True).distinct()
        every = sorted(name for name in names if not name.startswith(("lag/tokens/", "span/")))[:MOST_NAMES]
    else:
        every = [str(getattr(options, "metric", ""))]
    found: list[Would] = []
    read = 0
    for attempt in attempts:
        for name in every:
            points = watch.tail(attempt, name, MOST_POINTS)
            read += len(points)
            label = f"{name}: " if isinstance(options, NonFinite) else ""
            found += [Would(point.t, point.step, label + words) for point, words in firings(options, points, cooldown_s)]
    what = every[0] if len(every) == 1 and isinstance(options, Threshold | Collapse | NonFinite) else f"{len(every)} metrics"
    return found, f"{read} points of {what}"


def _queues(run: Run, options: Queue) -> list[Would]:
    waiting = (RunState.QUEUED, RunState.LAUNCHING)
    since: float | None = run.created_at.timestamp()
    found = []
    for row in RunTransition.objects.for_team(run.team_id).filter(run=run).order_by("at", "pk"):
        at = row.at.timestamp()
        if since is not None and at - since >= options.seconds:
            found.append(Would(since + options.seconds, None, f"it was {row.from_state} for {at - since:.0f} s"))
        since = at if row.to_state in waiting else None
    return found


def _stalls(attempts: list[Attempt], options: Stall) -> list[Would]:
    found = []
    for attempt in attempts:
        if options.of == "step":
            told = [(point.t, point.step) for point in watch.tail(attempt, "reward/mean", MOST_POINTS)]
        else:
            rows = EventBatch.objects.for_team(attempt.team_id).filter(attempt=attempt).order_by("first_seq").values_list("t1", flat=True)
            told = [(t, -1) for t in rows]
        for (before, step), (after, _) in itertools.pairwise(told):
            if after - before >= options.seconds:
                found.append(Would(before + options.seconds, step if step >= 0 else None, f"nothing for {after - before:.0f} s"))
    return found
