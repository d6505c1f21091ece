"""A trainer of the tiny model, and batches whose engine log-probs are somewhere near its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from workers.axes.backend.single import SingleProcessTrainer
from workers.axes.transport.base import Link
from workers.axes.transport.filesystem import FilesystemTransport
from workers.contract import config as words
from workers.contract.config import RunConfig
from workers.records import Batch, Group, Prompt, Rollout, Sample


def build_trainer(model: Path, folder: Path, /, **blocks: dict[str, Any]) -> SingleProcessTrainer:
    """A strict one, with small adapters and a large learning rate, where `blocks` do not say otherwise."""
    base = {"model": {"path": str(model)}, "determinism": "strict", "lora": {"rank": 4}, "optimizer": {"learning_rate": 1e-2}}
    merged: dict[str, Any] = {**base, **{name: {**base.get(name, {}), **block} for name, block in blocks.items()}}  # type: ignore[dict-item]
    return SingleProcessTrainer(RunConfig.model_validate(merged), folder, road(folder))


def road(folder: Path) -> FilesystemTransport:
    return FilesystemTransport(Link("run", folder, "trainer", words.Transport(kind="filesystem")))


def make_batch(step: int = 1, seed: int = 0, groups: int = 3, size: int = 4) -> Batch:
    source = torch.Generator().manual_seed(seed * 1000 + step)

    def draw(count: int) -> list[int]:
        return torch.randint(3, 259, (count,), generator=source).tolist()

    made = []
    for g in range(groups):
        prompt = Prompt(f"p{g}", g, "", draw(5 + 3 * g))
        group = Group(f"g{g}", prompt, 0)
        for k in range(size):
            count = 1 + (3 * k + g) % 7
            rollout = Rollout(f"g{g}/{k}", f"g{g}", k, draw(count), [-5.5 + 0.1 * k] * count, [0] * count, "stop")
            group.samples.append(Sample(rollout, reward=float(k % 2)))
        made.append(group)
    return Batch(step, 0, made)


def weights(trainer: SingleProcessTrainer) -> torch.Tensor:
    return torch.cat([master.detach().flatten().clone() for master in trainer._adapters.masters.values()])


def change(trainer: SingleProcessTrainer, *batches: Batch) -> torch.Tensor:
    before = weights(trainer)
    for batch in batches:
        trainer.train(batch)
    return weights(trainer) - before
