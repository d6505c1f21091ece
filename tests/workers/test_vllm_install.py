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

# What would remove the shared memory in their stead is not told of it: Ray kills that, too.
CHILD = """
import sys, time
from _multiprocessing import SemLock
from multiprocessing import get_context, resource_tracker, shared_memory
from workers.rollout.vllm import guard
guard.watch()
segment = shared_memory.SharedMemory(sys.argv[1])
resource_tracker.unregister(segment._name, "shared_memory")
lock = SemLock._rebuild(0, 1, 1, sys.argv[2])
own = get_context("spawn").Lock()
resource_tracker.unregister(own._semlock.name, "semaphore")
print(*sorted(item.name for item in guard.shared()), flush=True)
time.sleep(60)
"""
PARENT = f"""
import os, subprocess, sys, time
from multiprocessing import get_context, resource_tracker, shared_memory
from workers.rollout.vllm.guard import PARENT
segment = shared_memory.SharedMemory(create=True, size=4096)
resource_tracker.unregister(segment._name, "shared_memory")
lock = get_context("spawn").Lock()
resource_tracker.unregister(lock._semlock.name, "semaphore")
environment = {{**os.environ, PARENT: str(os.getpid())}}
command = [sys.executable, "-c", {CHILD!r}, segment.name, lock._semlock.name]
child = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
print(child.pid, child.stdout.readline(), flush=True)
time.sleep(60)
"""


def test_a_guarded_process_dies_with_the_engine_that_started_it_and_leaves_no_shared_memory() -> None:
    """SIGKILL, which no handler of the engine's sees."""
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    pid, *names = parent.stdout.readline().split()
    child, files = psutil.Process(int(pid)), [Path("/dev/shm") / name for name in names]
    assert child.is_running() and child.status() != psutil.STATUS_ZOMBIE
    assert [name[:3] for name in names] == ["psm", "sem", "sem"] and all(file.exists() for file in files)
    parent.kill()
    parent.wait()
    _, alive = psutil.wait_procs([child], timeout=5)
    assert not alive
    assert not [file for file in files if file.exists()]


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
