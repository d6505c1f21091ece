"""What a backward pass keeps is bounded by `batch.micro_tokens`, whatever the batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.workers.tiny_model import make_tiny_model
from tests.workers.trainer_rig import build_trainer
from workers.records import Batch, Group, Prompt, Rollout, Sample


class Kept:
    """Bytes that autograd holds for backward passes, now and at most. A tensor saved twice counts twice."""

    def __init__(self) -> None:
        self.now = self.most = 0


class Held:
    def __init__(self, kept: Kept, tensor: torch.Tensor) -> None:
        self.kept, self.tensor, self.size = kept, tensor, tensor.nbytes
        kept.now += self.size
        kept.most = max(kept.most, kept.now)

    def __del__(self) -> None:
        self.kept.now -= self.size


@contextmanager
def watched() -> Iterator[Kept]:
    kept = Kept()
    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: Held(kept, tensor), lambda held: held.tensor):
        yield kept


def long_batch(groups: int, size: int = 4, tokens: int = 60) -> Batch:
    source = torch.Generator().manual_seed(groups)
    made = []
    for g in range(groups):
        group = Group(f"g{g}", Prompt(f"p{g}", g, "", torch.randint(3, 259, (8,), generator=source).tolist()), 0)
        for k in range(size):
            ids = torch.randint(3, 259, (tokens,), generator=source).tolist()
            rollout = Rollout(f"g{g}/{k}", f"g{g}", k, ids, [-5.5] * tokens, [0] * tokens, "stop")
            group.samples.append(Sample(rollout, reward=float(k % 2)))
        made.append(group)
    return Batch(1, 0, made)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"))


def peak(model: Path, folder: Path, groups: int, micro_tokens: int) -> int:
    trainer = build_trainer(model, folder, batch={"micro_tokens": micro_tokens})
    with watched() as kept:
        trainer.train(long_batch(groups))
    assert kept.now == 0, "a graph outlived its backward pass"
    return kept.most


def test_a_larger_batch_keeps_no_more_and_a_smaller_budget_less(tiny: Path, tmp_path: Path) -> None:
    small, twice, wide = (peak(tiny, tmp_path, groups, budget) for groups, budget in ((4, 256), (8, 256), (8, 2048)))
    assert small > 0
    assert twice <= 1.05 * small
    assert wide > 6 * twice
