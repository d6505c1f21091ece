"""What the supervisor checks and shows, without starting anything."""

from __future__ import annotations

import io
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from headrace.supervisor import pidfile, preflight, ray_head
from headrace.supervisor.layout import Layout, free_ports, write_private
from headrace.supervisor.process import MARK, Child, carrying, end, end_all, is_same, started_at
from headrace.supervisor.progress import Console, Reading, describe
from workers.contract.errors import EnvironmentMissing


def test_python_too_old_is_named() -> None:
    with pytest.raises(EnvironmentMissing, match=r"3\.11 or newer.*3\.10"):
        preflight.check_python((3, 10))
    preflight.check_python((3, 11))


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.write_text("")
    with pytest.raises(EnvironmentMissing, match="--data-dir") as found:
        preflight.check_folder(blocked / "data")
    assert "another --data-dir" in str(found.value)


@pytest.mark.parametrize("folder", ["/proc/headrace"])
def test_a_read_only_file_system_is_named(folder: str) -> None:
    with pytest.raises(EnvironmentMissing, match="cannot be written"):
        preflight.check_folder(Path(folder))


def test_a_full_disk_is_named(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing, match=r"GB free and .* are needed"):
        preflight.check_space(tmp_path, needed=10**18)


def test_a_busy_port_names_its_holder() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        with pytest.raises(EnvironmentMissing, match=f"process {os.getpid()}"):
            preflight.check_port(port)
    with pytest.raises(EnvironmentMissing, match="between 1024"):
        preflight.check_port(80)


def test_a_runtime_folder_open_to_others_is_refused(tmp_path: Path) -> None:
    layout = Layout(data=tmp_path / "d", port=8700)
    layout.runtime.mkdir(mode=0o777)
    layout.runtime.chmod(0o777)
    try:
        with pytest.raises(EnvironmentMissing, match="open to others"):
            layout.make()
    finally:
        layout.runtime.rmdir()


def test_a_long_data_folder_gets_a_short_socket(tmp_path: Path) -> None:
    layout = Layout(data=tmp_path / ("x" * 90), port=8700)
    assert len(os.fsencode(layout.valkey_socket)) < 104
    session = layout.ray_dir / "session_2026-01-01_00-00-00_000000_1234567" / "sockets" / "plasma_store"
    assert len(os.fsencode(session)) < 104


def test_secrets_are_written_private(tmp_path: Path) -> None:
    os.umask(0)
    write_private(tmp_path / "s", "x")
    assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600
    os.umask(0o022)


def test_a_process_is_named_by_pid_and_start_time() -> None:
    own = started_at(os.getpid())
    assert own is not None and is_same(os.getpid(), own)
    assert not is_same(os.getpid(), own - 10)


def test_end_kills_what_ignores_a_term() -> None:
    stubborn = subprocess.Popen(
        [sys.executable, "-c", "import signal,time; signal.signal(15, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"],
        env={**os.environ, MARK: "test-end"},
        stdout=subprocess.PIPE,
    )
    assert stubborn.stdout is not None
    stubborn.stdout.readline()
    assert [p.pid for p in carrying(MARK, "test-end")] == [stubborn.pid]
    assert end([psutil.Process(stubborn.pid)], grace_s=0.3) == []
    assert stubborn.wait(timeout=5) is not None
    stubborn.stdout.close()


def test_what_is_ended_may_begin_something_else_which_is_ended_too() -> None:
    environment = {**os.environ, MARK: "test-end-all"}
    script = "trap 'sleep 60 & exit' TERM; echo ready; while :; do sleep 0.05; done"
    with subprocess.Popen(["/bin/sh", "-c", script], env=environment, stdout=subprocess.PIPE) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        ended, survivors = end_all(lambda: carrying(MARK, "test-end-all"), grace_s=2.0)
    assert ended >= 2 and survivors == [] and carrying(MARK, "test-end-all") == []


def test_a_child_dies_with_its_supervisor(tmp_path: Path) -> None:
    code = (
        "import os,sys,time; from pathlib import Path; from headrace.supervisor.process import Child\n"
        f"c = Child('c', ['sleep', '60'], dict(os.environ), Path({str(tmp_path / 'c.log')!r}), Path('/'))\n"
        "c.start(); print(c.process.pid, flush=True); time.sleep(60)"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid = int(parent.stdout.readline())
    start = started_at(pid)
    assert start is not None
    parent.kill()
    parent.wait()
    parent.stdout.close()
    deadline = time.monotonic() + 5
    while is_same(pid, start) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not is_same(pid, start)


def test_a_child_keeps_its_last_lines(tmp_path: Path) -> None:
    child = Child("c", ["sh", "-c", "seq 30; exit 3"], dict(os.environ), tmp_path / "c.log", Path("/"))
    child.start()
    assert child.process is not None and child.process.wait(timeout=5) == 3
    assert child.last_lines(2) == "29\n30"


def test_a_torn_pidfile_is_no_pidfile(tmp_path: Path) -> None:
    layout = Layout(data=tmp_path, port=8700)
    layout.pidfile.write_text('{"pid": 1, "sta')
    assert pidfile.read(layout.pidfile) is None
    assert pidfile.claim(layout) == 0


def test_ray_is_started_on_loopback_with_a_token_and_no_secret(tmp_path: Path) -> None:
    layout = Layout(data=tmp_path, port=8700)
    env = ray_head.environment(
        layout, {"PATH": "/bin", "HEADRACE_SECRET_KEY": "s", "HEADRACE_DATABASE_URL": "d", "RAY_AUTH_MODE": "disabled"}, MARK
    )
    assert env["RAY_AUTH_MODE"] == "token" and "HEADRACE_SECRET_KEY" not in env and "HEADRACE_DATABASE_URL" not in env
    line = ray_head.command(layout, cpus=4)
    assert "--node-ip-address=127.0.0.1" in line and "--dashboard-host=127.0.0.1" in line and "--num-cpus=4" in line
    assert any(a.startswith("--object-store-memory=") for a in line)


def test_free_ports_are_distinct() -> None:
    assert len(set(free_ports(20))) == 20


def test_nothing_known_is_never_shown_as_zero() -> None:
    assert describe(Reading(state="launching")) == "launching: waiting for the first step"
    assert describe(Reading(state="running", phase="loading the model")).endswith("loading the model")
    line = describe(Reading(state="running", step=3, steps=40, reward=0.25, depth=2, capacity=16, lag=1.5, sync_ms=12.4))
    assert line == "step 3/40  reward 0.250  buffer 2/16  lag 1.50  sync 12 ms  - samples/s"


def test_without_a_terminal_only_lasting_lines_are_written() -> None:
    stream = io.StringIO()
    console = Console(stream)
    console.line("a", lasting=True)
    console.line("b", lasting=False)
    console.say("c")
    assert stream.getvalue().splitlines()[0] == "a" and "b" not in stream.getvalue() and stream.getvalue().endswith("c\n")
