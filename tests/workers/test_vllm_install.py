"""vLLM is installed beside what is there, missed before a run starts, and its processes die with their engine."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from workers.contract.config import RunConfig
from workers.contract.errors import EnvironmentMissing
from workers.driver import Driver
from workers.rollout.vllm import install

CHILD = "import time; from workers.rollout.vllm import guard; guard.watch(); print('ready', flush=True); time.sleep(60)"
PARENT = f"""
import os, subprocess, sys, time
from workers.rollout.vllm.guard import PARENT
child = subprocess.Popen([sys.executable, "-c", {CHILD!r}], env={{**os.environ, PARENT: str(os.getpid())}}, stdout=subprocess.PIPE)
child.stdout.readline()
print(child.pid, flush=True)
time.sleep(60)
"""


def test_a_guarded_process_dies_with_the_engine_that_started_it() -> None:
    """SIGKILL, which no handler of the engine's sees."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child = psutil.Process(int(parent.stdout.readline()))
    assert child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs([child], timeout=5)
    assert not alive


def test_a_missing_vllm_is_told_before_anything_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(install, "installed", lambda: False)
    with pytest.raises(EnvironmentMissing) as refused:
        Driver(RunConfig.model_validate({"rollout": {"engine": "vllm"}}), tmp_path / "out")
    assert refused.value.field == "rollout.engine" and install.COMMAND in str(refused.value.cure)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("gpu", [False, True])
def test_the_installation_changes_no_package_that_is_there(gpu: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """pip is told to take the list alone, and what Headrace pins, too, has the same version in it."""
    asked: list[list[str]] = []
    monkeypatch.setattr(install.subprocess, "run", lambda given, **_: asked.append(given) or subprocess.CompletedProcess(given, 0))
    chosen = install.install(gpu)
    assert asked[0][:3] == [sys.executable, "-m", "pip"] and "--no-deps" in asked[0] and asked[0][-1] == str(chosen)

    def versions(path: Path) -> dict[str, str]:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
        assert all("==" in line for line in lines)
        pairs = (line.split(";")[0].strip().split("==") for line in lines)
        return {name.lower().replace("_", "-"): version for name, version in pairs}

    constraints = Path(__file__).parents[2] / "deploy" / "constraints.txt"
    ours, theirs = versions(chosen), versions(constraints)
    assert all(theirs.get(name, version) == version for name, version in ours.items())
    assert "ninja" not in ours, "the build tool's module would overwrite django-ninja's"
    monkeypatch.setattr(install.subprocess, "run", lambda given, **_: subprocess.CompletedProcess(given, 1))
    with pytest.raises(EnvironmentMissing):
        install.install(gpu)
