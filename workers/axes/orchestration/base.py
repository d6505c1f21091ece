"""The door of orchestration: who starts the pools and carries the messages between them and the driver."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from workers.records import Batch, Manifest, StepResult
from workers.rollout.base import Generator

# For every pool's process, whatever starts it; read by OpenMP and tokenizers when they load.
ROLE_ENVIRONMENT = {
    "OMP_WAIT_POLICY": "PASSIVE",  # a waiting thread that spins takes the core from the other pool
    "TOKENIZERS_PARALLELISM": "false",
}


class TrainerClient(Protocol):
    """The trainer as the driver sees it: the same words as `backend.base.Trainer`, awaited."""

    async def train(self, batch: Batch) -> StepResult: ...

    async def publish(self, version: int) -> Manifest: ...

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

    async def failure(self) -> None:
        """Awaited beside the flow; returns never, raises EngineError with the cause as soon as a process dies."""
        ...

    async def stop(self) -> None:
        """Called once, whatever happened. When it returns, nothing that was started is left."""
        ...
