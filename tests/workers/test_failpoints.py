"""The seam of faults: what it says it does, and nothing while it is off."""

from __future__ import annotations

import ast
import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.checks import no_failpoints
from headrace.supervisor.preflight import check_failpoints
from workers.contract import failpoints
from workers.contract.errors import ConfigError, EnvironmentMissing
from workers.contract.failpoints import FailpointError, arm, parse, reached

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def disarmed() -> object:
    yield
    arm("")


def test_every_point_stands_in_the_code_once_and_no_other_does() -> None:
    used: list[str] = []
    for path in (*(ROOT / "workers").rglob("*.py"), *(ROOT / "platform").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "reached":
                assert isinstance(node.args[0], ast.Constant), path
                used.append(str(node.args[0].value))
    assert sorted(used) == sorted(failpoints.POINTS)


def test_off_it_does_nothing() -> None:
    for point in failpoints.POINTS:
        reached(point)


def test_it_happens_from_the_nth_time_on_so_many_times() -> None:
    arm("save.begun=raise@3x2")
    happened = []
    for number in range(1, 7):
        try:
            reached("save.begun")
        except FailpointError:
            happened.append(number)
    assert happened == [3, 4]


@pytest.mark.parametrize(("action", "number"), [("enospc", errno.ENOSPC), ("eio", errno.EIO)])
def test_a_disk_that_fails(action: str, number: int) -> None:
    arm(f"spool.sync={action}")
    with pytest.raises(OSError, match=r"spool\.sync") as fault:
        reached("spool.sync")
    assert fault.value.errno == number
    reached("spool.sync")


def test_shares_are_drawn_from_the_seed() -> None:
    def draws(seed: str) -> list[bool]:
        armed = parse("save.begun=kill%0.3", seed)["save.begun"]
        return [armed.due() for _ in range(200)]

    assert draws("1") == draws("1") != draws("2")
    assert 30 < sum(draws("1")) < 90


@pytest.mark.parametrize("text", ["save.begun", "nowhere=kill", "save.begun=explode", "save.begun=kill@x", "save.begun=hang"])
def test_what_is_no_failpoint_is_named(text: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse(text)
    assert refused.value.field == failpoints.VARIABLE and refused.value.value == text and "save.begun" in str(refused.value.cure)


def test_kill_and_stop_are_what_the_kernel_calls_so() -> None:
    code = "from workers.contract.failpoints import reached; reached('save.begun'); reached('save.begun')"
    for action, signal_number in (("kill", signal.SIGKILL), ("stop", signal.SIGSTOP)):
        environment = {**os.environ, failpoints.VARIABLE: f"save.begun={action}@2"}
        process = subprocess.Popen([sys.executable, "-c", code], env=environment, cwd=ROOT, stderr=subprocess.PIPE)
        _, status = os.waitpid(process.pid, os.WUNTRACED)
        if action == "stop":
            assert os.WIFSTOPPED(status) and os.WSTOPSIG(status) == signal_number
            process.send_signal(signal.SIGCONT)
            assert process.wait(20) == 0
        else:
            assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal_number
        assert process.stderr is not None and b"failpoint save.begun" in process.stderr.read()
        process.stderr.close()


def test_no_server_starts_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    check_failpoints()
    assert no_failpoints() == []
    monkeypatch.setenv(failpoints.VARIABLE, "save.begun=kill")
    with pytest.raises(EnvironmentMissing, match=failpoints.VARIABLE):
        check_failpoints()
    assert [found.id for found in no_failpoints()] == ["headrace.E008"]
