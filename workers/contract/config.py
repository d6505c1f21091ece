"""The config of a run: frozen, unknown keys refused, JSON round trip. The form, the CLI and the API are made from it."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import Field

from workers.contract import axes
from workers.contract.block import Block, main
from workers.contract.flow import Budget, Buffer, Checkpoint, DepthBound, Interrupt, Orchestration, Rollout, Staleness, Sync, Transport
from workers.contract.learning import Backend, Correction, Distillation, Kl, Lora, Loss, Optimizer, Replay
from workers.contract.remote import Remote
from workers.contract.task import BatchBlock, Curriculum, Environment, Evaluation, Model, Rewards, Sampling

__all__ = [
    "SCHEMA_VERSION",
    "Backend",
    "BatchBlock",
    "Block",
    "Budget",
    "Buffer",
    "Checkpoint",
    "Correction",
    "Curriculum",
    "DepthBound",
    "Distillation",
    "Environment",
    "Evaluation",
    "Interrupt",
    "Kl",
    "Lora",
    "Loss",
    "Model",
    "Optimizer",
    "Orchestration",
    "Remote",
    "Replay",
    "Rewards",
    "Rollout",
    "RunConfig",
    "Sampling",
    "Staleness",
    "Sync",
    "Transport",
]

SCHEMA_VERSION = 2


class RunConfig(Block):
    """A whole run. `RunConfig.model_validate(json)` accepts exactly what `model_dump(mode="json")` wrote."""

    schema_version: Literal[2] = Field(2, title="Schema version", description="Version of this form.")
    preset: str | None = Field(None, max_length=100, title="Preset", description="The preset this config began from, as name@version.")
    seed: int = Field(7, ge=0, le=2**31 - 1, title="Seed", description="Root of every random stream.", json_schema_extra=main())
    determinism: Literal["fast", "strict"] = Field(
        "fast", title="Determinism", description="strict: float32, one thread, lag 0, one engine; the same bits every time. Slower."
    )
    model: Model = Field(default_factory=Model)
    environment: Environment = Field(default_factory=Environment)
    batch: BatchBlock = Field(default_factory=BatchBlock)
    sampling: Sampling = Field(default_factory=Sampling)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    loss: Loss = Field(default_factory=Loss)
    rewards: Rewards = Field(default_factory=Rewards)
    curriculum: Curriculum = Field(default_factory=Curriculum)
    lora: Lora = Field(default_factory=Lora)
    replay: Replay = Field(default_factory=Replay)
    rollout: Rollout = Field(default_factory=Rollout)
    orchestration: Orchestration = Field(default_factory=Orchestration)
    buffer: Buffer = Field(default_factory=Buffer)
    transport: Transport = Field(default_factory=Transport)
    interrupt: Interrupt = Field(default_factory=Interrupt)
    partial: list[axes.PartialKind] = Field(
        default=["continue"],
        min_length=1,
        title="Partial rollouts",
        description="What becomes of a half-finished sample at a weight change.",
    )
    staleness: Staleness = Field(default_factory=Staleness)
    sync: Sync = Field(default_factory=Sync)
    backend: Backend = Field(default_factory=Backend)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    budget: Budget = Field(default_factory=Budget)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """sha256 of the canonical JSON form: the identity of a config."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()
