"""Calibration finds the costs that a run was made with, from its events alone; and on real runs, one predicts another."""

from __future__ import annotations

import statistics
import subprocess
import sys
from pathlib import Path

import pytest

from tests.workers.told_runs import told_run
from workers.__main__ import main
from workers.contract.errors import ConfigError, DataError, ExitCode
from workers.planner import scenarios
from workers.planner.calibrate import calibrate
from workers.planner.costs import Costs
from workers.planner.plan import plan
from workers.planner.runs import read
from workers.rollout.leaps import EngineCost

ENGINE = EngineCost(step_s=0.05, sample_s=0.001, prefill_s=0.2)  # three prompt tokens: 0.6 s
COSTS = Costs(token_s=0.004, batch_s=3.0, export_s=0.4, setup_s=0.7, message_s=0.002)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("runs")
    for preset in ("trl-sync", "prime-rl"):
        told_run(root / preset, ENGINE, COSTS, preset=preset)
    return {preset: root / preset for preset in ("trl-sync", "prime-rl")}


@pytest.mark.parametrize("preset", ["trl-sync", "prime-rl"])
def test_the_costs_of_a_simulated_run_are_found(folders: dict[str, Path], preset: str) -> None:
    scenario = calibrate([folders[preset]])["scenario"]
    speed = scenario["generation"]["speed"]
    assert speed["running"] == [1.0, 64.0]
    assert speed["tokens_per_s"] == pytest.approx([1 / 0.051, 64 / 0.114], rel=0.05)
    assert scenario["training"] == pytest.approx({"token_s": 0.004, "batch_s": 3.0}, rel=0.02)
    assert scenario["sync"]["seconds"] == pytest.approx({"any": 0.7}) and scenario["sync"]["export_s"] == pytest.approx(0.4)
    assert scenario["generation"]["message_s"] == pytest.approx(0.002)
    assert scenario["generation"]["prefill_s"] * scenario["prompt_tokens"] == pytest.approx(0.6, rel=0.3)


@pytest.mark.parametrize(("known", "other"), [("trl-sync", "prime-rl"), ("prime-rl", "trl-sync"), ("prime-rl", "prime-rl")])
def test_one_simulated_run_predicts_another(folders: dict[str, Path], known: str, other: str) -> None:
    scenario = scenarios.validated({**calibrate([folders[known]])["scenario"], "steps": 12, "warmup_steps": 2})
    measured = statistics.fmean(step.step_s for step in read(folders[other]).steps)
    assert plan(other, scenario)["step_s"] == pytest.approx(measured, rel=0.05)


def test_the_command_writes_what_plan_reads(folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "mine.json"
    assert main(["calibrate", *map(str, folders.values()), "--out", str(out), "--name", "mine"]) == ExitCode.OK
    assert scenarios.load(out).name == "mine" and "s a token" in capsys.readouterr().err


def test_what_cannot_be_fitted_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"config\.json"):
        calibrate([tmp_path])
    told_run(tmp_path / "short", ENGINE, COSTS, steps=1)
    with pytest.raises(DataError, match="too little"):
        calibrate([tmp_path / "short"])
    told_run(tmp_path / "other", ENGINE, COSTS, sets=("model.path=another",))
    with pytest.raises(ConfigError, match="different models"):
        calibrate([folders["trl-sync"], tmp_path / "other"])


REAL = (
    "batch.prompts=4",
    "budget.steps=16",
    "evaluation.every_steps=0",
    "evaluation.at_start=false",
    "evaluation.at_end=false",
    "checkpoint.every_steps=0",
    "orchestration.kind=asyncio",
    "optimizer.learning_rate=1e-30",  # completions stay as long as they are
)


def bound(batches: int) -> str:
    return f'staleness.depth_bound={{"value": {batches}, "unit": "batches"}}'


@pytest.mark.full
@pytest.mark.alone
@pytest.mark.model
def test_a_real_run_predicts_another_depth(tmp_path: Path) -> None:
    """Fitted on a run with two batches under way, it predicts one with four within 15 %, and itself within 10 %. Where both pools share
    a processor, what it says of taking turns is printed and not judged: costs are then those of two pools at work."""
    for batches in (2, 4, 1):
        sets = [part for item in (*REAL, bound(batches)) for part in ("--set", item)]
        command = [sys.executable, "-m", "workers", "run", "--preset", "demo", "--quiet", "--out", str(tmp_path / f"{batches}"), *sets]
        done = subprocess.run(command, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, done.stdout + done.stderr
    scenario = scenarios.validated({**calibrate([tmp_path / "2"])["scenario"], "steps": 40})
    errors = {}
    for batches in (2, 4, 1):
        predicted = plan("demo", scenario, [bound(batches)])["step_s"]
        measured = statistics.fmean(step.step_s for step in read(tmp_path / f"{batches}").steps)
        errors[batches] = predicted / measured - 1
        print(f"{batches} batches: predicted {predicted:.3f} s, measured {measured:.3f} s, off by {errors[batches]:+.1%}")
    assert abs(errors[2]) <= 0.10 and abs(errors[4]) <= 0.15, errors
