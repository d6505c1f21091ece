"""A process that hangs, talks nonsense or cannot answer never leaves its caller waiting."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from workers.axes.orchestration import watch
from workers.axes.orchestration.children import Child
from workers.axes.orchestration.wire import error_to_wire
from workers.contract.errors import EngineError


async def talking(tmp_path: Path, code: str) -> tuple[Child, asyncio.subprocess.Process]:
    """A child whose process is `cat`-like and whose words are ours."""
    child = Child("generator/0", tmp_path / "log")
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    child.process, child._writer = process, process.stdin
    child._task = asyncio.create_task(child._listen(process.stdout, process))
    return child, process


async def test_a_bad_frame_fails_every_waiting_call(tmp_path: Path) -> None:
    child, process = await talking(tmp_path, "import sys,time;sys.stdin.buffer.read(1);print('x'*99,flush=True);time.sleep(60)")
    with pytest.raises(EngineError, match="cannot be read"):
        await asyncio.wait_for(child.call("ping", {}), 10)
    with pytest.raises(EngineError, match="cannot be read"):
        await child.call("ping", {})
    await child.stop()
    assert process.returncode is not None


async def test_a_silent_engine_is_told_and_a_silent_trainer_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PING_PATIENCE_S", 0.05)
    killed: list[str] = []
    told: list[str] = []

    def member(name: str) -> watch.Member:
        never = asyncio.Event().wait
        return watch.Member(name, 7, never, never, lambda: killed.append(name))  # type: ignore[arg-type]

    with pytest.raises(EngineError, match=r"trainer.*pid 7"):
        await watch.watch([member("generator/0"), member("trainer")], lambda name, error: told.append(name))
    assert "trainer" in killed and "trainer" not in told
    await watch.watch([member("generator/1")], lambda name, error: told.append(name))
    assert told[-1] == "generator/1" and killed[-1] == "generator/1"


def test_an_error_can_always_be_sent() -> None:
    assert error_to_wire(ValueError("\ud800"))["message"] == "ValueError: \\ud800"
