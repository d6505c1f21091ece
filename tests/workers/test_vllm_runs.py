"""Whole runs with vLLM inside a role's process, through the driver: they train, and a killed driver leaves no process of theirs."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from tests.workers.test_run import SHAPE, command, events, processes_of, wait_for
from tests.workers.tiny_model import make_tiny_model
from workers.axes.transport.leftovers import sweep
from workers.rollout.vllm import install

START_S = 300  # a start takes half a minute, and more beside other work
GONE_S = 30
SPAWNED = "multiprocessing.spawn"  # vLLM's core and its worker are started by this
CHANGES = {
    "rollout": {"engine": "vllm", "max_running": 8, "threads": 1},
    "evaluation": {"every_steps": 0, "at_start": False, "at_end": False},
    "budget": {"steps": 100_000},
}


@dataclass(frozen=True)
class Started:
    """A run of so many steps that only a kill ends it."""

    out: Path
    driver: subprocess.Popen[bytes]

    def kill_in_the_middle(self) -> list[list[str]]:
        """SIGKILL of the driver once it has trained and saved. Returns the commands of the run's processes, all gone by then."""
        wait_for(self.out, "checkpoint", START_S)
        processes = psutil.Process(self.driver.pid).children(recursive=True)
        run_id = next(process.environ()["HEADRACE_RUN_ID"] for process in processes)
        commands = [process.cmdline() for process in processes]
        shared = [Path(mapped.path) for process in processes for mapped in process.memory_maps() if mapped.path.startswith("/dev/shm/psm_")]
        self.driver.kill()
        self.driver.wait()
        limit = time.monotonic() + GONE_S
        try:
            while left := [*alive(processes), *processes_of(run_id)]:
                assert time.monotonic() < limit, [process.as_dict(["pid", "ppid", "name", "cmdline"]) for process in left]
                time.sleep(0.1)
        finally:
            for process in alive(processes):
                process.kill()
            sweep(run_id, whole_run=True)
        assert len([words for words in commands if SPAWNED in " ".join(words)]) == 2, "vLLM's core and its worker"
        assert shared and not [item for item in shared if item.exists()]
        return commands


@pytest.fixture
def started(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Started]:
    """A run by the carrier that the test names."""
    install.require()
    model = {"path": str(make_tiny_model(tmp_path / "model", hidden=128)), "dtype": "float32"}
    spec, out = tmp_path / "spec.json", tmp_path / "run"
    spec.write_text(json.dumps({**SHAPE, **CHANGES, "model": model}))
    call = command("run", spec, "--set", f"orchestration.kind={request.param}", "--out", out, "--quiet")
    run = Started(out, subprocess.Popen(call))
    try:
        yield run
    finally:
        run.driver.kill()
        run.driver.wait()


def alive(processes: list[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended: a zombie has."""
    found = []
    for process in processes:
        try:
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


@pytest.mark.full  # in every suite it does so in a Ray actor
@pytest.mark.parametrize("started", ["asyncio"], indirect=True)
def test_a_killed_driver_takes_vllm_with_it(started: Started) -> None:
    started.kill_in_the_middle()


@pytest.mark.parametrize("started", ["ray"], indirect=True)
def test_vllm_in_a_ray_actor_trains_and_dies_with_the_driver(started: Started) -> None:
    commands = started.kill_in_the_middle()
    assert {"raylet", "ray::DashboardAgent", "ray::RuntimeEnvAgent"} <= {Path(words[0].strip()).name for words in commands if words}
    cluster = next(words[-1] for words in commands if "workers.cluster.cleaner" in words)
    assert not Path(cluster).exists()
    assert_of_one_policy(started.out)


@pytest.mark.full  # vLLM starts twice
@pytest.mark.parametrize("started", ["ray"], indirect=True)
def test_a_run_with_vllm_goes_on_from_its_checkpoint(started: Started) -> None:
    started.kill_in_the_middle()
    out = started.out
    step = events(out, "checkpoint")[-1]["step"]
    subprocess.run(command("resume", out, "--set", f"budget.steps={step + 2}", "--quiet"), check=True, timeout=START_S)
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["outcome"], summary["steps"]) == ("succeeded", step + 2)
    assert summary["sync"]["count"] >= 2 and summary["sync"]["bytes"] > 0
    assert_of_one_policy(out)


def assert_of_one_policy(out: Path) -> None:
    """Tokens of the trained version itself: trainer and vLLM compute the same in float32."""
    gaps = [
        abs(mine - theirs)
        for sample in events(out, "sample")
        if sample["outcome"] == "trained"
        for mine, theirs in zip(sample["tokens"]["trainer_logprobs"], sample["tokens"]["logprobs"], strict=True)
    ]
    assert min(gaps) < 1e-4
