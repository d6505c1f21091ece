"""One knob turned through its values, everything else held: where more of it stops paying."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from workers.contract.errors import ConfigError, HeadraceError
from workers.parts import TRAINER
from workers.planner.measure import GENERATORS
from workers.planner.plan import dominant_wait, plan
from workers.planner.race import Tell
from workers.planner.scenario import Scenario

WITHIN = 0.02  # of the best samples a second


@dataclass(frozen=True)
class Knob:
    """says: what its values count. turn(scenario, value) -> the scenario to plan for, and overrides of the run."""

    says: str
    values: tuple[float, ...]
    turn: Callable[[Scenario, float], tuple[Scenario, list[str]]]


def _depth_bound(scenario: Scenario, value: float) -> tuple[Scenario, list[str]]:
    return scenario, [f'staleness.depth_bound={{"value": {value:g}, "unit": "batches"}}']


def _buffer_depth(scenario: Scenario, value: float) -> tuple[Scenario, list[str]]:
    return scenario, ["buffer.kind=bounded", "buffer.unit=group", f"buffer.depth={max(1, round(value * scenario.batch.prompts))}"]


def _max_lag(scenario: Scenario, value: float) -> tuple[Scenario, list[str]]:
    return scenario, [f"staleness.max_lag={int(value)}", "staleness.over_limit=drop"]


def _every_steps(scenario: Scenario, value: float) -> tuple[Scenario, list[str]]:
    return scenario, [f"sync.every_steps={int(value)}"]


def _split(scenario: Scenario, value: float) -> tuple[Scenario, list[str]]:
    """So many of all GPUs train, the others generate. The trainer's speed grows with its GPUs."""
    gpus, each = scenario.gpus, scenario.generation.gpus_per_replica
    replicas = (gpus - int(value)) // each
    if int(value) < 1 or replicas < 1:
        cure = f"give values from 1 to {gpus - each}"
        raise ConfigError("leaves one of the pools without a GPU", field="values", value=value, cure=cure)
    ratio = scenario.training.gpus / int(value)
    token_s = None if scenario.training.token_s is None else scenario.training.token_s * ratio
    training = scenario.training.model_copy(update={"gpus": int(value), "token_s": token_s, "batch_s": scenario.training.batch_s})
    generation = scenario.generation.model_copy(update={"replicas": replicas})
    return scenario.model_copy(update={"training": training, "generation": generation}), []


KNOBS = {
    "staleness.depth_bound": Knob("batches under way at most", (1, 1.25, 1.5, 2, 2.5, 3, 4, 6), _depth_bound),
    "buffer.depth": Knob("batches that may wait", (1, 1.25, 1.5, 2, 3, 4), _buffer_depth),
    "staleness.max_lag": Knob("versions", (0, 1, 2, 3, 4, 6, 8), _max_lag),
    "sync.every_steps": Knob("steps between two publishes", (1, 2, 3, 4, 6, 8), _every_steps),
    "split": Knob("GPUs that train", (), _split),
}


def sweep(
    preset: str,
    scenario: Scenario,
    knob: str,
    values: Sequence[float] = (),
    sets: Sequence[str] = (),
    tell: Tell = lambda line: None,
) -> dict[str, Any]:
    """{"knob", "says", "cells": [{"value", "plan" or "error"}], "knee"}. Called by the command line and the API.

    The knee is the smallest value within 2 % of the best samples a second. `why` tells of the values beside it which wait took most,
    of the pool that waits more. Raises ConfigError for an unknown knob, and where no value can be planned.
    """
    if knob not in KNOBS:
        raise ConfigError("there is no such knob", field="over", value=knob, cure=f"choose one of: {', '.join(KNOBS)}")
    chosen = sorted(set(values or KNOBS[knob].values or _splits(scenario)))
    cells = []
    for place, value in enumerate(chosen, start=1):
        cell: dict[str, Any] = {"value": value}
        try:
            turned, more = KNOBS[knob].turn(scenario, value)
            cell["plan"] = plan(preset, turned, [*sets, *more])
            line = f"{cell['plan']['samples_per_s']:.4g} samples/s"
        except HeadraceError as error:
            cell["error"] = error.as_dict()
            line = str(error)
        cells.append(cell)
        tell(f"[{place}/{len(chosen)}] {knob} = {value:g}: {line}")
    planned = [cell for cell in cells if "plan" in cell]
    if not planned:
        first = cells[0]["error"]
        raise ConfigError(first["message"], field=first["field"], value=first["value"], cure=first["cure"])
    return {
        "scenario": scenario.name,
        "preset": preset,
        "knob": knob,
        "says": KNOBS[knob].says,
        "cells": cells,
        "knee": knee(planned),
    }


def knee(cells: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Of planned cells in ascending order."""
    rates = [cell["plan"]["samples_per_s"] for cell in cells]
    place = next(index for index, rate in enumerate(rates) if rate >= (1 - WITHIN) * max(rates))
    beside = {"below": place - 1, "at": place, "above": place + 1}
    sides = {name: _side(cells[index]) for name, index in beside.items() if 0 <= index < len(cells)}
    return {
        "value": cells[place]["value"],
        "samples_per_s": rates[place],
        "best_samples_per_s": max(rates),
        "why": sides,
        "words": _words(sides),
    }


def _side(cell: dict[str, Any]) -> dict[str, Any]:
    """The wait that costs most: of both pools, the one whose largest wait is larger."""
    waits = [
        (share, lane, cause) for lane in (TRAINER, GENERATORS) if (wait := dominant_wait(cell["plan"], lane)) for cause, share in [wait]
    ]
    share, lane, cause = max(waits, default=(0.0, None, None), key=lambda wait: wait[0])
    rate, lag = cell["plan"]["samples_per_s"], cell["plan"]["lag"]["mean"]
    return {"value": cell["value"], "samples_per_s": rate, "lag_mean": lag, "lane": lane, "wait": cause, "share": share}


def _words(sides: dict[str, dict[str, Any]]) -> str:
    parts = []
    for name, side in sides.items():
        waits = "nothing waits" if side["wait"] is None else f"{side['lane']}: {side['wait']} {side['share']:.0%} of the time"
        parts.append(f"{name} ({side['value']:g}) {side['samples_per_s']:.4g} samples/s, {waits}")
    return "; ".join(parts)


def _splits(scenario: Scenario) -> list[float]:
    """At most eight ways to share the GPUs out, whole replicas each."""
    gpus, each = scenario.gpus, scenario.generation.gpus_per_replica
    ways = [gpus - replicas * each for replicas in range(1, 1 + (gpus - 1) // each)]
    step = -(-len(ways) // 8) if ways else 1
    return [float(way) for way in sorted(ways)[::step]]
