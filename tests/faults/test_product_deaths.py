"""Every part of the running product killed with -9, one after the other and at moments that a seed chooses, while a run trains.

What is asked is what a user asks: the run goes on, or is resumed, or says within a minute why it does not; nothing told is lost.
"""

from __future__ import annotations

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from headrace.dispatch import remains
from headrace.supervisor.process import is_alive
from tests.e2e.conftest import wait_until
from tests.e2e.test_up import assert_nothing_left
from tests.faults.product import Product
from tests.faults.real_runs import NEVER
from tests.workers.test_run import SHAPE

pytestmark = pytest.mark.e2e
SEED = 61
OVER = ("succeeded", "failed", "cancelled", "lost")


@pytest.fixture(scope="module")
def product(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Product]:
    started = Product(tmp_path_factory.mktemp("faults") / "data")
    started.start()
    try:
        yield started
    finally:
        if started.up.process.poll() is None:
            started.up.stop()
        assert_nothing_left(started.layout)


def config(model: Path, steps: int, **blocks: Any) -> dict[str, Any]:
    """The command's own tests' job, on Ray, with room to be killed in."""
    here = {"model": {"path": str(model), "dtype": "float32"}, "evaluation": NEVER, "checkpoint": {"every_steps": 5}}
    return {**SHAPE, **here, "budget": {"steps": steps}, **blocks}


def test_the_control_plane_dies_part_by_part_and_training_goes_on(product: Product, model: Path) -> None:
    rng = random.Random(SEED)
    run = product.launch(config(model, 100_000), "survivor")
    product.wait_for_step(run, 1)
    for part in ["web", "celery", "reconciler", "valkey"] * 2:
        time.sleep(rng.uniform(0.0, 1.0))
        before = product.step(run)
        old = product.kill(part)
        wait_until(lambda p=part, o=old: (c := product.part(p)) and c.pid != o, 30, f"{part} started again\n{product.up.text}")
        product.wait_for_step(run, before + 3)
    product.do(run, "stop")
    wait_until(lambda: product.state(run) in OVER, 60, "its orderly end")
    assert product.state(run) == "succeeded"
    assert product.findings(run) == [], f"seed {SEED}"


# Driver and generator die in every suite without the product around them: test_engine_deaths.py.
IN_EVERY_SUITE = ("trainer", "raylet")


@pytest.mark.parametrize(
    "victim",
    [
        victim if victim in IN_EVERY_SUITE else pytest.param(victim, marks=pytest.mark.full)
        for victim in ("driver", "generator", "trainer", "raylet", "gcs")
    ],
)
def test_whoever_dies_the_cause_is_shown_and_a_resume_goes_on(product: Product, model: Path, victim: str) -> None:
    run = product.launch(config(model, 400, checkpoint={"every_steps": 2}), f"without {victim}")
    product.wait_for_step(run, 4)
    if victim in ("raylet", "gcs"):
        product.kill(victim)
    else:
        wait_until(lambda: product.members(run).get(victim), 30, f"the {victim}").kill()
    began = time.monotonic()
    wait_until(lambda: product.state(run) in ("failed", "lost"), 60, f"the end shown\n{product.up.text}", every=0.3)
    took = time.monotonic() - began
    print(f"{victim}: shown after {took:.1f} s")
    shown = product.run(run)
    assert shown is not None
    cause = shown["attempts"][-1]["exit_cause"]
    assert cause["message"] and cause["cure"], cause
    wait_until(lambda: remains.gone(run), 10, f"nothing left of it: {remains.find(run)}")
    product.do(run, "resume")
    wait_until(lambda: product.state(run) in ("running", *OVER), 120, f"attempt 2\n{product.up.text}", every=0.3)
    product.wait_for_step(run, 8, 120)
    product.do(run, "cancel")
    wait_until(lambda: product.state(run) in OVER, 30, "the end")
    assert product.state(run) == "cancelled"
    assert product.findings(run) == []


def test_a_driver_that_stands_still_is_cancelled_and_never_wakes(product: Product, model: Path) -> None:
    """Stopped, it hears nothing: the cancel is carried out for it, and the next attempt has the run alone."""
    run = product.launch(config(model, 400, checkpoint={"every_steps": 2}), "asleep")
    product.wait_for_step(run, 4)
    driver = wait_until(lambda: product.members(run).get("driver"), 30, "the driver")
    driver.send_signal(signal.SIGSTOP)
    product.do(run, "cancel")
    product.do(run, "cancel")  # twice is once
    wait_until(lambda: product.state(run) in OVER, 20, "the cancel carried out")
    wait_until(lambda: remains.gone(run), 10, f"nothing left of it: {remains.find(run)}")
    assert product.state(run) == "cancelled" and not is_alive(driver.pid)
    product.do(run, "resume")
    wait_until(lambda: product.state(run) in ("running", *OVER), 120, "attempt 2", every=0.3)
    product.wait_for_step(run, 6, 120)
    product.do(run, "cancel")
    wait_until(lambda: product.state(run) in OVER, 30, "the end")
    product.do(run, "cancel")  # of what is over changes nothing
    assert product.state(run) == "cancelled"
    assert product.findings(run) == []


def test_the_supervisor_dies_and_the_next_start_says_what_became_of_the_run(product: Product, model: Path) -> None:
    run = product.launch(config(model, 400, checkpoint={"every_steps": 2}), "orphan")
    product.wait_for_step(run, 4)
    product.up.process.kill()
    product.up.process.wait()
    product.start()
    wait_until(lambda: product.state(run) in OVER, 60, f"its fate\n{product.up.text}", every=0.3)
    shown = product.run(run)
    assert shown is not None and shown["attempts"][-1]["exit_cause"]["message"], shown
    wait_until(lambda: remains.gone(run), 10, f"nothing left of it: {remains.find(run)}")
    product.do(run, "resume")
    wait_until(lambda: product.state(run) in ("running", *OVER), 120, "attempt 2", every=0.3)
    product.wait_for_step(run, 8, 120)
    product.do(run, "cancel")
    wait_until(lambda: product.state(run) in OVER, 30, "the end")
    assert product.findings(run) == []
