"""A run of one's own before it runs: its config as it is, at costs and lengths that another run has measured."""

from __future__ import annotations

from typing import Any

from workers.contract import loading
from workers.contract.config import RunConfig
from workers.planner.design import LONGEST_S, SPARE_STEPS
from workers.planner.plan import planned, rounded
from workers.planner.scenario import Scenario

WARMUP_STEPS = 5
MOST_STEPS = 20
LEAST_STEPS = 3
MOST_SAMPLES = 12_000  # simulated, warm-up included: the answer is there in a second or two


def forecast(config: RunConfig, measured: Scenario) -> dict[str, Any]:
    """What `planner.plan` tells of a design, told of this very run. Called by the command line, and through it by the form.

    Batch, engines, slots, bounds and lengths' limit are the config's; costs and lengths are the scenario's. `wall_s`, `gpu_hours` and
    `cost` are those of the whole budget, of `budget_steps` steps. A run that trains fewer ranks than the measured one, or more, is
    forecast at the measured speed of the trainer. Raises ConfigError, and EngineError for a design that trains nothing.
    """
    scenario = fitted(config, measured)
    told = planned(simulated(config, scenario), scenario)
    steps = budget_steps(config)
    wall_s = told["step_s"] * steps
    if config.budget.wall_s is not None:
        wall_s = min(wall_s, config.budget.wall_s)
    hours = wall_s * scenario.gpus / 3600
    cost = None if scenario.gpu_hour is None else hours * scenario.gpu_hour
    whole = {"budget_steps": steps, "wall_s": wall_s, "gpu_hours": hours, "cost": cost}
    result: dict[str, Any] = rounded({**told, **whole})
    return result


def fitted(config: RunConfig, measured: Scenario) -> Scenario:
    """The scenario with the config's sizes. Steps are few, so that the answer is there at once."""
    samples = config.batch.prompts * config.batch.group_size
    room = MOST_SAMPLES // samples
    warmup = max(1, min(WARMUP_STEPS, room // 3))
    steps = max(LEAST_STEPS, min(MOST_STEPS, config.budget.steps, room - warmup))
    generation = measured.generation.model_copy(update={"replicas": config.rollout.engines, "slots": config.rollout.max_running})
    batch = measured.batch.model_copy(update={"prompts": config.batch.prompts, "group_size": config.batch.group_size})
    changes = {
        "seed": config.seed % 2**31,
        "batch": batch,
        "generation": generation,
        "training": measured.training.model_copy(update={"gpus": config.backend.ranks}),
        "max_new_tokens": config.sampling.max_new_tokens,
        "steps": steps,
        "warmup_steps": warmup,
    }
    return measured.model_copy(update=changes)


def simulated(config: RunConfig, scenario: Scenario) -> RunConfig:
    """The run that the virtual clock sees: its lengths in grains, without evaluations, checkpoints, deadlines and an end."""
    longest = -(-config.sampling.max_new_tokens // scenario.grain)
    spec = loading.overlay(
        config.as_json(),
        {
            "sampling": {"max_new_tokens": longest},
            "rewards": {"overlong_tokens": min(config.rewards.overlong_tokens, max(1, longest - 1))},
            "rollout": {"deadline_s": LONGEST_S},
            "evaluation": {"every_steps": 0, "at_start": False, "at_end": False},
            "checkpoint": {"every_steps": 0},
            "budget": {"steps": SPARE_STEPS, "wall_s": None, "samples": None, "tokens": None},
        },
    )
    return loading.resolve(spec, None)


def budget_steps(config: RunConfig) -> int:
    """Steps until the budget of steps or of samples is used up."""
    samples = config.budget.samples
    if samples is None:
        return config.budget.steps
    return min(config.budget.steps, -(-samples // (config.batch.prompts * config.batch.group_size)))
