"""A preset's design at a scenario's size.

What a preset counts in groups or samples (buffer depth, ring, a depth bound in samples) was chosen for the batch of its own file. It is
kept as a multiple of that batch: a buffer of one and a half batches stays one of one and a half batches. Versions (`max_lag`), steps
(`sync.every_steps`), batches and fractions mean the same at every size and stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from workers.contract import loading
from workers.contract.config import RunConfig
from workers.planner.costs import Costs, declared
from workers.planner.scenario import Scenario

SPARE_STEPS = 1_000_000  # the plan stops by itself; a budget that ends would empty the engines before
LONGEST_S = 31_536_000.0


def configured(preset: str, scenario: Scenario, sets: Sequence[str] = ()) -> RunConfig:
    """The run that is simulated: the preset, scaled to the scenario, with the scenario's own overrides and `sets` on top.

    Raises ConfigError.
    """
    original = loading.resolve(preset=preset)
    spec: dict[str, Any] = {
        "preset": preset,
        "seed": scenario.seed,
        "batch": {"prompts": scenario.batch.prompts, "group_size": scenario.batch.group_size, "minibatches": 1},
        "sampling": {"max_new_tokens": -(-scenario.max_new_tokens // scenario.grain)},
        "rollout": {
            "engine": "torch",
            "engines": scenario.generation.replicas,
            "max_running": scenario.generation.slots,
            "deadline_s": LONGEST_S,
        },
        "buffer": _buffer(original, scenario),
        "staleness": _staleness(original, scenario),
        "evaluation": {"every_steps": 0, "at_start": False, "at_end": False},
        "checkpoint": {"every_steps": 0},
        "budget": {"steps": SPARE_STEPS, "wall_s": None, "samples": None, "tokens": None},
    }
    return loading.resolve(spec, sets=[*_truncation(original, scenario), *scenario.run, *sets])


def _truncation(original: RunConfig, scenario: Scenario) -> list[str]:
    zone = min(original.rewards.overlong_tokens, max(1, scenario.max_new_tokens // scenario.grain - 1))
    return [f"rewards.overlong_tokens={zone}"]


def _buffer(original: RunConfig, scenario: Scenario) -> dict[str, Any]:
    factor = batch_units(scenario, original.buffer.unit) / _units(original, original.buffer.unit)
    scaled: dict[str, Any] = {"depth": min(100_000, max(1, round(original.buffer.depth * factor)))}
    if original.buffer.ring is not None:
        scaled["ring"] = min(1_000_000, max(1, round(original.buffer.ring * factor)))
    return scaled


def _staleness(original: RunConfig, scenario: Scenario) -> dict[str, Any]:
    bound = original.staleness.depth_bound
    if bound is None or bound.unit != "samples":
        return {}
    factor = batch_units(scenario, "sample") / _units(original, "sample")
    return {"depth_bound": {"value": bound.value * factor, "unit": "samples"}}


def batch_units(scenario: Scenario, unit: str) -> int:
    """One batch of the scenario, in the buffer's units."""
    return scenario.batch.prompts * (scenario.batch.group_size if unit == "sample" else 1)


def _units(config: RunConfig, unit: str) -> int:
    return config.batch.prompts * (config.batch.group_size if unit == "sample" else 1)


def costs(config: RunConfig, scenario: Scenario) -> Costs:
    """What trainer, carrier and road cost: the scenario's figures, and `planner.costs` where it has none."""
    sync, shape = scenario.sync, scenario.shape
    weights = sync.weight_bytes or (shape.weight_bytes if shape else None)
    kinds = config.transport.payload, config.transport.kind
    told = next((sync.seconds[key] for key in ("/".join(kinds), *kinds, "any") if key in sync.seconds), None)
    adapter = None if shape is None else int(shape.adapter_params(config.lora.rank) * shape.bytes_per_value)
    common = declared(config, weight_bytes=int(weights or 0), adapter_bytes=adapter, load_s=sync.load_s)
    size = common.payload_bytes
    if told is not None:
        setup_s, byte_s, export_s = told, 0.0, sync.export_s or 0.0
    elif sync.bytes_per_s is not None:
        setup_s, byte_s, export_s = 0.0, 1 / sync.bytes_per_s, sync.export_s or 0.0
    else:
        setup_s, byte_s = common.setup_s, common.byte_s
        export_s = common.export_s if sync.export_s is None else sync.export_s
    return Costs(
        message_s=scenario.generation.message_s,
        token_s=scenario.token_s * scenario.grain,
        batch_s=scenario.training.batch_s,
        payload_bytes=size,
        export_s=export_s,
        setup_s=setup_s,
        byte_s=byte_s,
        load_s=common.load_s,
    )
