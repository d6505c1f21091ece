"""The form of a new race: what is typed, what it means, and the preview beside it. Called for every showing and every change of it."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict

from headrace.compare.races import fairness, plan, resources, selectors
from headrace.experiments import forms
from headrace.schema_form import Field, blocks, lookup
from headrace.schema_parse import Errors, parse
from headrace.teams.models import Team
from workers.contract import loading, presets
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, HeadraceError

# What every contender is given alike. The first are shown open, the others in a fold.
WORKLOAD = (
    *("model.path", "environment.dataset", "environment.options", "environment.answer"),
    *("batch.prompts", "batch.group_size", "sampling.max_new_tokens", "sampling.temperature"),
    *("evaluation.every_steps", "evaluation.prompts"),
)
WORKLOAD_MORE = (
    *("model.dtype", "environment.size", "environment.system_prompt", "environment.verifier"),
    *("sampling.top_k", "sampling.top_p", "sampling.min_p", "evaluation.temperature", "checkpoint.every_steps"),
)
FIRST_CHOICE = ("trl-sync", "trl-async")
OWN_ROWS = 2
MOST_OWN = 8
DEFAULTS = {"stop_kind": "wall_s", "stop_value": "300", "seeds": "1 2 3", "limit_s": "3600", "devices": "", "at_once": "", "retries": "1"}


@dataclass
class Draft:
    """A form on its way. `spec` and `entries` are there when it is sound; `errors` is by input name, "" for the whole."""

    text: dict[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    name: str = ""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    project: str = ""
    chosen: list[str] = field(default_factory=list)
    own: list[dict[str, str]] = field(default_factory=list)
    equal: dict[str, Any] = field(default_factory=dict)
    reuse: bool = True
    values: dict[str, Any] = field(default_factory=dict)
    submitted: QueryDict | None = None
    errors: Errors = field(default_factory=dict)
    spec: plan.RaceSpec | None = None
    entries: list[plan.Entry] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return self.spec is not None and bool(self.entries) and not self.errors

    @property
    def configs(self) -> list[RunConfig]:
        """One a contender, of the first seed."""
        first = {entry.contender: entry.config for entry in reversed(self.entries)}
        return [first[number] for number in sorted(first)]

    @property
    def equal_items(self) -> list[tuple[str, str]]:
        """As hidden inputs carry them: (path, path=JSON)."""
        return [(path, f"{path}={json.dumps(value)}") for path, value in self.equal.items()]

    def own_rows(self) -> list[dict[str, str]]:
        return [*self.own, *({"preset": "", "label": "", "changes": ""} for _ in range(max(0, OWN_ROWS - len(self.own))))]


def fresh(wanted: Iterable[str] = ()) -> Draft:
    """An unfilled form: the demo's task, two contenders of one library, five minutes."""
    known = [name for name in wanted if name in presets.names()]
    draft = Draft(values=loading.resolve(preset=presets.DEFAULT).as_json(), chosen=known or list(FIRST_CHOICE))
    if len(draft.chosen) == 1:
        draft.chosen.append(next(name for name in (presets.DEFAULT, *FIRST_CHOICE) if name != draft.chosen[0]))
    return draft


def like(spec: plan.RaceSpec, name: str) -> Draft:
    """A form filled from a race there is."""
    draft = Draft(name=f"{name} (again)"[:200], equal=dict(spec.equal), reuse=spec.reuse)
    draft.values = loading.overlay(loading.resolve(preset=presets.DEFAULT).as_json(), spec.workload)
    for contender in spec.contenders:
        if not contender.changes and contender.label == contender.preset:
            draft.chosen.append(contender.preset)
        else:
            draft.own.append({"preset": contender.preset, "label": contender.label, "changes": "\n".join(contender.changes)})
    draft.text |= {
        "stop_kind": spec.stop.kind,
        "stop_value": f"{spec.stop.value:g}",
        "seeds": " ".join(map(str, spec.seeds)),
        "limit_s": f"{spec.limit_s:g}" if spec.limit_s else "",
        "devices": str(spec.devices or ""),
        "at_once": str(spec.at_once or ""),
        "retries": str(spec.retries),
    }
    return draft


