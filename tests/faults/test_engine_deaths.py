"""Real processes of a run killed at moments that a seed chooses; disks that fill up and fail at every point of a save."""

from __future__ import annotations

import json
import random
import signal
import time
from pathlib import Path

import pytest

from tests.faults.checker import check
from tests.faults.history import History, lives_of
from tests.faults.real_runs import ASYNCIO, DIED, NEVER, history_of, left_of, live, living, member, spec_of
from tests.workers.test_run import wait_for
from workers.checkpoint import Checkpoints
from workers.contract.errors import ExitCode
from workers.spool import read_spool

SEED = 20261122


def findings(history: History) -> list[str]:
    return [str(broken) for broken in check(history)]


def test_whoever_dies_the_run_goes_on_from_its_last_checkpoint(model: Path, tmp_path: Path) -> None:
    rng = random.Random(SEED)
    spec = spec_of(tmp_path, model, **ASYNCIO, checkpoint={"every_steps": 3}, budget={"steps": 5000}, evaluation=NEVER)
    out = tmp_path / "out"
    for victim in ("driver", "generator", "trainer", "driver"):
        steps = len(trained(out))
        with living(spec, out) as process:
            wait_for(out, "sync") if steps == 0 else wait_until_trained(out, steps)
            time.sleep(rng.uniform(0.0, 1.5))
            run = member(process, "trainer").environ()["HEADRACE_RUN_ID"]
            (process if victim == "driver" else member(process, victim)).kill()
            began = time.monotonic()
            code = process.wait(timeout=60)
            assert code in DIED and time.monotonic() - began < 60, f"seed {SEED}, {victim}: {code}"
        if victim != "driver":
            finished = lives_of(out)[-1].of("finished")[-1]["data"]
            assert finished["outcome"] == "failed" and victim in finished["cause"]["message"] and "SIGKILL" in finished["cause"]["message"]
        assert [what for what in left_of(run, 5.0) if not what.startswith("/dev/shm")] == []
    done = len(trained(out)) + 2
    assert live(spec, out, "", "--set", f"budget.steps={done}")[0] == 0
    history = history_of(out, state="succeeded")
    assert findings(history) == [], f"seed {SEED}"
    assert len(history.lives) == 5
    assert left_of(run) == [], "what killed drivers left in shared memory went with the next attempt"


def test_a_folder_that_is_worked_in_is_nobody_elses(model: Path, tmp_path: Path) -> None:
    """A driver that stands still may wake: no second one begins beside it."""
    spec = spec_of(tmp_path, model, **ASYNCIO, checkpoint={"every_steps": 1}, budget={"steps": 5000}, evaluation=NEVER)
    out = tmp_path / "out"
    with living(spec, out) as process:
        wait_for(out, "checkpoint")
        process.send_signal(signal.SIGSTOP)
        code, said = live(spec, out)
        assert code == ExitCode.USAGE and "a run is at work in this folder" in said and str(process.pid) in said
        process.send_signal(signal.SIGCONT)
        process.terminate()
        assert process.wait(timeout=30) == ExitCode.CANCELLED
    assert findings(history_of(out)) == []


def test_one_of_two_engines_dies_and_the_other_carries_on(model: Path, tmp_path: Path) -> None:
    rollout = {"engines": 2, "max_running": 4, "threads": 1}
    spec = spec_of(tmp_path, model, **ASYNCIO, rollout=rollout, budget={"steps": 40}, evaluation=NEVER, checkpoint={"every_steps": 0})
    out = tmp_path / "out"
    with living(spec, out) as process:
        wait_for(out, "sync")
        member(process, "generator").kill()
        assert process.wait(timeout=120) == 0
    assert findings(history_of(out, state="succeeded")) == []
    assert any("is lost, its requests are dispatched again" in event["data"]["message"] for event in lives_of(out)[-1].of("log"))


SAVES = ("save.begun", "save.files", "save.manifest", "save.named")


@pytest.mark.parametrize("fault", ["enospc", pytest.param("eio", marks=pytest.mark.full)])
def test_a_disk_that_fails_at_every_point_of_a_save_costs_no_step_and_no_event(model: Path, tmp_path: Path, fault: str) -> None:
    """Five saves fail one after the other, each at another point, and the spool's disk takes nothing for a while: the run goes on."""
    points = [f"{point}={fault}@{number}" for number, point in enumerate(SAVES, 1)]
    points += [f"save.trainer={fault}@6", f"spool.write={fault}@12x4", f"spool.sync={fault}@30x3"]
    spec = spec_of(tmp_path, model, **ASYNCIO, budget={"steps": 12}, checkpoint={"every_steps": 1, "keep_last": 3}, evaluation=NEVER)
    out = tmp_path / "out"
    code, said = live(spec, out, "; ".join(points))
    assert code == 0, said
    said += (out / "logs" / "trainer.log").read_text()
    assert all(f"failpoint {point.partition('=')[0]}" in said for point in points), said
    assert findings(history_of(out, state="succeeded")) == []
    assert not [bad for _, bad in read_spool(out / "spool") if bad]
    told = [event["data"]["message"] for event in lives_of(out)[0].of("log") if "was not written" in event["data"]["message"]]
    assert len(told) >= len(SAVES)
    newest, faults = Checkpoints(out / "checkpoints", 3).latest()
    assert newest is not None and newest.step == 12 and faults == []
    assert not list((out / "checkpoints").glob(".*")), "nothing half-made is left"


def test_a_last_save_that_finds_no_room_is_a_failure_with_its_cause(model: Path, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, model, **ASYNCIO, budget={"steps": 3}, checkpoint={"every_steps": 2}, evaluation=NEVER)
    out = tmp_path / "out"
    code, _ = live(spec, out, "save.files=enospc@2x9")
    assert code == ExitCode.FAILED
    cause = json.loads((out / "summary.json").read_text())["cause"]
    assert "No space left on device" in cause["message"]
    assert live(spec, out)[0] == 0, "there is room again: it goes on from the checkpoint before"
    assert findings(history_of(out, state="succeeded")) == []


def trained(out: Path) -> list[int]:
    return [event["step"] for life in lives_of(out) for event in life.of("groups") if event["data"]["batch"]]


def wait_until_trained(out: Path, more_than: int) -> None:
    limit = time.monotonic() + 90
    while len(trained(out)) <= more_than:
        assert time.monotonic() < limit, "no step within 90 s"
        time.sleep(0.1)
