"""What the comparison page knows of its runs beside their curves: every field's value, and where their configs differ."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from headrace.compare import fields
from headrace.compare.fields import RunField
from headrace.compare.values import values
from headrace.experiments import forms
from headrace.experiments.models import Run
from headrace.schema_form import fields_of, lookup, written
from headrace.telemetry.derive import LAG_PREFIX, SPAN_PREFIX
from headrace.telemetry.models import Series

MOST_METRICS = 300
RESULTS = ("state", "step", "reward", "heldout", "throughput/samples_per_s", "duration")
MOST_VARIED = 4
# Where two runs that differ here do not answer the same question, so that their rewards are not to be set side by side.
QUESTION = ("environment", "evaluation.prompts", "evaluation.temperature", "sampling.max_new_tokens", "rewards.on_truncated")
_LEFT_OUT = {"id", "note", "name", "archived", "priority"}


def metric_names(runs: Sequence[Run]) -> list[str]:
    """Every series name that any of the runs has, in order; at most MOST_METRICS."""
    if not runs:
        return []
    rows = Series.objects.for_team(runs[0].team_id).filter(attempt__run__in=runs).exclude(name__startswith=LAG_PREFIX)
    names = rows.exclude(name__startswith=SPAN_PREFIX).values_list("name", flat=True).distinct()
    return sorted(names)[:MOST_METRICS]


def all_fields(runs: Sequence[Run]) -> list[RunField]:
    """The fields in which these runs have something: their own words, settings (options of a dataset one by one), metrics."""
    known = fields.config_fields()
    options = sorted({key for run in runs for key in _options(run)})
    own = [item for key, item in fields.OWN.items() if key not in _LEFT_OUT]
    dynamic = [fields.resolve(f"config.environment.options.{key}") for key in options if key.replace("_", "").replace("-", "").isalnum()]
    catalogue = fields.metric_fields()
    metrics = [catalogue.get(name) or RunField(name, name, "number", "metric", name) for name in metric_names(runs)]
    return [*own, *metrics, *known.values(), *dynamic]


def _options(run: Run) -> dict[str, Any]:
    found = lookup(run.config.data, "environment.options")
    return found if isinstance(found, dict) else {}


def board(runs: Sequence[Run]) -> dict[str, Any]:
    """{fields: [...], runs: [{id, name, state, values}]}: what pickers, parallel coordinates and scatter draw from."""
    items = all_fields(runs)
    told = values(runs, items)
    shown = []
    for item in items:
        mine = [told[run.pk][item.key] for run in runs]
        if any(value not in (None, "", []) for value in mine):
            shown.append((item, len({_comparable(value) for value in mine}) > 1))
    return {
        "fields": [{**item.as_dict(), "varies": varies} for item, varies in shown],
        "runs": [
            {
                "id": run.public_id,
                "name": run.name,
                "state": run.state,
                "values": {item.key: _json(told[run.pk][item.key]) for item, _ in shown},
            }
            for run in runs
        ],
    }


def varied(runs: Sequence[Run]) -> list[RunField]:
    """The settings in which the runs differ, most telling first: fewest values first, but more than one."""
    counted = []
    for place, item in enumerate(fields.config_fields().values()):
        different = len({_comparable(lookup(run.config.data, item.path)) for run in runs})
        if different > 1 and item.path not in ("seed", "preset") and item.kind != "json":
            counted.append((different, place, item))
    return [item for _, _, item in sorted(counted, key=lambda row: row[:2])]


def default_columns(runs: Sequence[Run]) -> list[str]:
    """What the table of results shows unless the link says otherwise: results, and the first settings that differ."""
    have = set(metric_names(runs))
    told = [key for key in RESULTS if fields.OWN.get(key) is not None or key in have]
    return [*told, *(item.key for item in varied(runs)[:MOST_VARIED])]


def config_diff(runs: Sequence[Run], *, every: bool = False) -> list[dict[str, Any]]:
    """Sections of the config with the rows in which the runs differ (`every`: all rows). A cell is marked where it is not the first
    run's value."""
    known = fields_of(forms.schema())
    titles = {block.name: block.title for section in forms.sections() for block in section.blocks}
    paths = dict.fromkeys([*known, *(path for run in runs for path in _leaves(run.config.data, known))])
    found: dict[str, dict[str, Any]] = {}
    for path in paths:
        if path in ("schema_version",) or (path == "environment.options" and any(_options(run) for run in runs)):
            continue
        cells = [lookup(run.config.data, path) for run in runs]
        differs = len({_comparable(value) for value in cells}) > 1
        if not (differs or every):
            continue
        item = known.get(path)
        name = path.partition(".")[0] if "." in path else "run"
        block = found.setdefault(name, {"name": name, "title": titles.get(name, name.replace("_", " ").capitalize()), "rows": []})
        first = _comparable(cells[0])
        block["rows"].append(
            {
                "path": path,
                "title": item.title if item else path.rpartition(".")[2].replace("_", " "),
                "help": item.help if item else "",
                "unit": item.unit if item else "",
                "differs": differs,
                "cells": [{"text": _text(value), "differs": _comparable(value) != first} for value in cells],
            }
        )
    return list(found.values())


def not_comparable(runs: Sequence[Run]) -> list[str]:
    """Settings that make the question, in which the runs differ: rewards of such runs are not comparable."""
    wrong = []
    for path in QUESTION:
        parts = sorted({key for run in runs for key in (lookup(run.config.data, path) or {})}) if path == "environment" else []
        for full in [f"{path}.{part}" for part in parts] or [path]:
            if len({_comparable(lookup(run.config.data, full)) for run in runs}) > 1:
                wrong.append(full)
    return wrong


def _leaves(data: dict[str, Any], known: Iterable[str], prefix: str = "") -> list[str]:
    """Paths of values in this config that the schema of today does not name: options of a dataset, fields of an older schema."""
    found = []
    for key, value in data.items():
        path = f"{prefix}{key}"
        if path in known and path != "environment.options":
            continue
        if isinstance(value, dict):
            found += _leaves(value, known, f"{path}.")
        else:
            found.append(path)
    return found


def _comparable(value: Any) -> str:
    # PostgreSQL hands the keys of an object back in an order of its own: what is the same must read the same
    return (
        json.dumps(value, sort_keys=True)
        if isinstance(value, list | dict)
        else repr(float(value))
        if isinstance(value, int | float)
        else str(value)
    )


def _text(value: Any) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list) and all(isinstance(part, str | int | float) for part in value):
        return ", ".join(str(part) for part in value) or "none"
    return " ".join(written(value).split()) if isinstance(value, list | dict) else str(value)


def _json(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.timestamp()
    return ", ".join(str(part) for part in value) if isinstance(value, list) else value