def judged(draft: Draft, team: Team) -> Draft:
    """The same form as if it had been sent as it stands: what it would be is shown from the first."""
    data: dict[str, Any] = {}
    for path in (*WORKLOAD, *WORKLOAD_MORE):
        section, _, name = path.partition(".")
        data.setdefault(section, {})[name] = lookup(draft.values, path)
    fields = _numbers(draft)
    if not draft.errors:
        _resolve(draft, team, {**fields, "workload": data, "equal": draft.equal, "reuse": draft.reuse})
    return draft


def read(sent: QueryDict, team: Team) -> Draft:
    """What was sent, judged. Every fault is found at once, each under the name of its input."""
    draft = Draft(submitted=sent, name=str(sent.get("name", ""))[:400], project=str(sent.get("project", "")))
    draft.key = str(sent.get("key", ""))[:100] or draft.key
    draft.text = {name: str(sent.get(name, ""))[:400].strip() for name in DEFAULTS}
    draft.reuse = "reuse" in sent
    draft.chosen = list(dict.fromkeys(str(name) for name in sent.getlist("preset")))[: plan.MOST_CONTENDERS + 1]
    draft.own = _own(sent)
    draft.equal = _equal(sent, draft.errors)
    workload = {path: [sent.get(path)] for path in (*WORKLOAD, *WORKLOAD_MORE) if path in sent}
    given = QueryDict(mutable=True)
    for path, values in workload.items():
        given.setlist(path, [str(value) for value in values])
    data, faults = parse(forms.schema(), given)
    draft.values = data
    draft.errors |= faults
    fields = _numbers(draft)
    if not draft.errors:
        _resolve(draft, team, {**fields, "workload": data, "equal": draft.equal, "reuse": draft.reuse})
    return draft


def workload_fields(draft: Draft) -> tuple[list[Field], list[Field]]:
    """The open ones and those of the fold, filled, with their faults."""
    every = blocks(forms.schema(), draft.values, submitted=draft.submitted, errors=draft.errors, describe=forms.describe)
    by_path = {item.path: item for block in every for item in block.fields}
    return [by_path[path] for path in WORKLOAD], [by_path[path] for path in WORKLOAD_MORE]


def preview(draft: Draft, team: Team) -> dict[str, Any]:
    """What stands beside the form: entries, time, reuse and the fairness checklist. Only for a sound draft."""
    spec = draft.spec
    if spec is None or not draft.entries:
        return {}
    at_once = resources.fitting(team, spec)
    there = selectors.reusable(team, [entry.config.digest() for entry in draft.entries]) if spec.reuse else set()
    left = [entry.config for entry in draft.entries if entry.config.digest() not in there]
    walls = [config.budget.wall_s for config in left]
    money = resources.money(team)
    hours = [plan.devices_of(config) * (config.budget.wall_s or 0) / 3600 for config in left]
    checklist: fairness.Fairness = selectors.checklist(spec, draft.configs, at_once)
    return {
        "entries": len(draft.entries),
        "contenders": len(spec.contenders),
        "seeds": len(spec.seeds),
        "at_once": at_once,
        "estimate_s": plan.estimate_s(spec, walls, at_once),
        "at_most": spec.stop.kind in ("samples", "tokens"),
        "cost": sum(hours) * money.per_hour if money and all(walls) else None,
        "currency": money.currency if money else "",
        "reusable": len(there),
        "left": len(left),
        "fair": checklist,
    }


