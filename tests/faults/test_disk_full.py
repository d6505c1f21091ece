"""The server's disk fills up under a driver that goes on telling: a clear state meanwhile, every event once when there is room again."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.e2e.conftest import wait_until
from tests.e2e.web_rig import WebServer
from tests.faults.checker import check
from tests.faults.history import History, lives_of
from tests.faults.real_runs import ASYNCIO, NEVER, history_of, spec_of
from tests.faults.served import make, stored
from workers.contract import loading
from workers.emit import Emitter
from workers.ship import AttemptFile, Shipper

SIZE_MB = 24


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, of a few megabytes; where it lies suits the logs of a run in `run/`."""
    folder = tmp_path / "run" / "logs"
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE_MB}m,mode=700", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system of our own can be mounted here: {mounted.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def fill(folder: Path) -> Path:
    """Takes every byte that is left."""
    filler = folder / "filler"
    with filler.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x" * 65536)
    with filler.open("ab", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"x")
    return filler


def test_a_full_disk_under_the_database_is_said_and_nothing_is_lost(small_disk: Path, tmp_path: Path) -> None:
    server = WebServer(small_disk)
    server.migrate()
    facts = make(server, "run", "{}")
    server.start()
    out = tmp_path / "out"  # the driver's disk is another one, with room
    emitter = Emitter(out / "spool")
    troubles: list[str] = []
    file = AttemptFile(facts["run"], facts["attempt"], 1, 1, server.url, facts["token"])
    shipper = Shipper(file, out / "spool", durable=lambda: emitter.durable_seq, on_trouble=troubles.append)
    emitter.listeners.append(shipper.wake)
    shipper.start()
    try:
        emitter.emit("started", {"config_digest": "d", "provenance": {}, "resumed_from": None, "lanes": ["trainer"]})
        tell(emitter, 200)
        wait_until(lambda: shipper.through >= 100, 30, "the first events")
        filler = fill(small_disk)
        tell(emitter, 400)
        wait_until(lambda: any("503" in said for said in troubles), 30, f"the trouble told: {troubles}")
        held = shipper.through
        headers = {"Authorization": f"Bearer {facts['api']}"}
        seen = httpx.get(f"{server.url}/api/v1/runs/{facts['run']}", headers=headers, trust_env=False, timeout=30)
        assert seen.status_code == 200 or seen.json()["code"] == "storage_full", seen.text
        ready = httpx.get(f"{server.url}/healthz/ready", trust_env=False, timeout=30)
        assert ready.status_code == 503 and "free" in ready.json()["parts"]["disk"]
        refused = httpx.post(
            f"{server.url}/api/v1/runs", json={"name": "n", "idempotency_key": "n"}, headers=headers, trust_env=False, timeout=30
        )
        assert refused.status_code == 503 and refused.json()["code"] == "storage_full", refused.text
        filler.unlink()
        wait_until(lambda: shipper.through > held, 30, f"it goes on by itself: {shipper.last_error}")
        assert emitter.close()
        assert shipper.stop(60), shipper.last_error
        assert any("sent again" in said for said in troubles)
        (life,) = lives_of(out)
        life.stored, life.acked = stored(server.url, facts["run"], 1, facts["api"]), held
        assert [str(broken) for broken in check(History(loading.resolve(preset="demo"), [life]))] == []
        assert len(life.stored) == len(life.events)
    finally:
        server.close()
    base = sqlite3.connect(small_disk / "headrace.sqlite3")
    assert base.execute("pragma integrity_check").fetchone() == ("ok",)
    base.close()


def test_a_full_disk_under_the_logs_costs_their_lines_and_nothing_else(small_disk: Path, model: Path, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, model, **ASYNCIO, budget={"steps": 6}, evaluation=NEVER)
    fill(small_disk)
    command = [sys.executable, "-m", "workers", "run", str(spec), "--out", str(small_disk.parent), "--quiet"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    assert [str(broken) for broken in check(history_of(small_disk.parent, state="succeeded"))] == []


def tell(emitter: Emitter, count: int) -> None:
    """Many small events with text that compresses badly."""
    for _ in range(count):
        emitter.step += 1
        emitter.log("info", os.urandom(400).hex())
        time.sleep(0.002)
