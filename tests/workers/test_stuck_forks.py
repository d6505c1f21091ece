"""A cluster whose start stands still in a fork is given up with its cause, and does not hang the run."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.workers.tiny_model import make_tiny_model
from workers.cluster import orchestration
from workers.contract.config import RunConfig
from workers.contract.errors import EnvironmentMissing


async def test_a_fork_that_stands_still_is_ended_and_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def connect(self: orchestration.RayActors) -> None:
        """As ray.init does where its server never comes: the child is this very program, asleep."""
        child = os.fork()
        if child == 0:
            time.sleep(60)
            os._exit(0)
        _, status = os.waitpid(child, 0)
        raise RuntimeError(f"the server ended with {status}")

    monkeypatch.setattr(orchestration.RayActors, "_connect", connect)
    monkeypatch.setattr(orchestration, "START_PATIENCE_S", 0.5)
    config = RunConfig.model_validate({"model": {"path": str(make_tiny_model(tmp_path / "tiny"))}, "orchestration": {"kind": "ray"}})
    pools = orchestration.RayActors(config, "stuck0000000", tmp_path)
    began = time.monotonic()
    with pytest.raises(EnvironmentMissing, match="Ray did not start: the server ended with 9"):
        await pools.start()
    assert time.monotonic() - began < 20
