"""What became of completions in figures, each engine's gauges, and the machine's."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.workers.test_pipeline import config, simulate
from workers.contract import metrics
from workers.gauges import _engine
from workers.machine import Machine
from workers.progress import Progress
from workers.records import Group, Prompt, Rollout, Sample
from workers.told import Outcome, Told


def group(*samples: tuple[int, float | None]) -> Group:
    made = [
        Sample(Rollout(f"g/{index}", "g", index, [7] * length, [0.0] * length, [0] * length, "stop"), reward=reward)
        for index, (length, reward) in enumerate(samples)
    ]
    return Group("g", Prompt("p", "q", [1], None, 0), 0, made)


def test_lengths_rewards_and_difficulty_are_told_apart_by_outcome() -> None:
    told = Told()
    easy, hard = group((4, 1.0), (12, 1.0)), group((100, 0.0), (200, 0.5), (300, None))
    told.add("trained", easy, easy.samples)
    told.add("stale", hard, hard.samples)
    told.count("cancelled", 3)
    says = told.as_dict()
    assert says["trained"] == {
        "n": 2, "tokens_mean": 8.0, "tokens_p50": 8.0, "tokens_p95": 15.2, "reward_mean": 1.0, "difficulty_mean": 0.0,
        "lengths": [0, 0, 1, 1],
    }  # fmt: skip
    assert (says["stale"]["n"], says["stale"]["tokens_mean"], says["stale"]["reward_mean"]) == (3, 200.0, 0.25)
    assert says["stale"]["difficulty_mean"] == 0.75
    assert says["cancelled"] == {
        "n": 3, "tokens_mean": None, "tokens_p50": None, "tokens_p95": None, "reward_mean": None, "difficulty_mean": None, "lengths": [],
    }  # fmt: skip


def test_samples_that_left_their_group_count_in_its_difficulty_once() -> None:
    told, whole = Told(), group((4, 1.0), (4, 1.0), (4, 0.0), (4, 0.0))
    left, whole.samples = whole.samples[3:], whole.samples[:3]
    told.add("truncated", whole, left)
    told.add("truncated", whole, whole.samples[:1])
    assert told.as_dict()["truncated"]["difficulty_mean"] == pytest.approx((0.5 + 1 / 3) / 2)


@given(st.lists(st.integers(1, 2**20), min_size=1, max_size=200))
def test_the_quantile_is_right_to_a_power_of_two(lengths: list[int]) -> None:
    kept = Outcome()
    for length in lengths:
        kept.n, kept.known = kept.n + 1, kept.known + 1
        kept.lengths[length.bit_length() - 1] += 1
    true = sorted(lengths)[-(-95 * len(lengths) // 100) - 1]
    found = kept.quantile(0.95)
    assert found is not None and true / 2 <= found <= 2 * true


def test_the_flow_tells_them_and_a_checkpoint_keeps_them() -> None:
    parts = simulate(config(staleness={"max_lag": 1}, buffer={"depth": 16}, rollout={"max_running": 64}), token_s=0.001)
    told = parts.emit.of("state")[-1]["samples"]["told"]
    ledger = parts.samples.as_dict()
    assert told["trained"]["n"] == ledger["trained"] and told["stale"]["n"] == ledger["dropped"]["stale"]
    assert told["trained"]["tokens_mean"] == 10.0 and 0 < told["trained"]["difficulty_mean"] < 1
    again = Progress()
    again.restore(json.loads(json.dumps(parts.progress.as_dict())), [])
    assert again.told.as_dict() == parts.progress.told.as_dict()
    old = {name: value for name, value in parts.progress.as_dict().items() if name != "told"}
    Progress().restore(old, [])


def test_every_engine_has_its_own_gauges() -> None:
    parts = simulate(config(rollout={"max_running": 16, "engines": 2}), generators=2)
    named = {name for event in parts.emit.of("metrics") for name in event["values"]}
    for engine in ("generator/0", "generator/1"):
        assert {f"engine/{engine}/{what}" for what in ("running", "waiting", "version", "tokens_per_s")} <= named
    assert all(metrics.describe(name) is not None for name in named)
    rates = [event["values"] for event in parts.emit.of("metrics") if "engine/generator/1/tokens_per_s" in event["values"]]
    assert max(values["engine/generator/1/tokens_per_s"] for values in rates) > 10


def test_calls_to_a_server_elsewhere_that_failed_are_a_gauge() -> None:
    parts = simulate(config(), generators=1)
    status = next(iter(parts.pool.statuses.values()))
    assert "engine/generator/0/failed_calls" not in _engine(parts, "generator/0", status), "no server: no data, and not zero"
    assert _engine(parts, "generator/0", replace(status, failed_calls=3))["engine/generator/0/failed_calls"] == 3
    assert metrics.describe("engine/generator/0/failed_calls") is not None


def test_the_machine_says_how_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    values = machine.read()
    machine.close()
    assert values.keys() >= {"system/cpu_share", "system/memory_used", "system/memory_total", "system/disk_free", "system/driver_rss"}
    assert 0 <= values["system/cpu_share"] <= 1 and 0 < values["system/memory_used"] < values["system/memory_total"]
    assert values["system/memory_total"] == psutil.virtual_memory().total
    assert all(metrics.describe(name) is not None for name in values)


class NVMLError(Exception):
    pass


def fake_nvml(**more: Any) -> SimpleNamespace:
    plain: dict[str, Any] = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=10 + handle, total=100),
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=50),
        "nvmlDeviceGetPowerUsage": lambda handle: 70_000,
    }
    return SimpleNamespace(**{**plain, **more})


def test_gpus_are_read_where_there_are_any(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(handle: int) -> None:
        raise NVMLError("not supported")

    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml())
    values = Machine(tmp_path).read()
    assert (values["system/gpu/1/memory_used"], values["system/gpu/0/utilization"], values["system/gpu/0/power_w"]) == (11.0, 0.5, 70.0)
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlDeviceGetPowerUsage=broken))
    values = Machine(tmp_path).read()
    assert "system/gpu/0/power_w" not in values and values["system/gpu/0/utilization"] == 0.5
    monkeypatch.setitem(sys.modules, "pynvml", fake_nvml(nvmlInit=lambda: broken(0)))
    assert not any(name.startswith("system/gpu") for name in Machine(tmp_path).read())
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert "system/cpu_share" in Machine(tmp_path).read()
