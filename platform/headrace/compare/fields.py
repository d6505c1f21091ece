"""What can be asked of a run: its own words, every setting of its config, the last value of every metric. Names, kinds, suggestions."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from functools import lru_cache
from typing import Any, Literal

from headrace.compare.query import QueryError, Span
from headrace.experiments import forms
from headrace.experiments.states import RunState
from headrace.schema_form import Field as ConfigField
from headrace.schema_form import fields_of
from headrace.teams.models import Team
from headrace.telemetry.derive import LAG_PREFIX, SPAN_PREFIX
from headrace.telemetry.models import Series
from workers.contract import presets
from workers.contract.metrics import CATALOGUE

Kind = Literal["text", "number", "boolean", "time", "duration", "list", "json"]
Source = Literal["run", "config", "metric"]
MOST_STORED_NAMES = 500
_METRIC = re.compile(r"[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)+")
_PATH = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*")


@dataclass(frozen=True)
class RunField:
    """One thing to filter, sort, show or draw by. `key` is its name in queries, columns and links."""

    key: str
    title: str
    kind: Kind
    source: Source = "run"
    path: str = ""  # config: dotted path; metric: the series' name
    unit: str = ""
    help: str = ""
    values: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        return {
            "key": self.key,
            "title": self.title,
            "kind": self.kind,
            "source": self.source,
            "unit": self.unit,
            "help": self.help,
            "values": list(self.values),
        }


def _own(key: str, title: str, kind: Kind, help: str, *values: str) -> RunField:
    return RunField(key, title, kind, help=help, values=values)


def _alias(key: str, title: str, metric: str) -> RunField:
    return RunField(key, title, "number", "metric", metric, CATALOGUE[metric].unit, CATALOGUE[metric].description)


OWN: dict[str, RunField] = {
    item.key: item
    for item in (
        _own("name", "Run", "text", "The run's name."),
        _own("state", "State", "text", "What the run is doing.", *RunState.values),
        _own("task", "Task", "text", "The dataset or generator that asks."),
        _own("model", "Model", "text", "The model that learns."),
        _own("preset", "Preset", "text", "The preset it began from; without @ any version.", *presets.names()),
        _own("seed", "Seed", "number", "Where its randomness starts."),
        _own("tag", "Tags", "list", "One of its tags."),
        _own("by", "By", "text", "Who started it: name or e-mail, or me."),
        _own("project", "Project", "text", "Name or short name of its project."),
        _own("experiment", "Experiment", "text", "Name of its experiment."),
        _own("group", "Group", "text", "The sweep or group it belongs to."),
        _own("source", "Source", "text", "Where it came from.", "web", "api", "cli", "demo", "upload"),
        _own("id", "Id", "text", "Its id, as in links."),
        _own("note", "Note", "text", "What people wrote about it."),
        _own("created", "Started", "time", "When it was queued: 7d is seven days ago, or a date."),
        _own("duration", "Duration", "duration", "From its first start to its end or now: 90s, 10m, 2h."),
        RunField("step", "Steps", "number", "metric", "reward/mean", "", "The last finished step."),
        _own("priority", "Priority", "number", "Its place in the queue."),
        _own("archived", "Archived", "boolean", "Whether it was put away.", "yes", "no"),
        _alias("reward", "Reward", "reward/mean"),
        _alias("heldout", "Held-out reward", "eval/reward_mean"),
    )
}


@lru_cache(maxsize=1)
def config_fields() -> dict[str, RunField]:
    """{`config.` path: field} for every setting of a config, made once a process."""
    known = fields_of(forms.schema())
    return {f"config.{path}": _of_config(path, item) for path, item in known.items() if path != "schema_version"}


def _of_config(path: str, item: ConfigField) -> RunField:
    kinds: dict[str, Kind] = {"integer": "number", "number": "number", "boolean": "boolean", "choices": "list", "json": "json"}
    block = path.partition(".")[0].replace("_", " ") if "." in path else "run"
    values = tuple(choice.value for choice in item.choices) or (("yes", "no") if item.kind == "boolean" else ())
    return RunField(
        f"config.{path}",
        f"{item.title} ({block})",
        kinds.get(item.kind, "text"),
        "config",
        path,
        item.unit,
        item.help,
        values,
    )


def metric_fields() -> dict[str, RunField]:
    """{series name: field} for the catalogue of metrics."""
    return {name: RunField(name, row.title, "number", "metric", name, row.unit, row.description) for name, row in CATALOGUE.items()}


def stored_metrics(team: Team) -> list[str]:
    """Names of the series the team's runs have and the catalogue does not, in order; at most MOST_STORED_NAMES."""
    found = Series.objects.for_team(team).exclude(name__startswith=LAG_PREFIX).exclude(name__startswith=SPAN_PREFIX)
    found = found.exclude(name__in=list(CATALOGUE))
    return sorted(found.values_list("name", flat=True).distinct()[:MOST_STORED_NAMES])


def every(team: Team | None) -> list[RunField]:
    """What completion and pickers offer, in reading order."""
    extra = [RunField(name, name, "number", "metric", name) for name in (stored_metrics(team) if team else [])]
    return [*OWN.values(), *metric_fields().values(), *extra, *config_fields().values()]


def resolve(name: str, span: Span = (0, 0)) -> RunField:
    """The field of this name. `reward/mean` is a metric's name, `config.batch.prompts` a setting's; where only one of both fits,
    `reward.mean` and `batch.prompts` do as well. Raises QueryError with the nearest names."""
    lowered = name.lower()
    if lowered in OWN:
        return OWN[lowered]
    if name.startswith("config."):
        return _setting(name, span)
    if _METRIC.fullmatch(name):
        return metric_fields().get(name) or RunField(name, name, "number", "metric", name)
    setting, metric = config_fields().get(f"config.{name}"), metric_fields().get(name.replace(".", "/", 1))
    if setting and metric:
        raise QueryError("is a setting and a metric", span, value=name, cure=f"write {setting.key} or {metric.key}")
    if found := setting or metric:
        return found
    raise unknown(name, span)


def _setting(name: str, span: Span) -> RunField:
    known = config_fields()
    if name in known:
        return known[name]
    path = name.removeprefix("config.")
    parent = known.get(name.rpartition(".")[0])
    # What a dataset takes is its own matter: its options are not in the schema.
    if parent is not None and parent.kind == "json" and _PATH.fullmatch(path):
        return RunField(name, path, "json", "config", path)
    raise unknown(name, span)


def unknown(name: str, span: Span) -> QueryError:
    """The error for a name that is no field, with the nearest ones."""
    keys = {key: key for key in (*OWN, *metric_fields(), *config_fields())}
    names = keys | {key.removeprefix("config."): key for key in config_fields()}
    near = [names[found] for found in get_close_matches(name.lower(), names, 3, 0.6)]
    near += [key for key in keys if re.split(r"[./]", key)[-1] == name.lower()]
    near = list(dict.fromkeys(near))[:3]
    ask = f"did you mean {' or '.join(near)}?" if near else 'the list under "Columns" has every field; quotes search for plain text'
    return QueryError(f"there is no field {name}", span, cure=ask)


def columns(text: str, default: Iterable[str], most: int) -> tuple[list[RunField], list[str]]:
    """Fields of a comma-separated list as it stands in a link, at most `most`, and what of it was not understood."""
    found: dict[str, RunField] = {}
    wrong: list[str] = []
    for name in (part.strip() for part in text.split(",")) if text else default:
        try:
            item = resolve(name)
            found.setdefault(item.key, item)
        except QueryError:
            wrong.append(name)
    return list(found.values())[:most], wrong
