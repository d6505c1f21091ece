"""Cancels at every moment of a run: one orderly end, and ten seconds later nothing of it is on the machine."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from tests.faults.checker import check
from tests.faults.history import lives_of
from tests.faults.real_runs import ASYNCIO, NEVER, history_of, left_of, said, spec_of, start
from workers.checkpoint import Checkpoints
from workers.contract.errors import ExitCode

pytestmark = pytest.mark.alone  # ten seconds are ten seconds of a machine that does nothing else
SEED = 50
GONE_WITHIN_S = 10.0
# Where the run is held so that the signal meets it there; None: it comes after so many seconds, whatever the run does then.
HELD = {
    "mid-step": "train.stepped=hang:2@2",
    "mid-publish": "publish.written=hang:2@2",
    "mid-save": "save.trainer=hang:2@1",
    "as it is named": "save.manifest=hang:1@1",
    "at its end": "end.summary=hang:1",
}


def cancelled(folder: Path, model: Path, points: str, after_s: float) -> float:
    """One run that is cancelled. Returns the seconds until nothing of it was left; asserts all that must hold."""
    folder.mkdir()
    steps = 6 if "end." in points else 5000
    spec = spec_of(folder, model, **ASYNCIO, budget={"steps": steps}, checkpoint={"every_steps": 3}, evaluation=NEVER)
    out = folder / "out"
    process = start(spec, out, points)
    try:
        if points:
            wait_until_held(out, process, points)
        else:
            time.sleep(after_s)
        began = time.monotonic()
        run = run_of(process)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.05)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)  # twice is once
        process.wait(timeout=30)
        # Before Python has put its handlers up the signal is the kernel's; a run that was over anyway may say so.
        allowed = (ExitCode.CANCELLED, -signal.SIGTERM, *((ExitCode.OK,) if "end." in points else ()))
        assert process.returncode in allowed, f"{process.returncode}: {said(out)}"
        left = left_of(run, GONE_WITHIN_S - (time.monotonic() - began)) if run else []
        took = time.monotonic() - began
        assert left == [] and took <= GONE_WITHIN_S
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    if (out / "spool").is_dir():
        history = history_of(out)
        assert [str(broken) for broken in check(history)] == []
        finished = [event for life in history.lives for event in life.of("finished")]
        assert len(finished) <= 1, "one terminal state"
        if process.returncode == ExitCode.CANCELLED:
            assert finished[0]["data"]["outcome"] == "cancelled"
            assert json.loads((out / "summary.json").read_text())["outcome"] == "cancelled"
        assert not (out / "scratch").exists() and not list((out / "checkpoints").glob(".*")), "nothing half-made"
        newest, faults = Checkpoints(out / "checkpoints", 1).latest()
        assert faults == [] and (newest is None or newest.step % 3 == 0 or newest.step == steps)
    return took


def run_of(process: subprocess.Popen[bytes]) -> str:
    """The run's id, once its first process carries it; "" before."""
    try:
        children = psutil.Process(process.pid).children(recursive=True)
        return next((run for child in children if (run := child.environ().get("HEADRACE_RUN_ID", ""))), "")
    except psutil.Error:
        return ""


def wait_until_held(out: Path, process: subprocess.Popen[bytes], points: str) -> None:
    """Until the failpoint says that it is reached: the trainer's words stand in its log, the driver's on its own stderr."""
    point, log = points.partition("=")[0], out / "logs" / "trainer.log"
    limit = time.monotonic() + 90
    while f"failpoint {point}:" not in said(out) + (log.read_text(errors="replace") if log.exists() else ""):
        assert time.monotonic() < limit and process.poll() is None, f"{point} was not reached: {said(out)}"
        time.sleep(0.02)


@pytest.mark.parametrize("moment", HELD)
def test_a_cancel_in_the_middle_of_something(model: Path, tmp_path: Path, moment: str) -> None:
    cancelled(tmp_path / "run", model, HELD[moment], 0.0)


def test_cancels_at_random_moments(model: Path, tmp_path: Path) -> None:
    many(model, tmp_path, 4)


@pytest.mark.full
def test_many_cancels(model: Path, tmp_path: Path) -> None:
    many(model, tmp_path, int(os.environ.get("HEADRACE_TEST_CANCELS", "200")))


def many(model: Path, folder: Path, count: int) -> None:
    """Two at a time, from the first instant of start-up on."""
    rng = random.Random(SEED)
    moments = [rng.uniform(0.0, 9.0) for _ in range(count)]
    with ThreadPoolExecutor(2) as pool:
        took = list(pool.map(lambda pair: cancelled(folder / str(pair[0]), model, "", pair[1]), enumerate(moments)))
    took.sort()
    print(f"{count} cancels, seed {SEED}: gone after {took[len(took) // 2]:.1f} s in the median, {took[-1]:.1f} s at most")


def test_what_is_over_is_not_cancelled(model: Path, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, model, **ASYNCIO, budget={"steps": 2}, checkpoint={"every_steps": 0}, evaluation=NEVER)
    process = start(spec, tmp_path / "out", "end.told=hang:3")
    wait_until_held(tmp_path / "out", process, "end.told=hang:3")
    process.send_signal(signal.SIGTERM)
    process.wait(timeout=30)
    assert process.returncode == 0
    assert [event["data"]["outcome"] for event in lives_of(tmp_path / "out")[0].of("finished")] == ["succeeded"]
