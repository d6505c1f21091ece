"""From what a user gives to a RunConfig: preset < spec < `path=value` overrides, every fault named at once."""

from __future__ import annotations

import copy
import difflib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pydantic import ValidationError

from workers.contract import compat, fields, presets, reading
from workers.contract.config import SCHEMA_VERSION, RunConfig
from workers.contract.errors import ConfigError, HeadraceError

read = reading.read
parse = reading.parse


_SINCE_2 = {"curriculum", "replay"}  # sections that version 1 did not have


def _from_version_1(table: dict[str, Any]) -> dict[str, Any]:
    """The importance cap became one of several corrections; a dropped group of equal rewards was always replaced."""
    loss, rewards = table.get("loss"), table.get("rewards")
    if isinstance(loss, dict) and "tis_cap" in loss:
        cap = loss.pop("tis_cap")
        reinforce = loss.get("policy") == "reinforce_is"
        loss["corrections"] = [{"hi": cap}] if cap is not None and not reinforce and loss.get("anchor") != "rollout" else []
        if reinforce:
            loss["cap"] = cap
    if isinstance(rewards, dict) and rewards.get("zero_variance") == "drop":
        rewards["zero_variance"] = "refill"
    if set(RunConfig.model_fields) - _SINCE_2 <= table.keys():
        table |= {name: {} for name in _SINCE_2}  # a whole config stays one: it stands on no preset
    table["schema_version"] = 2
    return table


# Version n -> the function that turns a spec of version n into one of n + 1.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: _from_version_1}

# Options, and how the task is asked and answered, belong to the dataset they were written for.
_OF_ONE_DATASET = ("options", "system_prompt", "answer")


def resolve(spec: Mapping[str, Any] | None = None, preset: str | None = None, sets: Sequence[str] = ()) -> RunConfig:
    """The config that a run starts with. Called by the form, the API, the command line and the driver.

    preset: a name; without a spec it defaults to `demo`; a partial spec may name its own (`"preset": "demo"`).
    sets: `path=value` strings, applied last, in order.
    Raises ConfigError whose `problems` hold every fault, those of `compat.check` included.
    """
    table = _layers(spec, preset, sets)
    try:
        config = RunConfig.model_validate(table)
    except ValidationError as error:
        raise reading.as_config_error([fields.fault(item) for item in error.errors(include_url=False)]) from None
    faults = compat.check(config)
    if faults:
        raise reading.as_config_error(faults)
    return config


def problems(spec: Mapping[str, Any] | None = None, preset: str | None = None, sets: Sequence[str] = ()) -> list[HeadraceError]:
    """What `resolve` would raise, as a list. Empty: the config can run."""
    try:
        resolve(spec, preset, sets)
    except ConfigError as error:
        return error.problems
    return []


def diff(first: RunConfig, second: RunConfig) -> dict[str, tuple[Any, Any]]:
    """Where two configs differ: {dotted path: (value in first, value in second)}; a missing option is None."""
    left, right = flatten(first.as_json()), flatten(second.as_json())
    return {path: (left.get(path), right.get(path)) for path in sorted(left.keys() | right.keys()) if left.get(path) != right.get(path)}


