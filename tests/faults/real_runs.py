"""Real runs of `python -m workers` on a tiny model: with failpoints, killed, resumed in place, and their history."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from headrace.dispatch import remains
from tests.faults.history import History, Life, lives_of
from tests.workers.test_run import SHAPE
from workers.contract import failpoints, loading
from workers.contract.errors import ExitCode

ASYNCIO = {"orchestration": {"kind": "asyncio"}}
STRICT = {"determinism": "strict", "staleness": {"max_lag": 0, "depth_bound": {"value": 1, "unit": "batches"}}}
NEVER = {"every_steps": 0, "at_start": False, "at_end": False, "prompts": 4}  # evaluations
KILLED = -9
DIED = (KILLED, ExitCode.FAILED)  # the driver itself, or one of its pool, whose death it told


def spec_of(folder: Path, model: Path, **blocks: Any) -> Path:
    """A spec in `folder`: that of the command's own tests, with `blocks` over it."""
    spec: dict[str, Any] = {**SHAPE, **ASYNCIO, "model": {"path": str(model), "dtype": "float32"}}
    for name, block in blocks.items():
        spec[name] = {**spec.get(name, {}), **block} if isinstance(block, dict) else block
    path = folder / "spec.json"
    path.write_text(json.dumps(spec))
    return path


def start(spec: Path, out: Path, points: str = "", *more: str) -> subprocess.Popen[bytes]:
    """A run, or the resume of what lies in `out`, with failpoints armed in all its processes."""
    what = ["resume", str(out)] if any((out / "checkpoints").glob("step-*")) else []
    if not what:
        _forget(out)
        what = ["run", str(spec), "--out", str(out)]
    environment = {**os.environ, failpoints.VARIABLE: points}
    command = [sys.executable, "-m", "workers", *what, "--quiet", *more]
    with _said_in(out).open("ab") as said:
        return subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=said)


def said(out: Path) -> str:
    """What drivers of this folder have said on stderr."""
    return _said_in(out).read_text(errors="replace") if _said_in(out).exists() else ""


def live(spec: Path, out: Path, points: str = "", *more: str, seconds: float = 180) -> tuple[int, str]:
    """The same, to its end: (exit code, what it said on stderr)."""
    before = len(said(out))
    with living(spec, out, points, *more) as process:
        code = process.wait(timeout=seconds)
    return code, said(out)[before:]


@contextmanager
def living(spec: Path, out: Path, points: str = "", *more: str) -> Iterator[subprocess.Popen[bytes]]:
    """The same, for who wants to act meanwhile; ended when the context is left."""
    process = start(spec, out, points, *more)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(timeout=60)


def _said_in(out: Path) -> Path:
    return out.with_name(f"{out.name}.stderr")


def history_of(out: Path, **known: Any) -> History:
    config = loading.resolve(json.loads((out / "config.json").read_text()))
    return History(config, lives_of(out), **known)


def trained_prompts(lives: list[Life]) -> dict[int, str]:
    """By the group's number from 0: what a run that nothing interrupted asked."""
    found = {}
    for life in lives:
        for event in life.of("groups"):
            rows = [*(event["data"]["batch"]["groups"] if event["data"]["batch"] else []), *event["data"]["left"]]
            found.update({int(row[0].removeprefix("g")) - 1: row[1] for row in rows})
    return found


def member(process: subprocess.Popen[bytes], role: str) -> psutil.Process:
    """The driver's child that hosts "generator" or "trainer", by the log that it writes to."""
    children = psutil.Process(process.pid).children(recursive=True)
    found = [child for child in children if role_of(child).startswith(role)]
    assert found, f"no {role} among {[(child.cmdline(), role_of(child)) for child in children]}"
    return found[0]


def role_of(child: psutil.Process) -> str:
    """ "generator-0", "trainer": the name of the log that a member of a pool writes to, whoever started it; "" for others."""
    try:
        return Path(os.readlink(f"/proc/{child.pid}/fd/1")).stem
    except OSError:
        return ""


def left_of(run: str, patience_s: float = 10.0) -> list[str]:
    """What a run has left on this machine after so long."""
    deadline = time.monotonic() + patience_s
    while (found := remains.find(run)) and time.monotonic() < deadline:
        time.sleep(0.1)
    return [f"process {pid}" for pid in found.pids] + list(found.shared_memory)


def _forget(out: Path) -> None:
    """A run that died before its first checkpoint is started anew: its folder is set aside, as a user would."""
    if out.exists():
        number = len(list(out.parent.glob(f"{out.name}.aside-*")))
        out.rename(out.with_name(f"{out.name}.aside-{number}"))
