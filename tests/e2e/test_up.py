"""`headrace up` as a user starts it: every process real, killed, restarted, and gone when it stops."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from headrace.dispatch import remains
from headrace.supervisor import pidfile
from headrace.supervisor.layout import Layout, free_ports, port_is_free
from headrace.supervisor.process import MARK, carrying
from tests.e2e.conftest import wait_until
from tests.e2e.web_rig import migrated_folder

pytestmark = pytest.mark.e2e

STOP_S = 30  # ten seconds on an idle machine: what does not comply by then is killed
LINK = re.compile(r"Headrace runs at (http://\S+)")


class Up:
    """One `headrace` command in a session of its own, and what it printed."""

    def __init__(self, data: Path, port: int, *arguments: str, command: str = "up") -> None:
        self.layout = Layout(data=data, port=port)
        self.out = data.parent / f"out-{time.monotonic_ns()}.txt"
        environment = {k: v for k, v in os.environ.items() if not k.startswith(("HEADRACE_", "DJANGO_", "RAY_"))}
        argv = [sys.executable, "-m", "headrace.cli", command, "--data-dir", str(data), "--port", str(port), *arguments]
        with self.out.open("wb") as out:
            self.process = subprocess.Popen(
                argv, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment, cwd="/", start_new_session=True
            )

    @property
    def text(self) -> str:
        return self.out.read_text()

    def link(self, seconds: float = 90) -> str:
        found = wait_until(lambda: LINK.search(self.text) or self.process.poll() is not None, seconds, f"the link; it said:\n{self.text}")
        assert found is not True, self.text
        return found.group(1)

    def stop(self, number: int = signal.SIGTERM) -> float:
        began = time.monotonic()
        self.process.send_signal(number)
        self.process.wait(timeout=120)
        return time.monotonic() - began

    def child(self, words: str) -> psutil.Process | None:
        for process in carrying(MARK, self.layout.mark):
            try:
                if words in " ".join(process.cmdline()) and not process.cmdline()[0].endswith("/sh"):
                    return process
            except psutil.Error:
                continue
        return None

    def ray_port(self) -> int:
        line = next(a for p in [self.child("--dashboard-port=")] if p for a in p.cmdline() if a.startswith("--dashboard-port="))
        return int(line.split("=")[1])


def assert_nothing_left(layout: Layout) -> None:
    assert [p.cmdline() for p in pidfile.leftovers(layout)] == []
    assert port_is_free(layout.port)
    for path in (layout.runtime, layout.valkey_socket, layout.ray_token, layout.pidfile):
        assert not path.exists(), path


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    started = Up(tmp_path_factory.mktemp("up") / "data", free_ports(1)[0])
    try:
        started.link()
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()
        assert_nothing_left(started.layout)


def test_it_prints_one_set_up_link_that_works(up: Up) -> None:
    assert "/setup/" in up.link()
    with httpx.Client(trust_env=False, timeout=10) as client:
        page = client.get(up.link())
        assert page.status_code == 200
        assert "password" in page.text.lower()
        assert client.get(f"{up.layout.base_url}/healthz/live").status_code == 200
        assert client.get(f"{up.layout.base_url}/runs/").status_code in (302, 401, 403)


def test_everything_listens_on_loopback_or_a_private_socket(up: Up) -> None:
    pids = {p.pid for p in pidfile.leftovers(up.layout)}
    sockets = [c for c in psutil.net_connections("tcp") if c.status == psutil.CONN_LISTEN and c.pid in pids]
    assert sockets and all(c.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for c in sockets), sockets
    assert up.layout.valkey_socket.stat().st_mode & 0o077 == 0
    assert up.layout.secret_key.stat().st_mode & 0o777 == 0o600
    assert not [c for c in sockets if c.pid == up.child("valkey-server").pid], "Valkey has no TCP port"


def test_a_second_one_on_the_same_folder_is_refused(up: Up) -> None:
    second = Up(up.layout.data, free_ports(1)[0])
    assert second.process.wait(timeout=120) == 5
    assert "already runs" in second.text and str(up.process.pid) in second.text
    assert up.process.poll() is None and up.layout.pidfile.exists()


def test_a_job_survives_web_and_worker_and_both_come_back(up: Up) -> None:
    base = f"http://127.0.0.1:{up.ray_port()}"
    headers = {"Authorization": f"Bearer {up.layout.ray_token.read_text()}"}
    with httpx.Client(trust_env=False, timeout=20, headers=headers, base_url=base) as ray:
        body = {"submission_id": "survivor", "entrypoint": f"{sys.executable} -c 'import time; time.sleep(120)'"}
        assert ray.post("/api/jobs/", json=body).status_code == 200
        wait_until(lambda: ray.get("/api/jobs/survivor").json()["status"] == "RUNNING", 30, "the job")
        old = {}
        for words in ("uvicorn", "celery", "headrace.dispatch"):
            victim = up.child(words)
            assert victim is not None, words
            old[words] = victim.pid
            victim.kill()
        for words, pid in old.items():
            wait_until(lambda w=words, p=pid: (c := up.child(w)) and c.pid != p, 20, f"{words} started again")
        live = f"{up.layout.base_url}/healthz/live"
        wait_until(lambda: _status(live) == 200, 30, "the web server again")
        assert ray.get("/api/jobs/survivor").json()["status"] == "RUNNING"
        ray.post("/api/jobs/survivor/stop")


def test_stop_takes_at_most_ten_seconds_and_leaves_nothing(up: Up) -> None:
    base = f"http://127.0.0.1:{up.ray_port()}"
    headers = {"Authorization": f"Bearer {up.layout.ray_token.read_text()}"}
    with httpx.Client(trust_env=False, timeout=20, headers=headers, base_url=base) as ray:
        ray.post("/api/jobs/", json={"submission_id": "stubborn", "entrypoint": "trap '' TERM INT; sleep 300"})
        wait_until(lambda: ray.get("/api/jobs/stubborn").json()["status"] == "RUNNING", 30, "the job")
    assert up.stop(signal.SIGINT) < STOP_S
    assert up.process.returncode == 0, up.text
    assert_nothing_left(up.layout)


def test_a_killed_one_is_cleared_by_the_next_start(tmp_path: Path) -> None:
    data, port = migrated_folder(tmp_path / "data"), free_ports(1)[0]
    first = Up(data, port)
    first.link()
    first.process.kill()
    first.process.wait()
    orphan = subprocess.Popen(["sleep", "300"], env={**os.environ, MARK: first.layout.mark}, start_new_session=True)
    second = Up(data, port)
    try:
        assert "/setup/" in second.link(), "no admin yet: the link is issued again"
        assert orphan.poll() is not None, "what the killed one left was ended"
    finally:
        orphan.kill()
        assert second.stop() < STOP_S
    assert_nothing_left(second.layout)


SMALL = ["batch.prompts=2", "batch.group_size=4", "evaluation.prompts=4", "evaluation.every_steps=100"]
SETS = [part for item in SMALL for part in ("--set", item)]


@pytest.mark.full  # on a tiny model, and with every other part: tests/faults
@pytest.mark.model
def test_a_killed_driver_is_noticed_with_its_cause_and_leaves_nothing(tmp_path: Path) -> None:
    demo = Up(tmp_path / "data", free_ports(1)[0], "--steps", "500", "--once", *SETS, command="demo")
    try:
        wait_until(lambda: re.search(r"^step [1-9]", demo.text, re.M) or demo.process.poll() is not None, 240, "the first step", every=0.2)
        driver = demo.child("-m workers run /")  # the driver itself, not the shell around it
        assert driver is not None, demo.text
        driver.kill()
        run = re.search(r"launched run (\w+)", demo.text)
        assert run
        wait_until(lambda: "the run ended as failed" in demo.text, 30, f"the failure noticed\n{demo.text}")
        wait_until(lambda: remains.gone(run.group(1)), 10, "nothing left of the run")
        assert demo.process.wait(timeout=60) == 1
    finally:
        if demo.process.poll() is None:
            demo.stop()
    assert "exit code" in demo.text and "what to do: read the last log lines" in demo.text
    assert_nothing_left(demo.layout)


@pytest.mark.full  # on a tiny model, and with every other part: tests/faults
@pytest.mark.model
def test_training_goes_on_while_web_and_worker_are_killed(tmp_path: Path) -> None:
    demo = Up(tmp_path / "data", free_ports(1)[0], "--steps", "12", "--once", *SETS, command="demo")
    try:
        wait_until(lambda: re.search(r"^step [1-9]", demo.text, re.M) or demo.process.poll() is not None, 240, "the first step", every=0.2)
        for words in ("uvicorn", "celery"):
            victim = demo.child(words)
            assert victim is not None, f"{words}\n{demo.text}"
            victim.kill()
        assert demo.process.wait(timeout=600) == 0, demo.text
    finally:
        if demo.process.poll() is None:
            demo.stop()
    assert "web ended" in demo.text and "the run succeeded: step 12/12" in demo.text
    with contextlib.closing(sqlite3.connect(next(demo.layout.data.glob("*.sqlite3")))) as database:
        ranges = database.execute("select first_seq, last_seq from telemetry_eventbatch order by first_seq").fetchall()
    assert ranges[0][0] == 1 and all(after[0] == before[1] + 1 for before, after in itertools.pairwise(ranges)), ranges
    folder = next(demo.layout.runs.glob("*/attempt-1"))
    written = sum(len(segment.read_bytes().splitlines()) for segment in folder.rglob("*.spool"))
    assert ranges[-1][1] == written, "every event of the spool is stored, once"
    assert_nothing_left(demo.layout)


@pytest.mark.model
def test_ctrl_c_cancels_the_demo_run_and_leaves_nothing(tmp_path: Path) -> None:
    demo = Up(migrated_folder(tmp_path / "data"), free_ports(1)[0], "--steps", "200", *SETS, command="demo")
    wait_until(lambda: re.search(r"^step [1-9]", demo.text, re.M) or demo.process.poll() is not None, 240, "the first step", every=0.5)
    run = re.search(r"launched run (\w+)", demo.text)
    assert run and demo.process.poll() is None, demo.text
    line = re.findall(r"^step .*$", demo.text, re.M)[-1]
    assert re.fullmatch(r"step \d+/200  reward [\d.]+  buffer \d+/\d+  lag [\d.]+  sync (\d+|-) ms  [\d.]+ samples/s", line), line
    assert demo.stop(signal.SIGINT) < STOP_S
    assert demo.process.returncode == 0
    assert remains.gone(run.group(1))
    assert_nothing_left(demo.layout)
    listed = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "runs", "--data-dir", str(demo.layout.data)], capture_output=True, text=True, check=True
    )
    assert f"{run.group(1)}  cancelled" in listed.stdout
    summary = json.loads((demo.layout.runs / run.group(1) / "attempt-1" / "summary.json").read_text())
    assert summary["outcome"] == "cancelled", "the driver itself came to an orderly end"


def test_busy_port_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        busy = Up(tmp_path / "data", port)
        assert busy.process.wait(timeout=120) == 5
    assert f"port {port} is in use by process {os.getpid()}" in busy.text and "--port" in busy.text
    assert "Traceback" not in busy.text
    assert_nothing_left(busy.layout)


def test_wrong_options_cost_no_start(tmp_path: Path) -> None:
    wrong = Up(tmp_path / "data", free_ports(1)[0], "--steps", "-3", command="demo")
    assert wrong.process.wait(timeout=120) == 2
    assert "budget.steps" in wrong.text and "Traceback" not in wrong.text
    assert not (tmp_path / "data").exists()


def _status(url: str) -> int:
    try:
        with httpx.Client(trust_env=False, timeout=3) as client:
            return client.get(url).status_code
    except httpx.HTTPError:
        return 0


def test_the_pidfile_names_processes_by_start_time(tmp_path: Path) -> None:
    layout = Layout(data=tmp_path, port=8700)
    (tmp_path / "headrace.pid").write_text(json.dumps({"pid": os.getpid(), "start": 1.0, "port": 1, "groups": []}))
    assert pidfile.running(layout) is None, "our pid, but another process's start time: that one is gone"
