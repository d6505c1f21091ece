"""What is known of a run before it runs: arithmetic on its config, and what the last one like it took. Nothing here is guessed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.dispatch import capacity, queue
from headrace.dispatch.scheduler import Waiting
from headrace.experiments.models import Run
from headrace.experiments.states import RunState
from headrace.teams.models import Team
from workers.contract.config import RunConfig

_PREVIEW = 2**62  # a key that no stored run has: it comes after all of them


@dataclass(frozen=True)
class Likeness:
    """The last finished run of the same preset and model in this team. `startup`: seconds before the first step, of one attempt."""

    run: Run
    seconds: float
    steps: int
    samples_a_step: int
    startup: float = 0.0

    @property
    def seconds_a_step(self) -> float:
        return self.seconds / self.steps


def arithmetic(config: RunConfig) -> list[dict[str, str]]:
    """Label and value: numbers that follow from the config alone."""
    batch, budget = config.batch, config.budget
    samples = batch.prompts * batch.group_size
    engines, ranks = config.rollout.engines, config.backend.ranks
    rows = [
        ("Samples a step", f"{samples:,} = {batch.prompts} prompts × {batch.group_size}"),
        ("Samples in all", f"{samples * budget.steps:,} in {budget.steps:,} steps"),
        ("Optimizer steps", f"{budget.steps * batch.minibatches * batch.epochs:,}"),
        ("Tokens at most", f"{samples * budget.steps * config.sampling.max_new_tokens:,} generated"),
        ("Devices", f"{engines + ranks}: {_count(engines, 'engine')}, {_count(ranks, 'trainer rank')}"),
    ]
    return [{"label": label, "value": value} for label, value in rows]


def likeness(team: Team, config: RunConfig) -> Likeness | None:
    """What it took last time. None: no run of this preset and model has finished here."""
    preset = (config.preset or "").partition("@")[0]
    runs = Run.objects.for_team(team).filter(state=RunState.SUCCEEDED, deleted_at=None, config__data__model__path=config.model.path)
    runs = runs.filter(preset__startswith=f"{preset}@") if preset else runs.filter(preset="")
    for run in runs.exclude(source=Run.Source.UPLOAD).select_related("config").order_by("-created_at")[:5]:
        spans = [(one.ended_at - one.started_at).total_seconds() for one in run.attempts.all() if one.started_at and one.ended_at]
        batch, told = run.config.data["batch"], run.summary if isinstance(run.summary, dict) else {}
        # What was done, not what was planned: a budget is changed while it runs, and other bounds than steps end a run
        steps, startup = told.get("steps") or run.config.data["budget"]["steps"], float(told.get("startup_s") or 0.0)
        working = sum(spans) - startup * len(spans)
        if spans and working > 0:
            return Likeness(run, working, steps, batch["prompts"] * batch["group_size"], startup)
    return None


def of(team: Team, config: RunConfig, *, priority: int = 0, runs: int = 1) -> dict[str, Any]:
    """All that the aside shows, as JSON."""
    ask = capacity.asked(config.as_json())
    return {"rows": arithmetic(config), "last": _last(team, config, runs), "queue": _queue(team, ask, priority), "runs": runs}


def _last(team: Team, config: RunConfig, runs: int) -> dict[str, Any] | None:
    found = likeness(team, config)
    if found is None:
        return None
    seconds = found.startup + found.seconds_a_step * config.budget.steps
    here = config.batch.prompts * config.batch.group_size
    devices = capacity.asked(config.as_json()).devices
    price = capacity.price_of(found.run)
    money = None if price is None else f"{float(price.per_device_hour) * devices * seconds / 3600 * runs:,.2f} {price.currency}"
    return {
        "id": found.run.public_id,
        "name": found.run.name,
        "seconds_a_step": found.seconds_a_step,
        "seconds": seconds,
        "same_batch": here == found.samples_a_step,
        "samples_a_step": found.samples_a_step,
        "money": money,
    }


def _queue(team: Team, ask: Any, priority: int) -> dict[str, Any]:
    cluster = capacity.cluster_key(team)
    seen = queue.look(preview=Waiting(_PREVIEW, team.pk, priority, 0.0, ask, cluster))
    own = [decision for decision in seen.decisions if seen.waiting[decision.key].team == team.pk]
    position = next(place for place, decision in enumerate(own, 1) if decision.key == _PREVIEW)
    decision = own[position - 1]
    there = seen.capacities[cluster]
    larger = there.cpus is not None and ask.cpus > there.cpus
    return {
        "at_once": decision.launch,
        "why": decision.why,
        "before": position - 1,
        "larger": f"It asks for {ask.cpus:g} CPUs and there are {there.cpus:g}: it will run alone and share them out." if larger else "",
    }


def _count(number: int, word: str) -> str:
    return f"{number} {word}" + ("" if number == 1 else "s")
