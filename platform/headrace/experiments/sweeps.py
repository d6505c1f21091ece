"""Running one config several times: over seeds and a few values of a few fields. Reading what was asked, the runs it makes, launching."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from django.db import IntegrityError, transaction

from headrace.experiments import admission, services
from headrace.experiments.models import Artifact, Config, Experiment, Project, Run, Sweep
from headrace.experiments.problems import BadInput, IdempotencyConflict
from headrace.experiments.states import RunState
from headrace.experiments.text import clean_line
from headrace.schema_form import fields_of
from headrace.schema_parse import Errors
from headrace.teams import audit
from headrace.teams.models import Team, User
from headrace.teams.services import require
from workers.contract import fields, loading
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

MOST_RUNS = 64
MOST_AXES = 3
MOST_TEXT = 2000
LARGEST_SEED = 2**31 - 1
_RANGE = re.compile(r"(\d{1,10})\s*(?:-|\.\.|–)\s*(\d{1,10})")


@dataclass(frozen=True)
class Variant:
    """One run of a sweep: what is set in it, and what that resolves to."""

    seed: int
    values: dict[str, Any]
    config: RunConfig

    @property
    def label(self) -> str:
        words = [f"{path.rpartition('.')[2]}={shown(value)}" for path, value in self.values.items()]
        return ", ".join([*words, f"seed {self.seed}"])


@dataclass
class Plan:
    """What was asked for: seeds, and axes as [{"path", "values"}]. `errors` by the form's field."""

    seeds: list[int] = field(default_factory=list)
    axes: list[dict[str, Any]] = field(default_factory=list)
    errors: Errors = field(default_factory=dict)

    @property
    def wanted(self) -> bool:
        return bool(self.seeds or self.axes or self.errors)

    def count(self) -> int:
        total = max(1, len(self.seeds))
        for axis in self.axes:
            total *= len(axis["values"])
        return total


def read_plan(submitted: Mapping[str, Any]) -> Plan:
    """From the form's `sweep.*` inputs; nothing filled in is no sweep. Called on every check and every launch."""
    plan = Plan()
    try:
        plan.seeds = read_seeds(str(submitted.get("sweep.seeds", "")))
    except BadInput as fault:
        plan.errors["sweep.seeds"] = [f"{fault.message[:1].upper()}{fault.message[1:]}. {fault.cure}."]
    for number in range(1, MOST_AXES + 1):
        path, text = (str(submitted.get(f"sweep.{part}.{number}", "")).strip() for part in ("path", "values"))
        if not path and not text:
            continue
        try:
            plan.axes.append(read_axis(path, text, taken=[axis["path"] for axis in plan.axes]))
        except (BadInput, ConfigError) as fault:
            plan.errors[f"sweep.values.{number}"] = [
                f"{fault.message[:1].upper()}{fault.message[1:]}. {(fault.cure or '')[:1].upper()}{(fault.cure or '')[1:]}."
            ]
    if plan.count() > MOST_RUNS:
        plan.errors["sweep.seeds"] = [f"This makes {plan.count()} runs; at most {MOST_RUNS} go at once. Take fewer seeds or values."]
    return plan


def read_seeds(text: str) -> list[int]:
    """ "7, 8, 9" or "1-5", in the order given, each once."""
    if len(text) > MOST_TEXT:
        raise BadInput("this list is too long", field="sweep.seeds", cure=f"at most {MOST_RUNS} seeds")
    found: list[int] = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        span = _RANGE.fullmatch(word)
        low, high = (int(span[1]), int(span[2])) if span else (int(word), int(word)) if word.isascii() and word.isdigit() else (1, 0)
        if low > high or high > LARGEST_SEED or high - low >= MOST_RUNS:
            raise BadInput(
                f"“{word[:40]}” is not a seed or a short range of seeds",
                field="sweep.seeds",
                value=word[:40],
                cure="Write for example 7, 8, 9 or 1-5",
            )
        found += range(low, high + 1)
    return list(dict.fromkeys(found))


def read_axis(path: str, text: str, taken: Sequence[str] = ()) -> dict[str, Any]:
    """One varied field: values with commas between them, or a JSON list."""
    if path not in fields_of(RunConfig.model_json_schema()) or path == "seed":
        cure = "seeds have their own line" if path == "seed" else "choose a field of the form, for example buffer.depth"
        raise BadInput("this is no field to vary", field=path, value=path, cure=cure)
    if path in taken:
        raise BadInput("this field is varied already", field=path, value=path, cure="put all its values on one line")
    if len(text) > MOST_TEXT:
        raise BadInput("these are too many values", field=path, cure=f"at most {MOST_RUNS}")
    info = fields.find(path)
    assert info is not None  # every field of the form is one of the contract's
    if text.startswith("["):
        try:
            values = json.loads(text)
        except (ValueError, RecursionError):
            raise BadInput("this is not a JSON list", field=path, value=text[:60], cure="for example [1, 2]") from None
    else:
        values = [fields.parsed(path, info, word.strip()) for word in text.split(",") if word.strip()]
    if not isinstance(values, list) or not values:
        raise BadInput("there are no values", field=path, value=text[:60], cure="write them with commas between them")
    once = list({json.dumps(value, sort_keys=True): value for value in values}.values())
    return {"path": path, "values": once}