def _own(sent: QueryDict) -> list[dict[str, str]]:
    rows = zip(sent.getlist("own_preset"), sent.getlist("own_label"), sent.getlist("own_changes"), strict=False)
    told = [{"preset": str(a)[:100], "label": str(b).strip()[:100], "changes": str(c).replace("\r\n", "\n")[:4000]} for a, b, c in rows]
    return [row for row in told if row["label"] or row["changes"].strip()][:MOST_OWN]


def _equal(sent: QueryDict, errors: Errors) -> dict[str, Any]:
    """`path=JSON` of every setting made the same; one that is released is left out."""
    released = set(sent.getlist("release"))
    found: dict[str, Any] = {}
    for item in sent.getlist("equal")[:200]:
        path, equals, text = str(item)[:4000].partition("=")
        if path in released:
            continue
        try:
            found[path] = json.loads(text)
        except (ValueError, RecursionError):
            equals = ""
        if not equals or fairness.is_design(path) or path.split(".")[0] in ("seed", "budget", "preset"):
            errors.setdefault("equal", []).append(f"“{path[:60]}” is no setting that can be made the same.")
            found.pop(path, None)
    return found


def _numbers(draft: Draft) -> dict[str, Any]:
    """The rule, seeds and resources, with the config's own kinds of faults."""
    found: dict[str, Any] = {"contenders": _contenders(draft)}
    try:
        found["seeds"] = plan.read_seeds(draft.text["seeds"])
    except ConfigError as fault:
        draft.errors.setdefault("seeds", []).append(forms.sentence(fault.message, fault.cure))
    found["stop"] = {"kind": draft.text["stop_kind"], "value": _number(draft, "stop_value", float, needed=True)}
    counted = draft.text["stop_kind"] in ("samples", "tokens")
    found["limit_s"] = _number(draft, "limit_s", float) if counted else None
    for name in ("devices", "at_once"):
        found[name] = _number(draft, name, int)
    found["retries"] = _number(draft, "retries", int) or 0
    return found


def _number(draft: Draft, name: str, kind: type[int] | type[float], *, needed: bool = False) -> float | int | None:
    text = draft.text[name]
    if not text:
        if needed:
            draft.errors.setdefault(name, []).append("A number is needed here.")
        return None
    try:
        value = kind(text)
    except ValueError:
        draft.errors.setdefault(name, []).append(f"“{text[:40]}” is not {'a whole number' if kind is int else 'a number'}.")
        return None
    return value


def _contenders(draft: Draft) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [{"preset": name, "label": name} for name in draft.chosen]
    for row in draft.own:
        changes = [line.strip() for line in row["changes"].splitlines() if line.strip()]
        found.append({"preset": row["preset"], "label": row["label"], "changes": changes})
        if not row["label"] or not changes:
            draft.errors.setdefault("own", []).append("An own variant needs a label and at least one change, a line each: path=value.")
    if len(found) < 2:
        draft.errors.setdefault("contenders", []).append("A race has at least two contenders. Choose another one.")
    return found


def _resolve(draft: Draft, team: Team, data: dict[str, Any]) -> None:
    try:
        draft.spec = plan.read(data)
        money = resources.money(team)
        draft.entries = plan.entries(draft.spec, money.per_hour if money else None)
    except ConfigError as fault:
        for problem in fault.problems:
            draft.errors.setdefault(_input_of(problem), []).append(_told(problem))


def _input_of(problem: HeadraceError) -> str:
    """The input that a fault belongs to."""
    path = problem.field or ""
    if path in (*WORKLOAD, *WORKLOAD_MORE):
        return path
    head = path.split(".")[0]
    if path == "stop.kind":
        return "stop_kind"
    names = {"stop": "stop_value", "seeds": "seeds", "limit_s": "limit_s", "devices": "devices", "at_once": "at_once", "retries": "retries"}
    return names.get(head, "contenders")


def _told(problem: HeadraceError) -> str:
    where = f"{problem.field}: " if problem.field and "." in problem.field else ""
    return f"{where}{forms.sentence(problem.message, problem.cure)}"
