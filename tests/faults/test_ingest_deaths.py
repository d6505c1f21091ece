"""A server that dies while it stores, over and over; a driver that is paused past its attempt: every event once, one writer at a time."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.e2e.web_rig import ROOT, WebServer
from tests.faults.checker import check
from tests.faults.history import History, lives_of
from tests.faults.real_runs import ASYNCIO, NEVER, left_of, spec_of
from tests.faults.served import Keeper, driver_command, make, stored
from tests.platform_tests import postgres_rig
from tests.workers.test_run import wait_for
from workers.contract import failpoints, loading
from workers.contract.errors import ExitCode
from workers.emit import Emitter
from workers.ship import AttemptFile, Shipper


@pytest.fixture(params=["sqlite", "postgres"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[WebServer]:
    """With a database of its own; nothing is started yet."""
    (tmp_path / "server").mkdir()
    made = WebServer(tmp_path / "server")
    with ExitStack() as stack:
        if request.param == "postgres":
            found = postgres_rig.programs()
            if found is None:
                pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
            made.env["HEADRACE_DATABASE_URL"] = stack.enter_context(postgres_rig.server(found, durable=True))
        made.migrate()
        stack.callback(made.close)
        yield made


@pytest.mark.parametrize("point", ["ingest.stored", "ingest.committed"])
def test_a_server_killed_while_it_stores_keeps_every_event_once(server: WebServer, tmp_path: Path, point: str) -> None:
    """Before the commit nothing of the batch may stay; after it the sender, who heard nothing, must not double it."""
    facts = make(server, "run", "{}")
    server.env[failpoints.VARIABLE] = f"{point}=kill@4"  # each new process dies at its fourth batch
    out = tmp_path / "out"
    emitter = Emitter(out / "spool")
    file = AttemptFile(facts["run"], facts["attempt"], 1, 1, server.url, facts["token"])
    acked = []
    with Keeper(server) as keeper:
        shipper = Shipper(file, out / "spool", durable=lambda: emitter.durable_seq)
        emitter.listeners.append(shipper.wake)
        shipper.start()
        emitter.emit("started", {"config_digest": "d", "provenance": {}, "resumed_from": None, "lanes": ["trainer"]})
        step = 0
        while keeper.deaths < 3 or step < 60:
            step += 1
            emitter.step = step
            emitter.metrics({"reward/mean": step / 1000})
            acked.append(shipper.through)
            time.sleep(0.05)
            assert step < 4000, "it does not die"
        assert emitter.close()
        assert shipper.stop(60), shipper.last_error
        server.env.pop(failpoints.VARIABLE)
    server.stop()
    server.start()
    (life,) = lives_of(out)
    life.stored, life.acked = stored(server.url, facts["run"], 1, facts["api"]), max(acked)
    assert [str(broken) for broken in check(History(loading.resolve(preset="demo"), [life]))] == []
    assert len(life.stored) == len(life.events)


def test_a_database_that_crashes_while_it_stores_keeps_every_event_once(tmp_path: Path) -> None:
    found = postgres_rig.programs()
    if found is None:
        pytest.skip("no PostgreSQL here (Debian: apt-get install postgresql)")
    (tmp_path / "server").mkdir()
    server, out = WebServer(tmp_path / "server"), tmp_path / "out"
    with postgres_rig.cluster(found, durable=True) as database:
        server.env["HEADRACE_DATABASE_URL"] = database.url
        server.migrate()
        facts = make(server, "run", "{}")
        server.start()
        try:
            emitter, troubles = Emitter(out / "spool"), []
            file = AttemptFile(facts["run"], facts["attempt"], 1, 1, server.url, facts["token"])
            shipper = Shipper(file, out / "spool", durable=lambda: emitter.durable_seq, on_trouble=troubles.append)
            emitter.listeners.append(shipper.wake)
            shipper.start()
            emitter.emit("started", {"config_digest": "d", "provenance": {}, "resumed_from": None, "lanes": ["trainer"]})
            acked = 0
            for step in range(1, 241):
                emitter.step = step
                emitter.metrics({"reward/mean": step / 1000})
                time.sleep(0.03)
                if step in (80, 160):
                    acked = shipper.through
                    assert acked > 0
                    database.crash()
                if step in (120, 200):
                    database.start()
            assert emitter.close()
            assert shipper.stop(60), shipper.last_error
            # A request may wait in the server until the database is back: then the sender hears of nothing at all.
            assert all("503" in said or "sent again" in said or "timed out" in said.lower() for said in troubles), troubles
            (life,) = lives_of(out)
            life.stored, life.acked = stored(server.url, facts["run"], 1, facts["api"]), acked
        finally:
            server.close()
    assert [str(broken) for broken in check(History(loading.resolve(preset="demo"), [life]))] == []
    assert len(life.stored) == len(life.events)


def test_a_driver_paused_past_its_attempt_is_fenced_and_ends(server: WebServer, model: Path, tmp_path: Path) -> None:
    """It wakes when a newer attempt has the run: it may store nothing more, says why it ends, and leaves nothing."""
    spec = spec_of(tmp_path, model, **ASYNCIO, budget={"steps": 5000}, checkpoint={"every_steps": 5}, evaluation=NEVER)
    facts = make(server, "run", spec.read_text())
    server.start()
    out = tmp_path / "out"
    process = subprocess.Popen(driver_command(server, facts, spec, out), cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        wait_for(out, "checkpoint")
        process.send_signal(signal.SIGSTOP)
        time.sleep(1)  # what it had sent by then is stored by now
        held = len(stored(server.url, facts["run"], 1, facts["api"]))
        second = make(server, "next", facts["run"])
        assert second["fence"] == 2
        process.send_signal(signal.SIGCONT)
        _, said = process.communicate(timeout=60)
        assert process.returncode == ExitCode.FENCED, said
        assert "a newer attempt took over" in said
        assert left_of(facts["run"]) == []
        assert len(stored(server.url, facts["run"], 1, facts["api"])) == held, "nothing of the old attempt was taken any more"
        (finished,) = lives_of(out)[-1].of("finished")
        assert finished["data"]["outcome"] == "cancelled" and finished["data"]["cause"]["type"] == "Fenced"
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