def flatten(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as {dotted path: value}. Lists and empty tables are values."""
    flat: dict[str, Any] = {}
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            flat.update(flatten(value, f"{path}."))
        else:
            flat[path] = value
    return flat


def _layers(spec: Mapping[str, Any] | None, preset: str | None, sets: Sequence[str]) -> dict[str, Any]:
    given = _checked(spec)
    name = preset if preset is not None else _base_preset(spec, given)
    table: dict[str, Any] = {}
    if name is not None:
        meta, overrides = presets.read(name.partition("@")[0])
        if "@" in name and name != meta.label:
            raise ConfigError("this version of the preset is not here", field="preset", value=name, cure=f"use {meta.label}")
        table = overrides
        given["preset"] = meta.label
    table = overlay(table, given)
    for item in sets:
        table = overlay(table, _assignment(item))
    return table


def _checked(spec: Mapping[str, Any] | None) -> dict[str, Any]:
    """A private copy of the spec, of plain JSON values, at today's schema version."""
    if spec is None:
        return {}
    if not isinstance(spec, Mapping):
        raise ConfigError("a config is an object", field="spec", value=type(spec).__name__, cure='give an object such as {"seed": 7}')
    table = dict(spec)
    faults = reading.tree_faults(table)
    if faults:
        raise reading.as_config_error(faults)
    return upgraded(copy.deepcopy(table))


def upgraded(table: dict[str, Any]) -> dict[str, Any]:
    """A spec at today's schema version. Called for everything that was stored, and may take the table apart."""
    version = table.get("schema_version", SCHEMA_VERSION)
    if type(version) is not int or version < 1:
        raise ConfigError("is a whole number from 1", field="schema_version", value=version, cure=f"set it to {SCHEMA_VERSION}")
    if version > SCHEMA_VERSION:
        raise ConfigError(
            f"this config was written by a newer Headrace; this one reads versions up to {SCHEMA_VERSION}",
            field="schema_version",
            value=version,
            cure="update Headrace",
        )
    while version < SCHEMA_VERSION:
        table = UPGRADES[version](table)
        version += 1
    return table


def _base_preset(spec: Mapping[str, Any] | None, given: dict[str, Any]) -> str | None:
    """The preset beneath a spec. A whole config only remembers where it came from; that preset need not exist any more."""
    if spec is None:
        return presets.DEFAULT
    name = given.get("preset")
    whole = set(RunConfig.model_fields) <= given.keys()
    return name if isinstance(name, str) and not whole else None


def overlay(lower: dict[str, Any], upper: Mapping[str, Any]) -> dict[str, Any]:
    """`upper` on top of `lower`, section by section. Another dataset starts without what was written for the one below it."""
    result = dict(lower)
    for name, value in upper.items():
        below = result.get(name)
        if not isinstance(value, dict) or not isinstance(below, dict):
            result[name] = value
        elif name == "environment":
            result[name] = _task(below, value)
        else:
            result[name] = overlay(below, value)
    return result


def _task(below: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    other = values.get("dataset", below.get("dataset")) != below.get("dataset")
    kept = {name: value for name, value in below.items() if not (other and name in _OF_ONE_DATASET)}
    merged = {**kept, **values}
    options = kept.get("options")
    if isinstance(values.get("options"), _Merge) and isinstance(options, dict):
        merged["options"] = {**options, **values["options"]}
    return merged


class _Merge(dict[str, Any]):
    """Single task options given by `environment.options.<name>=value`: added to those already there."""


def _assignment(item: str) -> dict[str, Any]:
    """`path=value` as nested tables, the value parsed by the type of its field."""
    path, equals, text = item.partition("=")
    path = path.strip()
    if not equals or not path:
        raise ConfigError("an override is written path=value", field="set", value=item, cure="for example budget.steps=100")
    if path == "preset":
        raise ConfigError("a preset is not a value to override", field=path, value=text, cure=f"choose it with --preset {text}")
    if path.startswith("environment.options.") and path.count(".") == 2:
        value: Any = _Merge({path.rpartition(".")[2]: fields.loose(text)})
        path = "environment.options"
    else:
        info = fields.find(path)
        if info is None:
            close = fields.ending_in(path) or difflib.get_close_matches(path, fields.paths(), n=2, cutoff=0.6)
            cure = f"did you mean {' or '.join(close)}?" if close else "see `python -m workers check --help` for the fields there are"
            raise ConfigError("there is no such field", field=path, value=text, cure=cure)
        value = fields.parsed(path, info, text)
    faults = reading.tree_faults({path: value})
    if faults:
        raise reading.as_config_error(faults)
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)
