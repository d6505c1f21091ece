"""The figures of the benchmark of W1: rates, overlap, memory of processes."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.benchmarks.bench_run import first_at
from tests.benchmarks.bench_w1 import alone, busy, rate, verdict
from tests.benchmarks.memory import watched


def test_both_busy_counts_all_the_time_and_hidden_the_less_busy_pools_work() -> None:
    train = [(10.0, 14.0), (15.0, 20.0)]
    found = busy(train, [(2.0, 8.0), (9.0, 12.0), (14.5, 16.5), (19.0, 30.0)])
    assert found == pytest.approx({"both_busy": 4.5 / 10, "hidden": 4.5 / 5, "train_busy": 0.9, "generate_busy": 0.5})


def test_a_pool_that_never_works_beside_the_other_hides_nothing() -> None:
    assert busy([(0.0, 1.0), (2.0, 3.0)], [(1.0, 2.0)])["hidden"] == 0.0


def test_the_first_step_is_no_part_of_the_rate() -> None:
    assert rate({"ends": [30.0, 34.0, 38.0]}) == 16.0


def test_a_level_is_reached_by_a_mean_of_five() -> None:
    assert first_at([1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 1.0], 0.8) == 5
    assert first_at([1.0, 1.0, 1.0], 0.8) is None


def test_memory_is_that_of_the_program_and_a_failure_is_not_hidden() -> None:
    program = "import time; block = bytearray(80 * 2**20); time.sleep(2.5)"
    with watched([sys.executable, "-c", program]) as peaks:
        pass
    resident, proportional = map(int, peaks["driver"].rstrip(")").split(" ("))
    assert 80 <= proportional <= resident < 200
    with pytest.raises(subprocess.CalledProcessError), watched([sys.executable, "-c", "raise SystemExit(3)"]):
        pass


def test_a_pool_alone_is_reckoned_without_its_first_step() -> None:
    pool = [(0.0, 9.0), (10.0, 14.0), (16.0, 20.0)]
    assert alone(pool, 9.5, 3) == 64 * 2 / 8
    assert alone(pool, 30.0, 3) == 0.0


def test_the_verdict_sets_each_seed_beside_itself() -> None:
    def run(name: str, seed: int, pace: float, learnt: int) -> dict:
        rewards = [0.0] * learnt + [1.0] * 10
        return {"name": name, "seed": seed, "ends": [pace * step for step in range(1, len(rewards) + 1)], "rewards": rewards}

    turns = {**run("Headrace, pools in turn", 7, 2.0, 0), "train_rate": 40.0, "generate_rate": 80.0}
    done = [turns, run("Headrace", 7, 1.0, 4), run("TRL 1.16.0", 7, 10.0, 4), run("Headrace", 8, 1.0, 9)]
    alone_words, ratio, seed = verdict(done)
    assert "trainer 40.0 samples/s, engine 80.0" in alone_words
    assert ratio.endswith("TRL: 10.0x") and seed.startswith("seed 7") and seed.endswith("8 beside 80, 0.10 of it")
    assert list(verdict([run("Headrace", 7, 1.0, 4)])) == ["TRL was not run: name a Python that has it with --trl"]
