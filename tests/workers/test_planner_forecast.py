"""A forecast: the config as it is, at another run's costs, close to what the run then does."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_run import SHAPE
from tests.workers.tiny_model import make_tiny_model
from tests.workers.told_runs import told_run
from workers.__main__ import main
from workers.contract import loading
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, ExitCode
from workers.planner import scenarios
from workers.planner.calibrate import calibrate
from workers.planner.costs import Costs
from workers.planner.forecast import budget_steps, fitted, forecast
from workers.planner.runs import read
from workers.planner.scenario import Scenario
from workers.planner.speeds import Tabled

COST = Tabled(running=(1.0, 64.0), seconds=(0.01, 0.03), prefill_s=0.001)
COSTS = Costs(token_s=2e-4, batch_s=0.3, export_s=0.1, setup_s=0.2)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Scenario:
    """Fitted on a synchronous run."""
    folder = tmp_path_factory.mktemp("measured")
    told_run(folder, COST, COSTS)
    return scenarios.validated(calibrate([folder])["scenario"])


@pytest.mark.parametrize(
    ("preset", "sets"),
    [("trl-sync", ()), ("trl-async", ()), ("trl-async", ("batch.group_size=4", "rollout.engines=1", "staleness.max_lag=1"))],
)
def test_another_run_does_what_was_forecast_of_it(measured: Scenario, tmp_path: Path, preset: str, sets: tuple[str, ...]) -> None:
    config = told_run(tmp_path, COST, COSTS, steps=24, preset=preset, sets=sets)
    told = forecast(config, measured)
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert told["samples_per_s"] == pytest.approx(summary["samples_per_s"], rel=0.15)
    assert told["lag"]["mean"] == pytest.approx(summary["lag"]["mean"], abs=0.5)
    assert told["design"]["max_lag"] == config.staleness.max_lag


def test_the_config_stays_what_it_is(measured: Scenario) -> None:
    config = loading.resolve(preset="trl-async", sets=["rollout.engines=3", "rollout.max_running=5", "batch.prompts=6", "budget.steps=4"])
    scenario = fitted(config, measured)
    assert (scenario.generation.replicas, scenario.generation.slots, scenario.batch.prompts, scenario.steps) == (3, 5, 6, 4)
    assert scenario.max_new_tokens == config.sampling.max_new_tokens
    assert (scenario.generation.speed, scenario.lengths, scenario.sync) == (measured.generation.speed, measured.lengths, measured.sync)
    told = forecast(config, measured)
    assert told["design"]["buffer"]["depth"] == config.buffer.depth
    assert told["wall_s"] == pytest.approx(told["step_s"] * 4, rel=1e-4)


def test_the_budget_ends_where_its_first_bound_is(measured: Scenario) -> None:
    config = loading.resolve(preset="trl-sync", sets=["budget.steps=100", "budget.samples=100", "budget.wall_s=2"])
    assert budget_steps(config) == -(-100 // (config.batch.prompts * config.batch.group_size))
    assert forecast(config, measured)["wall_s"] == 2


def test_a_large_batch_is_answered_as_quickly(measured: Scenario) -> None:
    config = loading.resolve(preset="trl-sync", sets=["batch.prompts=128", "batch.group_size=8", "rollout.max_running=256"])
    began = time.process_time()
    assert forecast(config, measured)["samples_per_s"] > 0
    assert time.process_time() - began < 30


def test_the_command_line(measured: Scenario, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    niced: list[int] = []
    monkeypatch.setattr("workers.planner.cli.os.nice", niced.append)
    spec, scenario = tmp_path / "spec.json", tmp_path / "scenario.json"
    spec.write_text(json.dumps(loading.resolve(preset="trl-sync", sets=["budget.steps=3"]).as_json()))
    scenario.write_text(measured.model_dump_json())
    assert main(["forecast", str(spec), "--scenario", str(scenario), "--json"]) == ExitCode.OK
    told = json.loads(capsys.readouterr().out)
    assert niced == [10] and told["budget_steps"] == 3 and told["cost"] is None
    assert main(["forecast", str(spec), "--scenario", str(scenario)]) == ExitCode.OK
    assert "samples" in capsys.readouterr().out
    spec.write_text(json.dumps({"preset": "trl-sync", "buffer": {"depht": 2}}))
    assert main(["forecast", str(spec), "--scenario", str(scenario)]) == ExitCode.USAGE
    assert "buffer.depth" in capsys.readouterr().err


def test_a_scenario_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        scenarios.load(tmp_path / "none.json")


@pytest.mark.full
@pytest.mark.alone
def test_a_real_run_does_what_was_forecast_of_it(tmp_path: Path, record_property: Any) -> None:
    """A tiny model, steps of some hundredths of a second: the first run is measured, the second has twice the batch."""
    tiny, folders = make_tiny_model(tmp_path / "tiny"), [tmp_path / "first", tmp_path / "second"]
    for folder, prompts in zip(folders, (2, 4), strict=True):
        spec = {**SHAPE, "model": {"path": str(tiny), "dtype": "float32"}, "orchestration": {"kind": "asyncio"}, "budget": {"steps": 30}}
        spec |= {"batch": {"prompts": prompts, "group_size": 4}, "sampling": {"max_new_tokens": 24}, "checkpoint": {"every_steps": 0}}
        (tmp_path / "spec.json").write_text(json.dumps(spec))
        command = [sys.executable, "-m", "workers", "run", str(tmp_path / "spec.json"), "--out", str(folder), "--quiet"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    config = RunConfig.model_validate(json.loads((folders[1] / "config.json").read_text()))
    predicted = forecast(config, scenarios.validated(calibrate(folders[:1])["scenario"]))["step_s"]
    measured = statistics.median(step.step_s for step in read(folders[1]).steps)
    record_property("step_s", {"predicted": predicted, "measured": measured})
    assert predicted == pytest.approx(measured, rel=0.35)
