"""Plans: the survey's cells, the balanced workload, chained agents, the same bytes every time, races, sweeps and the command line."""

from __future__ import annotations

import functools
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_planner_scenarios import small
from workers.__main__ import main
from workers.contract.errors import ExitCode
from workers.planner import design, race, scenarios
from workers.planner.ceilings import ceilings
from workers.planner.plan import dominant_wait, plan
from workers.planner.sweep import KNOBS, knee, sweep

CELLS = {
    "7b-2k": (2000, 6000),
    "7b-8k": (8000, 6000),
    "7b-32k": (32000, 6000),
    "32b-2k": (2000, 1200),
    "32b-8k": (8000, 1200),
    "32b-32k": (32000, 1200),
}


@pytest.mark.parametrize("name", CELLS)
def test_the_surveys_cells(name: str) -> None:
    length, rate = CELLS[name]
    scenario = scenarios.load(f"survey-{name}", ["steps=1", "warmup_steps=0"])
    told = plan("trl-sync", scenario)
    assert told["generation_batch_s"] == pytest.approx(512 * length / rate, rel=0.01)
    (row,) = told["published"]
    assert row["predicted"] == told["generation_batch_s"] and row["value"] == pytest.approx(row["predicted"], rel=0.06)


def test_equally_fast_pools_overlap_where_the_design_lets_them() -> None:
    scenario = scenarios.load("balanced", ["steps=15", "warmup_steps=5"])
    limits = ceilings(design.configured("trl-sync", scenario), scenario)
    assert limits.generation_steps_per_s == pytest.approx(limits.training_steps_per_s, rel=0.05)
    best, sync = plan("pipelinerl", scenario), plan("trl-sync", scenario)
    assert best["overlap"] >= 0.97
    assert 0.42 <= sync["overlap"] <= 0.52
    assert sync["lag"] == {"mean": 0.0, "p95": 0, "max": 0} and best["lag"]["mean"] > 0
    assert dominant_wait(sync, "trainer")[0] == "wait_buffer_empty"  # type: ignore[index]
    for shares in sync["time"].values():
        assert sum(shares.values()) == pytest.approx(1, abs=1e-4)


def test_chained_agents_and_their_barriers() -> None:
    scenario = scenarios.load("two-agents", ["steps=2", "warmup_steps=1"])
    told = plan("trl-sync", scenario)["episodes"]
    assert told["tail_of_agents"] == pytest.approx([5, 5], rel=0.05)
    assert 1 < told["tail_of_episode"] < 5
    seconds = told["batch_s"]
    assert seconds["barrier_after_each_agent"] > seconds["barrier_at_the_end"] > seconds["no_barrier"]
    assert told["wait_share"]["barrier_after_each_agent"] > told["wait_share"]["barrier_at_the_end"] > 0


def test_the_same_plan_is_the_same_bytes(tmp_path: Path) -> None:
    file = tmp_path / "small.json"
    file.write_text(
        json.dumps(small(failures={"request": 0.1, "scoring": 0.05}, judging={"scoring_s": {"kind": "lognormal", "median": 1, "p90": 4}}))
    )
    command = [sys.executable, "-m", "workers", "plan", "--preset", "verl", "--scenario", str(file), "--json"]
    first, second = (subprocess.run(command, capture_output=True, check=True).stdout for _ in range(2))
    assert first == second
    told = json.loads(first)
    assert told["dropped_share"] > 0 and set(told["dropped"]) >= {"scoring_failed"}


def test_failing_requests_and_slow_judges_cost_what_they_should() -> None:
    plain = plan("trl-sync", scenarios.validated(small()))
    failing = plan("trl-sync", scenarios.validated(small(failures={"request": 0.3})))
    judged = plan("trl-sync", scenarios.validated(small(judging={"scoring_s": {"kind": "fixed", "value": 10}})))
    assert failing["step_s"] > plain["step_s"]
    assert judged["step_s"] == pytest.approx(plain["step_s"] + 10, rel=0.02)


def test_coarse_tokens_change_little() -> None:
    given = small(lengths={"kind": "lognormal", "median": 1000, "p90": 2500}, steps=8)
    for preset in ("trl-sync", "prime-rl"):
        coarse, fine = (plan(preset, scenarios.validated(given, [f"coarse={how}"])) for how in ("auto", "off"))
        assert coarse["grain"] == 16 and fine["grain"] == 1
        assert coarse["step_s"] == pytest.approx(fine["step_s"], rel=0.01)
        assert coarse["generation_batch_s"] == pytest.approx(fine["generation_batch_s"], rel=0.01)


def test_a_race_puts_the_fastest_first_and_goes_on_past_a_failure() -> None:
    told: list[str] = []
    result = race.race(["trl-sync", "prime-rl"], scenarios.validated(small()), tell=told.append)
    assert [row["preset"] for row in result["rows"]] == ["prime-rl@1", "trl-sync@1"] and len(told) == 2
    broken = race.race(["trl-sync", "prime-rl"], scenarios.validated(small()), ["buffer.kind=none"])
    assert len(broken["rows"]) + len(broken["failed"]) == 2


