"""Scenarios as data: the built-in ones, overrides, faults by name, speeds, memory, and a design at another size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from workers.contract import loading
from workers.contract.config import Lora
from workers.contract.errors import ConfigError
from workers.planner import design, scenarios
from workers.planner.draws import Draws
from workers.planner.memory import memory
from workers.planner.scenario import Scenario
from workers.planner.speeds import Roofline, Shape, Table, Throughput, cost
from workers.records import SampleRequest

SEVEN = {"params": 7.6e9, "layers": 28, "kv_heads": 4, "head_dim": 128}


def small(**changes: Any) -> dict[str, Any]:
    """A workload that is planned in a blink."""
    return {
        "name": "small",
        "steps": 6,
        "warmup_steps": 2,
        "prompt_tokens": 16,
        "lengths": {"kind": "lognormal", "median": 200, "p90": 500},
        "batch": {"prompts": 4, "group_size": 4},
        "generation": {"slots": 8, "speed": {"kind": "table", "running": [1, 8], "tokens_per_s": [50, 300]}},
        "training": {"token_s": 0.003, "batch_s": 0.5},
        "sync": {"seconds": {"any": 0.2}},
        **changes,
    }


@pytest.mark.parametrize("name", scenarios.names())
def test_a_built_in_scenario_is_named_as_its_file_and_survives_json(name: str, tmp_path: Path) -> None:
    scenario = scenarios.load(name)
    assert scenario.name == name and scenario.title and scenario.notes
    file = tmp_path / "copy.json"
    file.write_text(json.dumps(scenario.model_dump(mode="json")))
    assert scenarios.load(file) == scenario
    assert all(row.source for row in scenario.published)


@pytest.mark.parametrize(
    ("sets", "field", "value", "cure"),
    [
        (["steps=0"], "steps", 0, "at least 1"),
        (["generation.sped=3"], "generation.sped", 3, "did you mean speed"),
        (["lengths.kind=normal"], "lengths", None, "lognormal"),
        (["training.token_s=-1"], "training.token_s", -1, "at least 0"),
        (['training.peak={"flops_per_s": 1e15, "mfu": 0.4}'], "training", None, ""),
        (["batch.prompts=many"], "batch.prompts", "many", ""),
    ],
)
def test_a_fault_names_field_value_and_cure(sets: list[str], field: str, value: Any, cure: str) -> None:
    with pytest.raises(ConfigError) as caught:
        scenarios.validated(small(), sets)
    faults = [fault for fault in caught.value.problems if fault.field and fault.field.startswith(field)] or caught.value.problems
    assert faults[0].field is not None and (value is None or faults[0].value == value)
    assert faults[0].cure and cure in faults[0].cure


def test_an_unknown_scenario_names_the_known_ones() -> None:
    with pytest.raises(ConfigError) as caught:
        scenarios.load("balnced")
    assert "did you mean balanced?" in str(caught.value) and "two-agents" in str(caught.value)


def test_overrides_go_to_the_scenario_or_to_the_run() -> None:
    ours = ["batch.prompts=2", "lengths.median=9", "seed=3", "sync.apply_s=1"]
    others = ["sync.every_steps=2", "staleness.max_lag=1", "rewards.zero_variance=drop"]
    assert scenarios.parted([*ours, *others]) == (ours, others)
    with pytest.raises(ConfigError, match=r"generation\.replicas"):
        scenarios.parted(["rollout.engines=4"])
    with pytest.raises(ConfigError, match="path=value"):
        scenarios.parted(["steps"])


def test_speeds_of_a_decode_step() -> None:
    def step(speed: Any, running: int, held: float = 0.0, shape: Shape | None = None, gpus: int = 1) -> float:
        return cost(speed, shape, gpus, grain=1, prefill_s=0.0, apply_s=0.0).step(running, held)

    assert step(Throughput(tokens_per_s=600), 12) == pytest.approx(0.02)
    table = Table(running=[2, 6], tokens_per_s=[20, 30])  # 0.1 s and 0.2 s a step
    assert [step(table, running) for running in (1, 2, 4, 6, 12)] == pytest.approx([0.1, 0.1, 0.15, 0.2, 0.4])
    shape = Shape(**SEVEN)
    roof = Roofline(bytes_per_s=3e12, flops_per_s=1e15, overhead_s=0.001)
    # 15.2 GB of weights at 3 TB/s; a position is 2 x 28 x 4 x 128 x 2 bytes; 2 x 7.6e9 operations a token.
    assert step(roof, 1, 0, shape) == pytest.approx(15.2e9 / 3e12 + 0.001)
    assert step(roof, 1, 1e6, shape) == pytest.approx((15.2e9 + 57344e6) / 3e12 + 0.001)
    assert step(roof, 4096, 0, shape) == pytest.approx(4096 * 15.2e9 / 1e15 + 0.001)
    assert step(roof, 1, 0, shape, gpus=4) == pytest.approx(15.2e9 / 12e12 + 0.001)


def test_memory_is_shown_with_its_arithmetic() -> None:
    scenario = scenarios.validated(
        small(
            shape=SEVEN, memory={"gpu_bytes": 80e9, "activation_bytes": 5e9}, max_new_tokens=1000, lengths={"kind": "fixed", "value": 500}
        )
    )
    told = memory(scenario, Lora(kind="off"))
    assert told is not None
    engines, trainer = told["generators"], told["trainer"]
    assert engines["parts"]["weights"] == pytest.approx(15.2e9)
    assert engines["parts"]["kv_longest"] == pytest.approx(8 * 1016 * 57344)
    assert engines["parts"]["kv_expected"] == pytest.approx(8 * (16 + 250) * 57344)
    assert engines["fits"] and engines["limit_bytes"] == pytest.approx(72e9)
    assert trainer["bytes"] == pytest.approx(7.6e9 * (2 + 2 + 12) + 5e9) and not trainer["fits"]
    assert any("28 layers" in line for line in engines["arithmetic"])
    assert memory(scenarios.validated(small()), Lora()) is None


def test_an_adapter_needs_less_memory_in_the_trainer() -> None:
    llama = Shape(params=6.74e9, layers=32, kv_heads=32, head_dim=128)
    assert llama.adapter_params(16) == pytest.approx(40e6, rel=0.1)  # PEFT counts 39,976,960 in Llama-2-7B, all linears
    scenario = scenarios.validated(small(shape=SEVEN, memory={"gpu_bytes": 80e9}))
    for_all, adapters = (memory(scenario, Lora(kind=kind)) for kind in ("off", "adapter_only"))
    assert for_all is not None and adapters is not None
    assert adapters["trainer"]["parts"]["weights"] == for_all["trainer"]["parts"]["weights"]
    assert adapters["trainer"]["parts"]["optimizer"] < 0.01 * for_all["trainer"]["parts"]["optimizer"]


def test_a_peak_gives_the_trainers_seconds() -> None:
    scenario = scenarios.validated(small(shape=SEVEN, training={"gpus": 8, "peak": {"flops_per_s": 1e15, "mfu": 0.4}}))
    assert scenario.token_s == pytest.approx(6 * 7.6e9 / (8 * 1e15 * 0.4))


def test_what_a_preset_counts_in_groups_or_samples_is_kept_in_batches() -> None:
    scenario = scenarios.validated(small(batch={"prompts": 128, "group_size": 8}))
    for name in ("prime-rl", "pipelinerl", "verl", "trl-sync"):
        original, scaled = loading.resolve(preset=name), design.configured(name, scenario)
        unit = original.buffer.unit
        before = original.batch.prompts * (original.batch.group_size if unit == "sample" else 1)
        assert scaled.buffer.depth / design.batch_units(scenario, unit) == pytest.approx(original.buffer.depth / before)
        assert scaled.staleness.max_lag == original.staleness.max_lag and scaled.sync == original.sync
        assert (scaled.rollout.engines, scaled.rollout.max_running) == (1, 8)


def test_publishing_costs_what_the_scenario_says() -> None:
    def spent(sync: dict[str, Any], **changes: Any) -> Any:
        scenario = scenarios.validated(small(sync=sync, **changes))
        return design.costs(design.configured("open-instruct", scenario), scenario)  # the whole model, by collective

    assert spent({"seconds": {"any": 2, "collective": 1.5, "full/collective": 7}}).transfer_s == 7
    assert spent({"seconds": {"any": 2, "collective": 1.5}}).transfer_s == 1.5
    assert spent({"bytes_per_s": 1e10, "weight_bytes": 5e10}).transfer_s == pytest.approx(5)
    assert spent({"bytes_per_s": 1e10}, shape=SEVEN).transfer_s == pytest.approx(1.52)
    assert spent({}, shape=SEVEN).transfer_s > 0


def test_lengths_in_grains_are_off_by_little() -> None:
    scenario: Scenario = scenarios.validated(small(lengths={"kind": "lognormal", "median": 5000, "p90": 20000}, max_new_tokens=1_000_000))
    assert scenario.grain == 83
    draws = Draws(scenario)
    total = coarse = 0.0
    for key in range(2000):
        request = SampleRequest(f"g/{key}", "g", 0, [1], key, 10**6, 1.0)
        total += draws.tokens(key)
        coarse += draws.grains(request) * scenario.grain
    assert coarse == pytest.approx(total, rel=0.001)
