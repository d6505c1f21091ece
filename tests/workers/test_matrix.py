"""Every policy with every other: the real flow on the virtual clock, pair by pair, with both ledgers closed in every cell."""

from __future__ import annotations

import random
from itertools import product
from typing import Any, get_args

import pytest

from tests.workers.covering import Row, pairwise
from tests.workers.emulated import rig
from workers.clock import run_virtual
from workers.contract import axes, compat
from workers.contract.config import RunConfig
from workers.pipeline import Pipeline
from workers.planner.costs import declared
from workers.rollout.leaps import EngineCost

STEPS, PROMPTS, GROUP, MAX_LAG = 4, 3, 3, 1
BUFFERS: list[dict[str, Any]] = [
    *({"kind": kind} for kind in get_args(axes.BufferKind)),
    {"kind": "stream", "ring": 12},
]
INTERRUPTS = [
    (kind, kv_after, partial)
    for kind, (caches, partials) in axes.INTERRUPTS.items()
    for kv_after, partial in product(sorted(caches), sorted(partials))
]
FACTORS: dict[str, list[Any]] = {
    "interrupt": INTERRUPTS,
    "transport": list(get_args(axes.TransportKind)),
    "weights": [(lora, payload) for lora, payloads in axes.PAYLOADS.items() for payload in payloads],
    "buffer": BUFFERS,
    "order": list(get_args(axes.BufferOrder)),
    "unit": list(get_args(axes.BufferUnit)),
    "over_limit": list(get_args(axes.OverLimit)),
    "lag_from": list(get_args(axes.LagFrom)),
    "depth_bound": [None, (1, "batches"), (2, "batches"), (0.5, "fraction"), (20, "samples")],
    "zero_variance": ["keep", "drop", "refill"],
    "on_truncated": ["keep", "mask", "penalise", "drop"],
    "group_completeness": ["survivors", "complete"],
    "orchestration": list(get_args(axes.OrchestrationKind)),
    "backend": list(get_args(axes.BackendKind)),
    "cancel_group": [False, True],
    "publish_every": [1, 2],
    "engines": [1, 2],
}

NAMES = [f"g{group}/{index}" for group in range(400) for index in range(GROUP)]
REFUSED_PAIRS: list[set[str]] = [
    {"cancel_group", "over_limit"},
    {"interrupt", "transport"},
    {"weights", "transport"},
    {"orchestration", "transport"},
]


def config(cell: Row) -> RunConfig:
    kind, kv_after, partial = cell["interrupt"]
    lora, payload = cell["weights"]
    bound = cell["depth_bound"]
    return RunConfig.model_validate(
        {
            "batch": {"prompts": PROMPTS, "group_size": GROUP},
            "sampling": {"max_new_tokens": 24},
            "rollout": {"max_running": 8, "engines": cell["engines"]},
            "orchestration": {"kind": cell["orchestration"]},
            "buffer": {"depth": PROMPTS * GROUP, "unit": cell["unit"], "order": cell["order"], **cell["buffer"]},
            "transport": {"kind": cell["transport"], "payload": payload},
            "lora": {"kind": lora},
            "interrupt": {"kind": kind, "kv_after": kv_after},
            "partial": [partial, "cancel_group"] if cell["cancel_group"] else [partial],
            "staleness": {
                "max_lag": MAX_LAG,
                "over_limit": cell["over_limit"],
                "lag_from": cell["lag_from"],
                "depth_bound": bound and {"value": bound[0], "unit": bound[1]},
            },
            "rewards": {name: cell[name] for name in ("zero_variance", "on_truncated", "group_completeness")},
            "sync": {"every_steps": cell["publish_every"]},
            "backend": {"kind": cell["backend"], "ranks": 1 if cell["backend"] == "single" else 2},
            "budget": {"steps": STEPS},
            "evaluation": {"every_steps": 3, "at_start": False, "at_end": False, "prompts": 1},
            "checkpoint": {"every_steps": 0},
        }
    )


