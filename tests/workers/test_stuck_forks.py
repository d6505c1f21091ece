"""A cluster whose start stands still in a fork is given up with its cause, and does not hang the run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.workers.tiny_model import make_tiny_model

# In an interpreter of its own: what is forked there is a program with Ray in it and nothing that other tests left behind.
START = """
import asyncio, os, sys, time
from pathlib import Path
from workers.cluster import orchestration
from workers.contract.config import RunConfig
from workers.contract.errors import EnvironmentMissing

def connect(self):
    '''As ray.init does where its server never comes: the child is this very program, asleep.'''
    child = os.fork()
    if child == 0:
        time.sleep(60)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    raise RuntimeError(f"the server ended with {status}")

orchestration.RayActors._connect = connect
orchestration.START_PATIENCE_S = 0.5
config = RunConfig.model_validate({"model": {"path": sys.argv[1]}, "orchestration": {"kind": "ray"}})
began = time.monotonic()
try:
    asyncio.run(orchestration.RayActors(config, "stuck0000000", Path(sys.argv[2])).start())
except EnvironmentMissing as error:
    print(error, time.monotonic() - began < 20)
"""


def test_a_fork_that_stands_still_is_ended_and_told(tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "tiny")
    told = subprocess.run(
        [sys.executable, "-c", START, str(model), str(tmp_path)], capture_output=True, text=True, check=True, timeout=55
    ).stdout
    assert "Ray did not start: the server ended with 9 " in told and told.endswith("True\n"), told
