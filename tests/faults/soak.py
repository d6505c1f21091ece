"""Hours of the whole product: one run after the other, a part killed every minute, and what memory, files and disk do meanwhile."""

from __future__ import annotations

import contextlib
import os
import random
import time
from pathlib import Path
from typing import Any

import psutil

from tests.e2e.conftest import wait_until
from tests.e2e.test_up import assert_nothing_left
from tests.faults.product import Product
from tests.faults.test_product_deaths import OVER, config

VICTIMS = ("web", "celery", "reconciler", "valkey", "driver", "generator", "trainer")
EVERY_S = 60.0


def soak(folder: Path, model: Path, minutes: float, seed: int = 0) -> dict[str, Any]:
    """Raises AssertionError on the first finding. Returns runs, kills and the growth of each part from the first third to the last."""
    rng = random.Random(seed)
    product = Product(folder / "data")
    product.start()
    runs: list[str] = []
    kills: dict[str, int] = {}
    looks: list[dict[str, float]] = []
    try:
        end, fault_at = time.monotonic() + minutes * 60, time.monotonic() + EVERY_S
        while time.monotonic() < end:
            if not runs or product.state(runs[-1]) in OVER:
                runs.append(product.launch(config(model, rng.randint(100, 400)), f"soak {len(runs)}"))
            if time.monotonic() > fault_at:
                fault_at += EVERY_S
                victim = rng.choice(VICTIMS)
                if _kill(product, runs[-1], victim):
                    kills[victim] = kills.get(victim, 0) + 1
            looks.append(_look(product))
            time.sleep(5)
        if product.state(runs[-1]) not in OVER:
            product.do(runs[-1], "cancel")
        for run in runs:
            wait_until(lambda r=run: product.state(r) in OVER, 120, f"the end of {run}", every=0.5)
            found = product.findings(run)
            assert found == [], f"{run}: {found}"
    finally:
        if product.up.process.poll() is None:
            product.up.stop()
    assert_nothing_left(product.layout)
    return {"runs": len(runs), "kills": sum(kills.values()), "victims": kills, "growth": _growth(looks)}


def _kill(product: Product, run: str, victim: str) -> bool:
    if victim in ("web", "celery", "reconciler", "valkey"):
        product.kill(victim)
        return True
    found = product.members(run).get(victim)
    if found is not None:
        found.kill()
    return found is not None


def _look(product: Product) -> dict[str, float]:
    """Of the supervisor, which nobody kills, and of the folder: resident MB, open files, threads, MB on disk."""
    supervisor = psutil.Process(product.up.process.pid)
    disk = 0
    for folder, _, names in os.walk(product.data):  # which says nothing of folders that are pruned meanwhile
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                disk += os.lstat(os.path.join(folder, name)).st_size
    return {
        "rss_mb": supervisor.memory_info().rss / 1e6,
        "files": float(supervisor.num_fds()),
        "threads": float(supervisor.num_threads()),
        "disk_mb": disk / 1e6,
    }


def _growth(looks: list[dict[str, float]]) -> dict[str, float]:
    """Mean of the last third less mean of the first."""
    third = max(1, len(looks) // 3)
    first, last = looks[:third], looks[-third:]
    return {key: round(sum(row[key] for row in last) / len(last) - sum(row[key] for row in first) / len(first), 2) for key in looks[0]}
