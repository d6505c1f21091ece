"""One design at one scenario: the real flow on the virtual clock, and what it comes to."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from typing import Any

from workers.clock import VirtualClock, run_virtual
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.pipeline import Pipeline
from workers.planner import ceilings as limits
from workers.planner import design, episodes
from workers.planner.assembly import assemble
from workers.planner.ceilings import Ceilings
from workers.planner.draws import Draws
from workers.planner.measure import BUSY, Ear, Gauge, Mark, shares, weighted_percentile
from workers.planner.memory import memory
from workers.planner.scenario import Scenario
from workers.planner.twins import CountingSource, EmulatedEnvironment, EmulatedScorer

DIGITS = 6  # after which two plans are the same


def plan(preset: str, scenario: Scenario, sets: Sequence[str] = (), ceilings: Ceilings | None = None) -> dict[str, Any]:
    """What `preset` comes to at `scenario`, as JSON values: called by the command line, the race, the sweep and the API.

    sets: overrides of the run's options. ceilings: of this very scenario, where they are known already. The same arguments give the
    same bytes. No data is None. Raises ConfigError for what cannot be configured, EngineError for a design that trains nothing.
    """
    return planned(design.configured(preset, scenario, sets), scenario, ceilings)


def planned(config: RunConfig, scenario: Scenario, ceilings: Ceilings | None = None) -> dict[str, Any]:
    """The same of a run that is configured already."""
    ceilings = ceilings or limits.ceilings(config, scenario)
    ear = simulate(config, scenario)
    assert ear.begin is not None and ear.end is not None and ear.gauge is not None and ear.parts is not None
    told: dict[str, Any] = rounded(_told(config, scenario, ceilings, ear, ear.begin, ear.end))
    return told


def simulate(config: RunConfig, scenario: Scenario, heard_by: type[Ear] = Ear) -> Ear:
    """The flow from its first dispatch to the last measured step."""

    async def main() -> Ear:
        clock, draws = VirtualClock(), Draws(scenario)
        ear = heard_by(clock, scenario.warmup_steps, scenario.warmup_steps + scenario.steps)
        parts = assemble(
            config,
            clock,
            ear,  # type: ignore[arg-type]
            lengths=draws.grains,
            engine_cost=limits.engine_cost(scenario),
            costs=design.costs(config, scenario),
            scorer=EmulatedScorer(clock, draws.reward, draws.judged_s if draws.judges else None),
            environment=EmulatedEnvironment(CountingSource(scenario.prompt_tokens)),
            draws=draws,
            deadlines=False,
        )
        ear.parts, ear.gauge = parts, Gauge(parts.buffer, parts)
        parts.buffer, parts.pulse_s = ear.gauge, None
        parts.stop_requested = lambda: parts.progress.step >= ear.last_step
        ear.start()
        await Pipeline(parts).run()
        return ear

    try:
        with rarely_collected():
            return run_virtual(main())
    except BaseExceptionGroup as group:
        errors = group.exceptions
        raise errors[0] if len(errors) == 1 and isinstance(errors[0], EngineError) else group from None


@contextmanager
def rarely_collected() -> Iterator[None]:
    """A simulation makes a great many short-lived objects and next to no cycles: looking for cycles as often as Python does by itself
    takes a quarter of its time."""
    before = gc.get_threshold()
    gc.set_threshold(100_000, 50, 50)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _told(config: RunConfig, scenario: Scenario, ceilings: Ceilings, ear: Ear, begin: Mark, end: Mark) -> dict[str, Any]:
    gauge, parts = ear.gauge, ear.parts
    assert gauge is not None and parts is not None
    seconds, trained = end.at - begin.at, end.trained - begin.trained
    dropped = end.dropped - begin.dropped
    steps_per_s = scenario.steps / seconds
    time = shares(begin, end)
    lags = ear.lags
    batch = design.batch_units(scenario, config.buffer.unit)
    told: dict[str, Any] = {
        "scenario": scenario.name,
        "preset": config.preset,
        "seed": scenario.seed,
        "steps": scenario.steps,
        "warmup_steps": scenario.warmup_steps,
        "generation_batch_s": ceilings.generation_batch_s,
        "step_s": seconds / scenario.steps,
        "samples_per_s": trained / seconds,
        "overlap": steps_per_s / ceilings.least,
        "ceilings": asdict(ceilings),
        "idle": {name: {cause: share for cause, share in causes.items() if cause not in BUSY[name]} for name, causes in time.items()},
        "time": time,
        "lag": {
            "mean": sum(lag * count for lag, count in lags.items()) / lags.total() if lags else None,
            "p95": weighted_percentile(lags, 0.95),
            "max": max(lags, default=None),
        },
        "buffer_depth": {
            "mean": (end.area - begin.area) / seconds,
            "max": gauge.most,
            "unit": config.buffer.unit,
            "batches": (end.area - begin.area) / seconds / batch,
        },
        "dropped_share": dropped / (trained + dropped) if trained + dropped else None,
        "dropped": dict(sorted((end.reasons - begin.reasons).items())),
        "sync_s": statistics.fmean(ear.sync_s) if ear.sync_s else None,
        "wall_s": end.at,
        "gpus": scenario.gpus,
        "gpu_hours": end.at * scenario.gpus / 3600,
        "cost": None if scenario.gpu_hour is None else end.at * scenario.gpus / 3600 * scenario.gpu_hour,
        "memory": memory(scenario, config.lora),
        "episodes": episodes.episodes(config, scenario),
        "grain": scenario.grain,
        "design": _design(config),
    }
    rows = [row.model_dump(mode="json") for row in scenario.published if row.preset in (None, _name(config))]
    told["published"] = [{**row, "predicted": _figure(told, row["figure"])} for row in rows]
    return told


def _design(config: RunConfig) -> dict[str, Any]:
    """What of the scaled config decides the flow."""
    bound = config.staleness.depth_bound
    return {
        "buffer": config.buffer.model_dump(mode="json"),
        "interrupt": config.interrupt.kind,
        "partial": list(config.partial),
        "max_lag": config.staleness.max_lag,
        "over_limit": config.staleness.over_limit,
        "depth_bound": None if bound is None else bound.model_dump(mode="json"),
        "every_steps": config.sync.every_steps,
        "transport": config.transport.kind,
        "payload": config.transport.payload,
    }


def _name(config: RunConfig) -> str:
    return (config.preset or "").partition("@")[0]


def _figure(told: dict[str, Any], path: str) -> float | None:
    """The figure at a dotted path, None where the plan has none of that name."""
    value: Any = told
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value if isinstance(value, int | float) else None


def dominant_wait(told: dict[str, Any], lane: str) -> tuple[str, float] | None:
    """The cause other than work that took the largest share of a lane class: ("wait_buffer_empty", 0.4). None: it always worked."""
    waits = told["idle"].get(lane, {})
    return max(waits.items(), key=lambda item: item[1]) if waits else None


def rounded(value: Any) -> Any:
    """Floats to six significant digits behind the point, so that sums in another order would print the same."""
    if isinstance(value, float):
        return round(value, DIGITS)
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value
