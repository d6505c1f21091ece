"""What differs between the contenders of a race, sorted into what is meant to differ and what is not. Pure: configs in, rows out."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from headrace.compare.races.plan import STOP_WORDS, RaceSpec, devices_of
from workers.contract import axes, compat, design, loading
from workers.contract.config import RunConfig

# The design space: what a race of library styles is about. Everything else should be the same, or be named.
DESIGN = ("orchestration", "buffer", "transport", "interrupt", "staleness", "partial", "backend", "rollout", "sync", "replay")
DESIGN_FIELDS = frozenset({"lora.kind", "lora.moe_experts"})
OWN = frozenset({"preset", "seed", "schema_version"})
PROMPT_ORDER = ("environment", "curriculum")
HARDWARE = {"cpu": "CPU", "memory_bytes": "memory", "platform": "platform", "gpus": "GPUs"}

Level = Literal["same", "note", "warn"]


@dataclass(frozen=True)
class Row:
    """One setting: its value for each contender, as text and as JSON. lead: it names an axis."""

    path: str
    title: str
    texts: list[str]
    values: list[Any]
    differs: bool
    lead: bool = False

    @property
    def choices(self) -> list[tuple[str, str]]:
        """The different values, as text and as the JSON that makes all contenders take it."""
        found = {text: json.dumps(value, sort_keys=True) for text, value in zip(self.texts, self.values, strict=True)}
        return list(found.items())

    @property
    def cells(self) -> list[tuple[str, bool]]:
        """(text, unlike the first contender's), one a contender."""
        return [(text, text != self.texts[0]) for text in self.texts]


@dataclass(frozen=True)
class Check:
    """One line of the checklist. same: as it should be; note: to know; warn: it bears on the result."""

    key: str
    title: str
    level: Level
    text: str


@dataclass(frozen=True)
class Fairness:
    """The whole checklist. `design` is meant to differ, `other` is not; `equal` is what was made the same by hand."""

    labels: list[str]
    axes: list[Row]
    design: list[Row]
    other: list[Row]
    equal: list[tuple[str, str]]
    checks: list[Check]
    approximations: list[tuple[str, list[str]]] = field(default_factory=list)
    hints: list[tuple[str, list[str]]] = field(default_factory=list)

    @property
    def warnings(self) -> int:
        return sum(check.level == "warn" for check in self.checks)


def shown(value: Any) -> str:
    """How a value of a config is written."""
    if value is None:
        return "none"
    if isinstance(value, list) and not any(isinstance(item, dict) for item in value):
        return ", ".join(map(str, value)) or "none"
    if isinstance(value, list):
        return "; ".join(", ".join(f"{key} {shown(part)}" for key, part in item.items() if part is not None) for item in value)
    if isinstance(value, bool | dict):
        return json.dumps(value)
    return f"{value:g}" if isinstance(value, float) else str(value)


def is_design(path: str) -> bool:
    """Whether a setting is part of the design under test."""
    return path.partition(".")[0] in DESIGN or path in DESIGN_FIELDS


def judge(
    spec: RaceSpec,
    configs: Sequence[RunConfig],
    *,
    at_once: int,
    presets: Sequence[Mapping[str, Any]],
    titles: Callable[[str], str] = str,
) -> Fairness:
    """The checklist before the start: `configs` one a contender (of the first seed), `presets` their descriptions."""
    labels = [contender.label for contender in spec.contenders]
    flats = [loading.flatten(config.as_json()) for config in configs]
    paths = [path for path in dict.fromkeys(path for flat in flats for path in flat) if path not in OWN and not path.startswith("budget.")]
    rows = [_row(path, flats, titles) for path in paths]
    design_rows = [row for row in rows if is_design(row.path) and row.differs]
    other = [row for row in rows if not is_design(row.path) and row.differs]
    lead = [_row(design.FIELDS[axis], flats, titles, lead=True) for axis in axes.AXES]
    approximations = [
        (label, list(preset["approximates"])) for label, preset in zip(labels, presets, strict=True) if preset.get("approximates")
    ]
    hints = [(label, sorted({str(hint) for hint in compat.warnings(config)})) for label, config in zip(labels, configs, strict=True)]
    checks = _checks(spec, labels, configs, other, at_once, approximations)
    equal = [(titles(path), shown(value)) for path, value in spec.equal.items()]
    return Fairness(labels, lead, design_rows, other, equal, checks, approximations, [item for item in hints if item[1]])


def provenance_checks(told: Mapping[tuple[str, int], Mapping[str, Any]]) -> list[Check]:
    """The checklist afterwards: what entries said they ran on, {(label, seed): provenance}. Nothing told, nothing claimed."""
    if not told:
        return []
    parts: list[tuple[str, str, Callable[[Mapping[str, Any]], Any], bool]] = [
        ("packages", "Engine versions", lambda facts: facts.get("packages"), False),
        ("commit", "Code", lambda facts: facts.get("git_commit"), False),
        ("model", "Model weights", lambda facts: facts.get("model_digest"), False),
        ("data", "Prompts", lambda facts: (facts.get("data_digest"), facts.get("template_hash")), True),
        ("hardware", "Hardware", lambda facts: {key: facts[key] for key in HARDWARE if key in facts}, False),
    ]
    return [_told_alike(key, title, {entry: take(facts) for entry, facts in told.items()}, by_seed) for key, title, take, by_seed in parts]


def _told_alike(key: str, title: str, values: Mapping[tuple[str, int], Any], by_seed: bool) -> Check:
    """by_seed: what a seed decides is compared among the entries of one seed."""
    kinds: dict[int, dict[str, list[str]]] = {}
    for (label, seed), value in values.items():
        if value not in (None, {}, (None, None)):
            mine = kinds.setdefault(seed if by_seed else 0, {})
            mine.setdefault(json.dumps(value, sort_keys=True, default=str), []).append(f"{label}, seed {seed}")
    known = sum(len(entries) for mine in kinds.values() for entries in mine.values())
    if not known:
        return Check(f"told-{key}", title, "note", "Not told by any entry.")
    unlike = [mine for mine in kinds.values() if len(mine) > 1]
    if unlike:
        groups = "; ".join(
            " and ".join(entries[:3]) + (" …" if len(entries) > 3 else "") for mine in unlike[:3] for entries in mine.values()
        )
        return Check(f"told-{key}", title, "warn", f"Not the same everywhere. Alike among themselves: {groups}.")
    same = "The same for every entry" + (" of a seed." if by_seed else ".")
    if known < len(values):
        return Check(f"told-{key}", title, "note", f"{same[:-1]} that told it: {known} of {len(values)}.")
    return Check(f"told-{key}", title, "same", same)


def _row(path: str, flats: Sequence[Mapping[str, Any]], titles: Callable[[str], str], lead: bool = False) -> Row:
    values = [flat.get(path) for flat in flats]
    texts = [shown(value) for value in values]
    return Row(path, titles(path), texts, values, len(set(texts)) > 1, lead)


def _checks(
    spec: RaceSpec,
    labels: Sequence[str],
    configs: Sequence[RunConfig],
    other: Sequence[Row],
    at_once: int,
    approximations: Sequence[tuple[str, list[str]]],
) -> list[Check]:
    differing = {row.path for row in other}
    return [
        _task(differing),
        _prompts(differing),
        _seeds(spec),
        _stop(spec, configs),
        _devices(labels, configs),
        _placement(spec, at_once),
        Check("start-up", "Warm-up", "note", "Time counts from an entry's start, loading included; start-up is shown by itself."),
        _learning(other),
        _schedule(configs),
        _approximated(approximations),
        _reuse(spec),
    ]


def _task(differing: set[str]) -> Check:
    wrong = sorted(path for path in differing if path.partition(".")[0] in ("model", "environment", "evaluation", "batch", "sampling"))
    if wrong:
        return Check("task", "Model, task and batch", "warn", f"They differ: {', '.join(wrong)}.")
    return Check("task", "Model, task and batch", "same", "The same model, prompts, verifier, batch, sampling and held-out test for all.")


def _prompts(differing: set[str]) -> Check:
    wrong = sorted(path for path in differing if path.partition(".")[0] in PROMPT_ORDER)
    if wrong:
        return Check("prompts", "Order of prompts", "warn", f"It may differ: {', '.join(wrong)}.")
    return Check("prompts", "Order of prompts", "same", "Of one seed all contenders are dispatched the same prompts in the same order.")


def _seeds(spec: RaceSpec) -> Check:
    seeds = ", ".join(map(str, spec.seeds))
    if len(spec.seeds) == 1:
        return Check("seeds", "Seeds", "warn", f"One seed ({seeds}): no interval and no verdict can be given. Take three or more.")
    level: Level = "note" if len(spec.seeds) == 2 else "same"
    few = " Two give very wide intervals; take three or more." if level == "note" else ""
    return Check("seeds", "Seeds", level, f"Every contender runs every seed: {seeds}.{few}")


def _stop(spec: RaceSpec, configs: Sequence[RunConfig]) -> Check:
    title, unit = STOP_WORDS[spec.stop.kind]
    text = f"{title}: {spec.stop.value:g} {unit} for every entry."
    walls = {round(config.budget.wall_s, 3) for config in configs if config.budget.wall_s is not None}
    if spec.stop.kind == "cost":
        text += f" By the cluster's price that is {', '.join(f'{wall:g} s' for wall in sorted(walls))}."
    if spec.stop.kind in ("samples", "tokens") and spec.limit_s:
        text += f" An entry that is not there after {spec.limit_s:g} s ends all the same."
    level: Level = "note" if len(walls) > 1 else "same"
    return Check("stop", "Stop rule", level, text)


def _devices(labels: Sequence[str], configs: Sequence[RunConfig]) -> Check:
    counts = [devices_of(config) for config in configs]
    if len(set(counts)) > 1:
        told = ", ".join(f"{label} {count}" for label, count in zip(labels, counts, strict=True))
        return Check("devices", "Devices", "warn", f"Not equal: {told}. Set the same number for all.")
    return Check("devices", "Devices", "same", f"{counts[0]} for every entry: its engines and the ranks of its trainer.")


def _placement(spec: RaceSpec, at_once: int) -> Check:
    if at_once == 1:
        text = "One after another on the same machines; every seed begins with another contender, so that none is always first."
        return Check("placement", "Placement", "same", text)
    chosen = "as chosen" if spec.at_once else "as they fit"
    timed = spec.stop.kind in ("wall_s", "cost")
    text = f"{at_once} side by side, {chosen}. On shared cores they slow one another, and whoever runs beside a light one gains."
    return Check("placement", "Placement", "warn" if spec.at_once or timed else "note", text)


def _learning(other: Sequence[Row]) -> Check:
    rows = [row for row in other if row.path.partition(".")[0] in ("optimizer", "loss", "rewards", "lora", "curriculum")]
    if not rows:
        return Check("learning", "Learning settings", "same", "Optimizer, loss and rewards are the same: what differs is the flow.")
    names = ", ".join(row.title.lower() for row in rows[:6]) + (", …" if len(rows) > 6 else "")
    text = f"{len(rows)} differ: {names}. A difference in reward may come from them and not from the design."
    return Check("learning", "Learning settings", "warn", text)


def _schedule(configs: Sequence[RunConfig]) -> Check:
    if all(config.optimizer.schedule == "constant" for config in configs):
        return Check("schedule", "Learning rate's schedule", "same", "Constant for all.")
    text = "A schedule that falls ends at the budget's last step, which this stop rule leaves open: here it hardly falls at all."
    return Check("schedule", "Learning rate's schedule", "warn", text)


def _approximated(approximations: Sequence[tuple[str, list[str]]]) -> Check:
    if not approximations:
        return Check("approximations", "Approximations", "same", "None of the designs is approximated.")
    names = ", ".join(f"{label} ({len(sentences)})" for label, sentences in approximations)
    return Check("approximations", "Approximations", "note", f"A style is compared, not a library. Approximated in: {names}.")


def _reuse(spec: RaceSpec) -> Check:
    if spec.reuse:
        return Check(
            "reuse", "Earlier runs", "note", "A finished run of this team with exactly the same config counts instead of a new one."
        )
    return Check("reuse", "Earlier runs", "same", "Every entry runs anew.")
