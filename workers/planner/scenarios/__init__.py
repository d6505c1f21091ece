"""Scenarios by name: one TOML file each. They are read like those that users write themselves."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from workers.contract import fields, reading
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, HeadraceError
from workers.planner.scenario import Scenario

FOLDER = Path(__file__).resolve().parent
_TAGS = {"fixed", "lognormal", "empirical", "chain", "throughput", "table", "roofline"}
_AT_LEAST = {"greater_than_equal": "at least", "greater_than": "more than", "less_than_equal": "at most", "less_than": "less than"}

# Options of the run that the scenario decides, and the field of the scenario that does it.
DECIDED = {
    "rollout.engines": "generation.replicas",
    "rollout.max_running": "generation.slots",
    "sampling.max_new_tokens": "max_new_tokens",
    "budget.steps": "steps",
}


def names() -> list[str]:
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def describe() -> list[dict[str, Any]]:
    """Every built-in scenario: name, title, notes. Called by `plan --list` and the API."""
    found = [load(name) for name in names()]
    return [{"name": scenario.name, "title": scenario.title, "notes": scenario.notes} for scenario in found]


def load(which: str | Path, sets: Sequence[str] = ()) -> Scenario:
    """A scenario by its built-in name, or from a TOML or JSON file. Raises ConfigError with every fault."""
    return validated(table(which), sets)


def table(which: str | Path) -> dict[str, Any]:
    """What the file says. A text without a slash and without a suffix is a name."""
    text = str(which)
    if text in names():
        return reading.read(FOLDER / f"{text}.toml")
    path = Path(which)
    if path.suffix.lower() in (".toml", ".json") or path.exists():
        return reading.read(path)
    close = difflib.get_close_matches(text, names(), n=1, cutoff=0.5)
    hint = f"did you mean {close[0]}? " if close else ""
    cure = f"{hint}choose one of: {', '.join(names())}; or give the path of a .toml or .json file"
    raise ConfigError("no such scenario", field="scenario", value=text, cure=cure)


def validated(given: Mapping[str, Any], sets: Sequence[str] = ()) -> Scenario:
    """A scenario from plain values. Called by the form and the API, too. Raises ConfigError with every fault."""
    values = copy.deepcopy(dict(given))
    for item in sets:
        path, _, text = item.partition("=")
        _put(values, path.strip().split("."), fields.loose(text))
    faults = reading.tree_faults(values)
    if faults:
        raise reading.as_config_error(faults)
    try:
        return Scenario.model_validate(values)
    except ValidationError as error:
        raise reading.as_config_error([_fault(item) for item in error.errors(include_url=False)]) from None


def parted(sets: Sequence[str]) -> tuple[list[str], list[str]]:
    """`path=value` overrides, those of the scenario and those of the run. What the scenario decides is refused by the run's name."""
    ours: list[str] = []
    others: list[str] = []
    for item in sets:
        path, equals, value = item.partition("=")
        path = path.strip()
        if not equals or not path:
            raise ConfigError("an override is written path=value", field="set", value=item, cure="for example generation.replicas=4")
        if path in DECIDED:
            raise ConfigError("the scenario decides this", field=path, value=value, cure=f"set {DECIDED[path]} instead")
        (ours if _is_ours(path) else others).append(item)
    return ours, others


def _is_ours(path: str) -> bool:
    """Both have a seed, a batch and a sync: a field that the scenario has is the scenario's."""
    first, _, rest = path.partition(".")
    if first not in Scenario.model_fields:
        return False
    section = fields.section(Scenario.model_fields[first])
    return first not in RunConfig.model_fields or not rest or (section is not None and rest.partition(".")[0] in section.model_fields)


def _put(values: dict[str, Any], path: list[str], value: Any) -> None:
    for key in path[:-1]:
        inner = values.get(key)
        if not isinstance(inner, dict):
            inner = values[key] = {}
        values = inner
    values[path[-1]] = value


def _fault(item: Any) -> HeadraceError:
    """One of pydantic's errors in our words."""
    location = [str(part) for part in item["loc"] if part not in _TAGS]
    path, kind = ".".join(location) or "scenario", item["type"]
    value = None if kind == "missing" else item["input"]
    message = str(item["msg"]).removeprefix("Value error, ")
    message = message[:1].lower() + message[1:]
    context = item.get("ctx", {})
    if kind == "missing":
        message, cure = "is missing", f"add {path} to the scenario"
    elif kind == "extra_forbidden":
        known = [name for name in _known(location[:-1]) if name != location[-1]]  # another kind may have it
        close = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        message, cure = "there is no such field", f"did you mean {close[0]}?" if close else f"the fields here are: {', '.join(known)}"
    elif kind in ("union_tag_invalid", "union_tag_not_found"):
        message = "there is no such kind" if kind.endswith("invalid") else "its kind is missing"
        cure = f"set {path}.kind to one of {context.get('expected_tags') or 'those of the documentation'}"
    elif kind in _AT_LEAST:
        bound = next(value for value in context.values())
        cure = f"give {_AT_LEAST[kind]} {bound:,}"
    else:
        cure = "correct it in the scenario, or with --set"
    return ConfigError(message, field=path, value=value, cure=cure)


def _known(location: list[str]) -> list[str]:
    """The fields of the section at this place; of a section of several kinds, those of all of them."""
    models: list[type[BaseModel]] = [Scenario]
    for part in location:
        inner = [fields.kinds(model.model_fields[part])[0] for model in models if part in model.model_fields]
        models = [kind for kinds in inner for kind in _models(kinds)]
    return list(dict.fromkeys(name for model in models for name in model.model_fields))


def _models(kinds: list[Any]) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    for kind in kinds:
        members = getattr(kind, "__args__", None)
        if members:
            found += _models(list(members))
        elif isinstance(kind, type) and issubclass(kind, BaseModel):
            found.append(kind)
    return found
