"""What runs have in given fields, read with a fixed number of queries however many runs there are."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.utils import timezone

from headrace.compare.fields import RunField
from headrace.compare.where import CONFIG_OWN
from headrace.experiments.models import Attempt, Run
from headrace.schema_form import lookup, written
from headrace.telemetry.models import Series


def values(runs: Sequence[Run], wanted: Iterable[RunField]) -> dict[int, dict[str, Any]]:
    """{run key: {field key: value}} for runs of one team. A value is text, a number, a boolean, a list of texts, a datetime (`created`),
    seconds (`duration`), or None: nothing there."""
    items = list(wanted)
    if not runs:
        return {}
    latest = newest_series(runs, {item.path for item in items if item.source == "metric"})
    lasting = durations(runs) if any(item.key == "duration" for item in items) else {}
    return {run.pk: {item.key: _value(run, item, latest[run.pk], lasting) for item in items} for run in runs}


def newest_series(runs: Sequence[Run], names: Iterable[str]) -> dict[int, dict[str, Series]]:
    """{run key: {series name: the one of the newest attempt that has it}}."""
    found: dict[int, dict[str, Series]] = defaultdict(dict)
    wanted = list(names)
    if wanted:
        rows = Series.objects.for_team(runs[0].team_id).filter(attempt__run__in=runs, name__in=wanted)
        for row in rows.select_related("attempt").order_by("attempt__number"):
            found[row.attempt.run_id][row.name] = row
    return found


def durations(runs: Sequence[Run]) -> dict[int, float]:
    """{run key: seconds from the first attempt's start to the last one's end, or to now}; runs that never started are left out."""
    began: dict[int, datetime] = {}
    ended: dict[int, datetime] = {}
    rows = Attempt.objects.for_team(runs[0].team_id).filter(run__in=runs, started_at__isnull=False)
    for run, start, end in rows.values_list("run_id", "started_at", "ended_at"):
        began[run] = min(began.get(run, start), start)
        if end is not None:
            ended[run] = max(ended.get(run, end), end)
    now = timezone.now()
    ends = {run.pk: ended.get(run.pk, run.state_since) if run.is_over else now for run in runs}
    return {run: max(0.0, (ends[run] - start).total_seconds()) for run, start in began.items()}


def maker(run: Run) -> str:
    """Who started it: a person, or the part of Headrace that did."""
    return str(run.created_by.get_short_name() if run.created_by else Run.Source(run.source).label)


def _value(run: Run, item: RunField, latest: dict[str, Series], lasting: dict[int, float]) -> Any:
    if item.source == "metric":
        row = latest.get(item.path)
        return None if row is None else row.last_step if item.key == "step" else row.last_value
    if item.source == "config":
        return _setting(lookup(run.config.data, item.path))
    if item.key in CONFIG_OWN:
        return lookup(run.config.data, CONFIG_OWN[item.key])
    if item.key == "duration":
        return lasting.get(run.pk)
    return _OWN[item.key](run)


def _setting(value: Any) -> Any:
    """Objects and lists of objects as one line of JSON; lists of words stay lists."""
    if isinstance(value, dict) or (isinstance(value, list) and any(isinstance(part, dict | list) for part in value)):
        return " ".join(written(value).split())
    return value


_OWN: dict[str, Any] = {
    "name": lambda run: run.name,
    "state": lambda run: run.state,
    "preset": lambda run: run.preset.partition("@")[0] or None,
    "seed": lambda run: run.seed,
    "tag": lambda run: list(run.tags),
    "by": maker,
    "project": lambda run: run.project.name,
    "experiment": lambda run: run.experiment.name if run.experiment else None,
    "group": lambda run: run.group or None,
    "source": lambda run: run.source,
    "id": lambda run: run.public_id,
    "note": lambda run: run.note or None,
    "created": lambda run: run.created_at,
    "priority": lambda run: run.priority,
    "archived": lambda run: run.archived_at is not None,
}