def test_a_race_that_is_interrupted_says_so_and_writes_nothing(tmp_path: Path) -> None:
    """Ctrl-C while it simulates."""
    page = tmp_path / "page.html"
    command = [sys.executable, "-m", "workers", "race", "--presets", "all", "--scenario", "balanced", "--out", str(page)]
    heeds = functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # also where the tests run in the background of a shell
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=heeds) as racing:
        assert racing.stderr is not None
        racing.stderr.readline()  # the first line of progress
        racing.send_signal(signal.SIGINT)
        _, said = racing.communicate(timeout=30)
    assert racing.returncode == ExitCode.CANCELLED and "nothing was written" in said and "Traceback" not in said, said
    assert not page.exists()


def test_the_races_page_needs_nothing_else(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, page = tmp_path / "small.json", tmp_path / "page.html"
    file.write_text(json.dumps(small(title="Small & <quick>")))
    assert main(["race", "--presets", "trl-sync,oat", "--scenario", str(file), "--out", str(page)]) == ExitCode.OK
    text = page.read_text()
    assert "Small &amp; &lt;quick&gt;" in text and "trl-sync" in text and "Plotly.newPlot" in text
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=", text)
    out, err = capsys.readouterr()
    assert "samples a second" in out and "[2/2] oat" in err


def cell(value: float, rate: float, wait: str) -> dict[str, Any]:
    return {
        "value": value,
        "plan": {"samples_per_s": rate, "lag": {"mean": 0.0}, "idle": {"trainer": {wait: 0.3}, "generators": {"idle": 0.1}}},
    }


def test_the_knee_is_the_smallest_value_near_the_best() -> None:
    found = knee([cell(1, 50, "wait_buffer_empty"), cell(2, 98.5, "sync_pause"), cell(3, 100, "sync_pause"), cell(4, 99, "idle")])
    assert found["value"] == 2
    assert {side: told["wait"] for side, told in found["why"].items()} == {
        "below": "wait_buffer_empty",
        "at": "sync_pause",
        "above": "sync_pause",
    }
    assert set(knee([cell(1, 5, "idle")])["why"]) == {"at"}


@pytest.mark.parametrize(
    ("knob", "values"),
    [
        ("staleness.depth_bound", [1, 2, 4]),
        ("staleness.max_lag", [1, 2]),
        ("sync.every_steps", [1, 2]),
        ("buffer.depth", [1, 2]),
        ("split", [1, 2]),
    ],
)
def test_a_sweep_over_each_knob(knob: str, values: list[float]) -> None:
    scenario = scenarios.validated(small(steps=4, generation={**small()["generation"], "replicas": 3}))
    result = sweep("prime-rl", scenario, knob, values)
    assert [row["value"] for row in result["cells"]] == values and result["knee"]["value"] in values
    assert knob in KNOBS and result["knee"]["words"]
    if knob == "staleness.depth_bound":
        rates = [row["plan"]["samples_per_s"] for row in result["cells"]]
        assert rates[0] < rates[1]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "--preset", "trl-sync", "--scenario", "nope"], "two-agents"),
        (["plan", "--preset", "trl-sync"], "balanced"),
        (["plan", "--scenario", "balanced"], "--preset"),
        (["race", "--presets", "nope", "--scenario", "balanced"], "choose one of"),
        (["sweep", "--preset", "oat", "--over", "nope", "--scenario", "balanced"], "buffer.depth"),
        (["sweep", "--preset", "oat", "--over", "split", "--values", "a", "--scenario", "balanced"], "for example"),
        (["calibrate", "/nowhere"], "config.json"),
    ],
)
def test_a_wrong_command_names_the_cure(arguments: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == ExitCode.USAGE
    assert says in capsys.readouterr().err


def test_the_command_line_plans_lists_and_sweeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "small.json"
    file.write_text(
        json.dumps(small(shape={"params": 1e9, "layers": 4, "kv_heads": 2, "head_dim": 64}, memory={"gpu_bytes": 8e10}, gpu_hour=2))
    )
    assert main(["plan", "--list"]) == ExitCode.OK and "survey-7b-2k" in capsys.readouterr().out
    assert main(["plan", "--preset", "oat", "--scenario", str(file), "--set", "steps=2", "--set", "sync.every_steps=2"]) == ExitCode.OK
    out = capsys.readouterr().out
    assert "overlap" in out and "memory of a GPU, trainer: fits" in out and "at the price given" in out
    assert main(["sweep", "--preset", "oat", "--over", "sync.every_steps", "--values", "1,2", "--scenario", str(file)]) == ExitCode.OK
    out, err = capsys.readouterr()
    assert "knee:" in out and "[2/2]" in err and "2 cells in" in err


def test_planning_loads_no_engine() -> None:
    heavy = ("torch", "ray", "transformers", "peft")
    code = f"import sys, workers.planner.plan, workers.planner.sweep; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