def variants(config: RunConfig, plan: Plan) -> list[Variant]:
    """Every run of the grid, seeds innermost. Raises ConfigError for the first combination that cannot run, saying which it is."""
    base, made = config.as_json(), []
    for combination in itertools.product(*(axis["values"] for axis in plan.axes)):
        values = dict(zip((axis["path"] for axis in plan.axes), combination, strict=True))
        table = base
        for path, value in values.items():
            table = loading.overlay(table, _nested(path, value))
        for seed in plan.seeds or [config.seed]:
            try:
                made.append(Variant(seed, values, loading.resolve({**table, "seed": seed})))
            except ConfigError as fault:
                where = ", ".join(f"{path}={shown(value)}" for path, value in values.items())
                raise ConfigError(f"with {where}: {fault.message}", field=fault.field, value=fault.value, cure=fault.cure) from None
    return made


def _nested(path: str, value: Any) -> dict[str, Any]:
    for key in reversed(path.split(".")):
        value = {key: value}
    return dict(value)


def shown(value: Any) -> str:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 40 else f"{text[:39]}…"


def start_sweep(
    *,
    team: Team,
    user: User | None,
    config: RunConfig,
    plan: Plan,
    project: Project,
    name: str,
    idempotency_key: str,
    parent: Run | None = None,
    experiment: Experiment | None = None,
    forked_from: Artifact | None = None,
    priority: int = 0,
    source: str = Run.Source.WEB,
) -> Sweep:
    """Queue all runs of the grid in one transaction: all of them or none. The same key answers with the sweep it made before.

    Raises BadInput, ConfigError, QuotaReached, IdempotencyConflict, NotAllowed.
    """
    if user is not None:
        require(user, "run.create", team)
    if plan.errors or not 1 <= plan.count() <= MOST_RUNS:
        raise BadInput(f"a sweep has 1 to {MOST_RUNS} runs", field="sweep", value=plan.count(), cure="take fewer seeds or values")
    name, key = clean_line(name, field="name"), clean_line(idempotency_key, field="idempotency_key", longest=180)
    made = variants(config, plan)
    stored = services.create_config(team, config, user=user, parent=parent.config if parent else None)
    with transaction.atomic():
        sweep, fresh = _row(team, user, stored, plan, project, name, key)
        if not fresh:
            return sweep
        admission.check_quota(team, len(made))
        for number, variant in enumerate(made, 1):
            services.start_run(
                team=team,
                user=user,
                config=services.create_config(team, variant.config, user=user, parent=stored),
                project=project,
                name=f"{name} · {variant.label}"[:200],
                idempotency_key=f"{key}/{number}",
                parent=parent,
                experiment=experiment,
                forked_from=forked_from,
                source=source,
                priority=priority,
                group=sweep.public_id,
                sweep=sweep,
            )
        audit.record(
            "sweep.start", user=user, team=team, obj=sweep, detail={"runs": len(made), "axes": [axis["path"] for axis in plan.axes]}
        )
    return sweep


def _row(team: Team, user: User | None, config: Config, plan: Plan, project: Project, name: str, key: str) -> tuple[Sweep, bool]:
    asked = {"name": name, "axes": plan.axes, "seeds": plan.seeds, "config_id": config.pk, "project_id": project.pk}
    try:
        with transaction.atomic():
            existing = Sweep.objects.for_team(team).filter(idempotency_key=key).first()
            if existing is None:
                return Sweep.objects.create(team=team, idempotency_key=key, created_by=user, **asked), True
    except IntegrityError:  # two requests with one key met; the other was first
        existing = Sweep.objects.for_team(team).get(idempotency_key=key)
    if {name: getattr(existing, name) for name in asked} != asked:
        raise IdempotencyConflict("this key was used for a different sweep", field="idempotency_key", value=key, cure="send a new key")
    return existing, False


def cancel_all(sweep: Sweep, user: User) -> int:
    """Ask every run of the sweep that is not over to stop. Returns how many changed. Raises NotAllowed before anything is touched."""
    runs = list(
        Run.objects.for_team(sweep.team_id).filter(sweep=sweep, state__in=RunState.active(), deleted_at=None).select_related("team")
    )
    for run in runs:
        require(user, "run.cancel", run)
    audit.record("sweep.cancel", user=user, team=sweep.team, obj=sweep, detail={"runs": len(runs)})
    return sum(services.cancel_run(run, user) for run in runs)