def simulate(settings: RunConfig, seed: int) -> Any:
    """One run with long tails, truncated samples and verifiers that fail. The model is so slow to train that the pools are balanced."""

    async def main() -> Any:
        parts = rig(
            settings,
            generators=settings.rollout.engines,
            lengths=lambda identity: random.Random(f"{seed}/{identity}").choice([1, 3, 8, 15, 22, 40]),
            engine_cost=EngineCost(step_s=0.02, sample_s=0.002, prefill_s=0.001, apply_s=0.003),
            costs=declared(settings, token_s=0.01, load_s=1.0),
            failing={name for name in NAMES if random.Random(name).random() < 0.04},
        )
        await Pipeline(parts).run()
        return parts

    return run_virtual(main())


def check(parts: Any, settings: RunConfig) -> None:
    samples, batches = parts.samples, parts.trainer.batches
    assert parts.progress.step == len(batches) == STEPS
    # Samples: the account closes, and agrees with what was counted beside it.
    trained = [sample for batch in batches for group in batch.groups for sample in group.samples]
    assert len({sample.rollout.id for sample in trained}) == len(trained) == samples.trained
    assert samples.dispatched == parts.progress.groups_dispatched * GROUP == samples.trained + sum(samples.dropped.values())
    assert samples.in_flight == samples.buffered == 0
    # Time: every second of every lane has one cause.
    times = parts.time.as_dict()
    for causes in times["lanes"].values():
        assert sum(causes.values()) == pytest.approx(times["wall_s"], rel=0.01)
    for state in parts.emit.of("state"):
        if state["buffer"]["capacity"]:
            assert state["buffer"]["depth"] <= state["buffer"]["capacity"]
    check_versions(batches, trained, settings)


def check_versions(batches: Any, trained: Any, settings: RunConfig) -> None:
    """The lag bound where it is promised; whole samples of one version where nothing survives a swap half-finished."""
    if settings.staleness.over_limit != "count_only":
        dispatch = settings.staleness.lag_from == "dispatch"
        for batch in batches:
            for group in batch.groups:
                for sample in group.samples:
                    assert batch.version - (group.dispatched_version if dispatch else min(sample.rollout.versions)) <= MAX_LAG
    whole = settings.interrupt.kind in ("drain", "batch") or {"none", "recycle"} & set(settings.partial)
    for sample in trained:
        versions = sample.rollout.versions
        assert versions == sorted(versions) and len(versions) == len(sample.rollout.token_ids)
        assert not whole or len(set(versions)) == 1


def allowed(cell: Row) -> bool:
    return not compat.check(config(cell))


def test_every_pair_of_kinds_and_options_runs_with_its_books_closed() -> None:
    rows, impossible = pairwise(FACTORS, allowed)
    # What no row could hold is refused for a reason that names exactly such a pair.
    for pair in impossible:
        assert {pair[0], pair[2]} in REFUSED_PAIRS and {"restart", "object_store", True} & {pair[1], pair[3]}
    assert len(rows) >= len(INTERRUPTS) * len(FACTORS["transport"]) - len(impossible)
    for number, cell in enumerate(rows):
        settings = config(cell)
        try:
            check(simulate(settings, number), settings)
        except BaseException as error:
            error.add_note(f"cell {number}: {cell}")
            raise


BASE: Row = {name: values[0] for name, values in FACTORS.items()}


def test_compat_refuses_exactly_what_the_table_of_interrupts_forbids() -> None:
    for kind, kv_after, partial in product(get_args(axes.InterruptKind), get_args(axes.KvAfter), get_args(axes.PartialKind)):
        caches, partials = axes.INTERRUPTS[kind]
        works = kv_after in caches and partial in partials
        assert allowed({**BASE, "interrupt": (kind, kv_after, partial)}) == works, (kind, kv_after, partial)
        both = RunConfig.model_validate({"interrupt": {"kind": kind, "kv_after": kv_after}, "partial": [partial, "cancel_group"]})
        assert (not compat.check(both)) == works, (kind, kv_after, partial)


def test_compat_refuses_exactly_what_the_table_of_payloads_forbids() -> None:
    for lora, payload in product(get_args(axes.LoraKind), get_args(axes.PayloadKind)):
        assert allowed({**BASE, "weights": (lora, payload)}) == (payload in axes.PAYLOADS[lora]), (lora, payload)
