"""Every preset's flow on a virtual clock: it trains its budget, both books close, and the policies do what the design says."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest

from tests.workers.emulated import rig
from workers.clock import run_virtual
from workers.contract import loading, presets
from workers.contract.config import RunConfig
from workers.pipeline import Pipeline

QUIET = ["budget.steps=12", "evaluation.every_steps=0", "evaluation.at_start=false", "evaluation.at_end=false", "checkpoint.every_steps=0"]


def uneven(identity: str) -> int:
    return random.Random(identity).choice([5, 20, 60])


@cache
def ran(name: str, token_s: float) -> Any:
    config = loading.resolve(preset=name, sets=QUIET)

    async def main() -> Any:
        parts = rig(config, token_s=token_s, lengths=uneven)
        await Pipeline(parts).run()
        return parts

    return run_virtual(main())


def lags(parts: Any, version_of: Callable[[Any], int]) -> list[int]:
    return [batch.version - version_of(group) for batch in parts.trainer.batches for group in batch.groups]


@pytest.mark.parametrize("token_s", [0.002, 0.05], ids=["training is slower", "generation is slower"])
@pytest.mark.parametrize("name", presets.names())
def test_a_preset_trains_its_budget_and_both_books_close(name: str, token_s: float) -> None:
    parts = ran(name, token_s)
    config: RunConfig = parts.config
    ledger = parts.samples
    assert parts.progress.step == config.budget.steps
    assert parts.progress.version == -(-config.budget.steps // config.sync.every_steps)
    assert ledger.dispatched == ledger.trained + sum(ledger.dropped.values()) and ledger.in_flight == ledger.buffered == 0
    trained = [sample.rollout.id for batch in parts.trainer.batches for group in batch.groups for sample in group.samples]
    assert len(trained) == len(set(trained)) == ledger.trained
    for causes in parts.time.as_dict()["lanes"].values():
        assert sum(causes.values()) == pytest.approx(parts.time.as_dict()["wall_s"], abs=1e-3)
    if config.staleness.over_limit in ("drop", "recycle"):
        oldest = config.staleness.lag_from == "oldest_token"
        lag = lags(parts, lambda group: group.oldest_version if oldest else group.dispatched_version)
        assert max(lag) <= config.staleness.max_lag


@pytest.mark.parametrize("token_s", [0.002, 0.05])
@pytest.mark.parametrize(("name", "most"), [("trl-sync", 0), ("art-march-2026", 0), ("slime", 1), ("oat", 1), ("tunix", 1), ("areal", 2)])
def test_run_ahead_is_bounded_by_construction(name: str, most: int, token_s: float) -> None:
    """No age limit acts here: what may be under way bounds the lag."""
    parts = ran(name, token_s)
    assert max(lags(parts, lambda group: group.dispatched_version)) <= most
    assert "stale" not in parts.samples.dropped


def test_nemo_rl_drops_by_age() -> None:
    assert ran("nemo-rl", 0.002).samples.dropped["stale"] > 0


def test_the_ring_of_pipelinerl_overwrites_where_training_is_slower() -> None:
    assert ran("pipelinerl", 0.002).samples.dropped["overwritten"] > 0


def test_atropos_publishes_every_third_step() -> None:
    assert ran("atropos", 0.05).progress.version == 4
