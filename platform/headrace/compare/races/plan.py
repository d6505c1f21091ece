"""What a race is made of, and the configs of its entries. Pure: presets and the contract in, RunConfigs out.

A contender is a preset, or one with changes. Over each lies the same workload, the same seed and the same stop rule; `equal` holds
further settings that were made the same for all. Lowest first: preset, workload, the contender's changes, `equal`, seed and budget.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from workers.contract import loading, presets, reading
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, HeadraceError

MOST_CONTENDERS = 24
MOST_SEEDS = 20
MOST_ENTRIES = 120
STEPS_WITHOUT_BOUND = 10_000_000  # the contract's largest: another bound of the budget ends the entry
BIGGEST_SEED = 2**31 - 1

StopKind = Literal["wall_s", "samples", "tokens", "cost"]
STOP_WORDS: dict[str, tuple[str, str]] = {
    "wall_s": ("Wall time", "seconds"),
    "samples": ("Samples trained", "samples"),
    "tokens": ("Tokens trained", "tokens"),
    "cost": ("Cost", "money"),
}


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Stop(_Part):
    """The one rule that ends every entry. cost: money, turned into seconds by the cluster's price and the entry's devices."""

    kind: StopKind = "wall_s"
    value: float = Field(gt=0, le=1e15, allow_inf_nan=False)


class Contender(_Part):
    """A preset by name, under a label of its own; `changes` are `path=value` over it, as on the command line."""

    preset: str = Field(min_length=1, max_length=100)
    label: str = Field(min_length=1, max_length=60)
    changes: list[str] = Field(default_factory=list, max_length=40)

    @property
    def changed_paths(self) -> set[str]:
        return {item.partition("=")[0].strip() for item in self.changes}


class RaceSpec(_Part):
    """All that decides what runs. `devices` empty: as each preset says. `at_once` empty: as many as fit apart from one another."""

    contenders: list[Contender] = Field(min_length=2, max_length=MOST_CONTENDERS)
    workload: dict[str, Any] = Field(default_factory=dict)
    equal: dict[str, Any] = Field(default_factory=dict, max_length=200)
    seeds: list[int] = Field(min_length=1, max_length=MOST_SEEDS)
    stop: Stop
    limit_s: float | None = Field(None, gt=0, le=31_536_000)
    devices: int | None = Field(None, ge=2, le=1024)
    at_once: int | None = Field(None, ge=1, le=64)
    reuse: bool = True
    retries: int = Field(1, ge=0, le=5)

    @model_validator(mode="after")
    def once_each(self) -> RaceSpec:
        labels = [contender.label for contender in self.contenders]
        if len(set(labels)) != len(labels):
            raise ValueError("contenders: two have the same label -> give each its own")
        if len(set(self.seeds)) != len(self.seeds):
            raise ValueError("seeds: one is given twice -> name each once")
        if any(not 0 <= seed <= BIGGEST_SEED for seed in self.seeds):
            raise ValueError(f"seeds: out of range -> whole numbers from 0 to {BIGGEST_SEED}")
        if len(labels) * len(self.seeds) > MOST_ENTRIES:
            raise ValueError(f"seeds: {len(labels) * len(self.seeds)} entries are too many -> at most {MOST_ENTRIES}")
        return self


@dataclass(frozen=True)
class Entry:
    """One run of the race: contender (its position in the spec), seed and resolved config."""

    place: int
    contender: int
    seed: int
    config: RunConfig


def read(data: Mapping[str, Any]) -> RaceSpec:
    """A spec from stored or submitted JSON. Raises ConfigError whose `problems` name every fault."""
    try:
        return RaceSpec.model_validate(data)
    except ValidationError as error:
        problems: list[HeadraceError] = []
        for item in error.errors(include_url=False):
            field, message, cure = ".".join(str(part) for part in item["loc"]), str(item["msg"]), None
            if item["type"] == "value_error":
                field, _, rest = message.removeprefix("Value error, ").partition(": ")
                message, _, cure = rest.partition(" -> ")
            shown = item.get("input") if isinstance(item.get("input"), str | int | float) else None
            problems.append(ConfigError(message, field=field, value=shown, cure=cure))
        raise reading.as_config_error(problems) from None


def read_seeds(text: str) -> list[int]:
    """`1 2 3`, `1, 2, 3` or `1-5`. Raises ConfigError."""
    seeds: list[int] = []
    for word in re.split(r"[,\s]+", text.strip()):
        found = re.fullmatch(r"(\d{1,10})(?:-(\d{1,10}))?", word)
        if found is None:
            raise ConfigError("no list of seeds", field="seeds", value=text[:80], cure="write for example 1 2 3, or 1-5")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first or last - first >= MOST_SEEDS:
            raise ConfigError("no range of at most 20 seeds", field="seeds", value=word, cure="write for example 1-5")
        seeds += range(first, last + 1)
    return seeds


def devices_of(config: RunConfig) -> int:
    """What an entry occupies: its engines and the ranks of its trainer."""
    return config.rollout.engines + config.backend.ranks


def wall_of(stop: Stop, devices: int, price: float | None) -> float | None:
    """Seconds at which the rule ends an entry of so many devices; None where it does not count time.

    Raises ConfigError for a cost without a price (`price`: money per device and hour).
    """
    if stop.kind == "wall_s":
        return stop.value
    if stop.kind != "cost":
        return None
    if price is None or price <= 0:
        raise ConfigError(
            "the cluster has no price, so money cannot be turned into time",
            field="stop.kind",
            value="cost",
            cure="an owner sets the cluster's price per device and hour, or stop by time, samples or tokens",
        )
    return stop.value / (price * devices) * 3600.0


def config_of(spec: RaceSpec, contender: Contender, seed: int, price: float | None = None) -> RunConfig:
    """The resolved config of one entry. Raises ConfigError whose `problems` name the faults."""
    given = loading.overlay(dict(spec.workload), {})
    for path, value in spec.equal.items():
        given = loading.overlay(given, _nested(path, value))
    given = {**given, "preset": contender.preset, "seed": seed}
    sets = [item for item in contender.changes if item.partition("=")[0].strip() not in spec.equal]
    base = loading.resolve(given, sets=sets)
    if spec.devices is not None:
        engines = spec.devices - base.backend.ranks
        if engines < 1:
            raise ConfigError(
                f"its trainer alone has {base.backend.ranks} ranks",
                field="devices",
                value=spec.devices,
                cure=f"give {base.backend.ranks + 1} or more devices, or leave {contender.label} out",
            )
        sets = [*sets, f"rollout.engines={engines}"]
    wall = wall_of(spec.stop, spec.devices or devices_of(base), price)
    budget = {
        "steps": STEPS_WITHOUT_BOUND,
        "wall_s": wall if wall is not None else spec.limit_s,
        "samples": math.ceil(spec.stop.value) if spec.stop.kind == "samples" else None,
        "tokens": math.ceil(spec.stop.value) if spec.stop.kind == "tokens" else None,
    }
    return loading.resolve({**given, "budget": budget}, sets=[item for item in sets if not item.startswith("budget.")])


def entries(spec: RaceSpec, price: float | None = None) -> list[Entry]:
    """Every entry in the order of the start: seed by seed, each beginning with another contender, so that none is always first.

    Raises ConfigError; the field of each problem names its contender.
    """
    problems: list[HeadraceError] = []
    configs: dict[int, RunConfig] = {}
    for number, contender in enumerate(spec.contenders):
        try:
            configs[number] = config_of(spec, contender, spec.seeds[0], price)
        except ConfigError as fault:
            problems += [_of_contender(contender, problem) for problem in fault.problems or [fault]]
    if problems:
        raise reading.as_config_error(problems)
    found: list[Entry] = []
    count = len(spec.contenders)
    for turn, seed in enumerate(spec.seeds):
        for step in range(count):
            number = (turn + step) % count
            found.append(Entry(len(found), number, seed, configs[number].model_copy(update={"seed": seed})))
    return found


def estimate_s(spec: RaceSpec, walls: Iterable[float | None], at_once: int) -> float | None:
    """How long the entries take at most, start-up left out: rounds of `at_once`. None where nothing bounds their time."""
    times = list(walls)
    known = [wall for wall in times if wall is not None]
    if len(known) != len(times) or not known:
        return None
    rounds = math.ceil(len(known) / max(1, at_once))
    return rounds * max(known)


def _of_contender(contender: Contender, problem: HeadraceError) -> ConfigError:
    message = f"{contender.label}: {problem.message}"
    return ConfigError(message, field=problem.field or "contenders", value=problem.value, cure=problem.cure)


def _nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def known(name: str) -> bool:
    """Whether a preset of this name is still there. A race outlives its presets."""
    return name in presets.names()
