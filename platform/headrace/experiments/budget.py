"""A run's budget as it stands: what the config says, what people extended it to, and what is used of it. Reads only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import RunState
from workers.contract.events import Control


@dataclass(frozen=True, slots=True)
class Budget:
    """steps and wall_s are what holds now; None: no such limit. `config_*`: what the config says."""

    steps: int
    wall_s: float | None
    samples: int | None
    tokens: int | None
    config_steps: int
    config_wall_s: float | None

    @property
    def extended(self) -> bool:
        return (self.steps, self.wall_s) != (self.config_steps, self.config_wall_s)


@dataclass(frozen=True, slots=True)
class Used:
    """What the run has done so far, as far as it told. wall_s counts from the start of the last attempt."""

    steps: int
    wall_s: float | None
    samples: int | None
    tokens: int | None


def budget_of(run: Run) -> Budget:
    """The limits that hold for this run."""
    given = run.config.data.get("budget") if isinstance(run.config.data, dict) else None
    given = given if isinstance(given, dict) else {}
    control = Control.model_validate(run.control or {})
    steps = int(given.get("steps") or 1)
    return Budget(
        steps=control.steps or steps,
        wall_s=control.wall_s or given.get("wall_s"),
        samples=given.get("samples"),
        tokens=given.get("tokens"),
        config_steps=steps,
        config_wall_s=given.get("wall_s"),
    )


def used_of(run: Run) -> Used:
    """From the last state the run sent and, once it is over, from its summary."""
    attempt = Attempt.objects.for_team(run.team_id).filter(run=run).select_related("latest").order_by("-number").first()
    latest = getattr(attempt, "latest", None)
    state: dict[str, Any] = (latest.state or {}).get("data", {}) if latest is not None else {}
    summary: dict[str, Any] = run.summary if run.is_over and isinstance(run.summary, dict) else {}
    steps = [summary.get("steps"), latest.step if latest is not None else None, state.get("step")]
    wall = (state.get("time") or {}).get("wall_s") or summary.get("wall_s")
    return Used(
        steps=max([int(value) for value in steps if isinstance(value, int | float)], default=0),
        wall_s=float(wall) if isinstance(wall, int | float) else None,
        samples=summary.get("samples_trained") or (state.get("samples") or {}).get("trained"),
        tokens=summary.get("tokens_trained"),
    )


def used_up(run: Run) -> str | None:
    """Why a new attempt would end at once, in words; None: something is left to do.

    A run that succeeded and did not say how far it came is taken to have done all its steps.
    """
    budget, used = budget_of(run), used_of(run)
    told = isinstance(run.summary, dict) and "steps" in run.summary
    done = used.steps if told or run.state != RunState.SUCCEEDED else max(used.steps, budget.config_steps)
    if done >= budget.steps:
        return f"all {budget.steps} steps of its budget are done"
    for limit, spent, unit in ((budget.samples, used.samples, "samples"), (budget.tokens, used.tokens, "tokens")):
        if limit is not None and spent is not None and spent >= limit:
            return f"all {limit} {unit} of its budget are trained"
    return None
