"""The door of orchestration: who starts the pools and carries the messages between them and the driver."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from workers.contract.errors import EngineError
from workers.records import Batch, Manifest, StepResult
from workers.rollout.base import Generator

# For every pool's process, whatever starts it; read by OpenMP and tokenizers when they load.
ROLE_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # a waiting thread that spins takes the core from the other pool
    "TOKENIZERS_PARALLELISM": "false",
}

START_PATIENCE_S = 180.0  # for every process to be placed and to load its model
Lost = Callable[[str, EngineError], None]


def identity(run_id: str) -> dict[str, str]:
    """What the environment of every process of a run carries: whose it is, and of which attempt where that is known."""
    attempt = os.environ.get("HEADRACE_ATTEMPT")
    return {"HEADRACE_RUN_ID": run_id, **({"HEADRACE_ATTEMPT": attempt} if attempt else {})}


class TrainerClient(Protocol):
    """The trainer as the driver sees it: the same words as `backend.base.Trainer`, awaited."""

    async def train(self, batch: Batch) -> StepResult: ...

    async def publish(self, version: int, receivers: list[str]) -> Manifest: ...

    async def checkpoint(self, folder: Path, restore: bool = False) -> dict[str, Any]: ...

    async def interrupt(self) -> None: ...


@dataclass
class Pools:
    """What an orchestration hands to the flow: engines by lane name, and the trainer."""

    generators: dict[str, Generator]
    trainer: TrainerClient


class Orchestration(Protocol):
    """Constructed as `Orchestration(config: RunConfig, run_id: str, scratch: Path)`."""

    async def start(self) -> Pools:
        """Called once. Returns when every process has loaded its model. Raises EngineError naming the process that did not."""
        ...

    async def failure(self, lost: Lost | None = None) -> None:
        """Awaited beside the flow. An engine that died or answers no more is told to `lost(name, error)`, which may raise.

        Raises EngineError with the cause when the trainer is lost, and for any process where `lost` is not given.
        """
        ...

    async def stop(self) -> None:
        """Called once, whatever happened. When it returns, nothing that was started is left."""
        ...
