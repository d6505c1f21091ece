"""The door of the training pool. A trainer lives in its own process; the driver reaches it through an orchestration."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from workers.records import Batch, Manifest, StepResult


class Trainer(Protocol):
    """Constructed as `Backend(config: RunConfig, scratch: Path, transport: Transport)`, which loads the model and what learns of it.

    Methods are ordinary (blocking) functions, called one at a time, except `interrupt`.
    """

    def train(self, batch: Batch) -> StepResult:
        """Called with every batch, in order. Recomputes log-probs, then `epochs` x `minibatches` optimizer steps.

        A non-finite loss or gradient skips the step and says so. Raises NonFinite after too many in a row,
        Cancelled when `interrupt` was called.
        """
        ...

    def publish(self, version: int, receivers: list[str]) -> Manifest:
        """Called when a new version is due. Hands the payload to the transport; `receivers` are the living engines by name."""
        ...

    def checkpoint(self, folder: Path, restore: bool = False) -> dict[str, Any]:
        """Saves into (or restores from) a folder: adapter_model.safetensors and adapter_config.json in PEFT's layout, or, where every
        weight learns, model.safetensors and what transformers needs beside it; optimizer.safetensors, trainer.json (counters).

        Names and shapes are those of one process, whatever the backend. Returns the counters. Raises CheckpointError."""
        ...

    def interrupt(self) -> None:
        """Called from another thread on cancel: training stops between two micro-batches."""
        ...

    def close(self) -> None:
        """Called once, at the end, also from another thread: ends every process that this trainer started."""
        ...
