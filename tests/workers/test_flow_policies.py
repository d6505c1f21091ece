"""What the policies do to the flow, on a virtual clock: every effect is counted, and the books close."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, get_args

import pytest

from tests.workers.emulated import rig
from workers.admission import judge
from workers.clock import run_virtual
from workers.contract import axes
from workers.contract.config import Rewards, RunConfig
from workers.contract.errors import EngineError
from workers.pipeline import Pipeline
from workers.records import Group, Prompt, Rollout, Sample


def config(**blocks: Any) -> RunConfig:
    base: dict[str, Any] = {
        "batch": {"prompts": 4, "group_size": 4},
        "rollout": {"max_running": 32},
        "buffer": {"depth": 8},
        "budget": {"steps": 12},
        "evaluation": {"every_steps": 0, "at_start": False, "at_end": False},
        "checkpoint": {"every_steps": 0},
    }
    return RunConfig.model_validate({**base, **blocks})


def simulate(settings: RunConfig, **options: Any) -> Any:
    async def main() -> Any:
        parts = rig(settings, **options)
        await Pipeline(parts).run()
        return parts

    parts = run_virtual(main())
    ledger = parts.samples
    assert ledger.dispatched == ledger.trained + sum(ledger.dropped.values()) and ledger.in_flight == ledger.buffered == 0
    trained = [sample.rollout.id for batch in parts.trainer.batches for group in batch.groups for sample in group.samples]
    assert len(trained) == len(set(trained)) == ledger.trained
    return parts


def lags(parts: Any) -> list[int]:
    return [
        batch.version - min(sample.rollout.versions)
        for batch in parts.trainer.batches
        for group in batch.groups
        for sample in group.samples
    ]


def uneven(identity: str) -> int:
    return random.Random(identity).choice([2, 5, 60])


@pytest.mark.parametrize("over_limit", ["drop", "wait", "recycle"])
@pytest.mark.parametrize("max_lag", [0, 1, 2])
def test_the_lag_bound_holds(over_limit: str, max_lag: int) -> None:
    parts = simulate(config(staleness={"over_limit": over_limit, "max_lag": max_lag}), lengths=uneven, train_s=0.3)
    assert max(lags(parts)) <= max_lag
    assert parts.progress.step == 12


def test_counting_only_lets_old_samples_through() -> None:
    parts = simulate(config(staleness={"over_limit": "count_only", "max_lag": 0}), lengths=uneven, train_s=0.3)
    assert max(lags(parts)) > 1 and "stale" not in parts.samples.dropped


def test_waiting_throws_nothing_away_and_publishes_less_often() -> None:
    parts = simulate(config(staleness={"over_limit": "wait", "max_lag": 1}), lengths=uneven, train_s=0.3)
    assert set(parts.samples.dropped) <= {"run_ended"}
    assert parts.progress.version < parts.progress.step, "some due publishes had to wait"


def test_recycled_samples_keep_their_ids_and_cost_their_tokens() -> None:
    parts = simulate(config(staleness={"over_limit": "recycle", "max_lag": 0}), lengths=uneven, train_s=0.3)
    effects = parts.samples.effects
    assert effects["recycled"] > 0 and effects["tokens_discarded"] >= 2 * effects["recycled"]
    assert set(parts.samples.dropped) <= {"run_ended"}


@pytest.mark.parametrize("over_limit", ["drop", "recycle"])
def test_samples_are_judged_one_by_one_where_they_are_the_unit(over_limit: str) -> None:
    few = {"max_running": 6}  # so that the samples of a group begin under different versions
    settings = config(buffer={"unit": "sample", "depth": 32}, rollout=few, staleness={"over_limit": over_limit, "max_lag": 0})
    parts = simulate(settings, lengths=uneven, train_s=0.3)
    assert max(lags(parts)) == 0
    sizes = {len(group.samples) for batch in parts.trainer.batches for group in batch.groups}
    assert sizes - {4} if over_limit == "drop" else sizes == {4}


def test_a_sample_that_never_comes_is_dropped_at_its_deadline_and_the_run_goes_on() -> None:
    settings = config(rollout={"max_running": 32, "deadline_s": 20}, sampling={"max_new_tokens": 4096})
    slow = {"g2/1", "g5/0", "g5/3"}
    parts = simulate(settings, lengths=lambda identity: 10_000 if identity in slow else 3, train_s=0.3)
    assert parts.samples.dropped["deadline"] == 3
    assert parts.progress.step == 12
    told = {f"{data['group']}/{data['index']}": data for data in parts.emit.of("sample") if data["drop_reason"] == "deadline"}
    assert set(told) == slow
    assert all(data["reward"] is None and "rollout.deadline_s" in data["error"] for data in told.values())


def test_an_engine_that_returns_nothing_is_no_wrong_answer() -> None:
    nothing = Sample(rollout(0), error="the engine returned no token")
    nothing.rollout = replace(nothing.rollout, token_ids=[], logprobs=[], versions=[])
    members = Group("g1", Prompt("p:0", 0, "?", [1]), 0, [nothing, *(Sample(rollout(index), reward=1.0) for index in (1, 2))])
    assert {reason: len(samples) for reason, samples in judge(Rewards(), members).left.items()} == {"empty": 1}


def test_groups_in_flight_that_grow_too_old_are_cancelled() -> None:
    settings = config(partial=["continue", "cancel_group"], staleness={"max_lag": 1, "lag_from": "dispatch"})
    parts = simulate(settings, lengths=lambda identity: 400 if identity.startswith("g3/") else 3, train_s=0.3)
    assert parts.samples.dropped["cancelled"] == 4
    assert max(batch.version - group.dispatched_version for batch in parts.trainer.batches for group in batch.groups) <= 1


def test_refills_keep_batches_full_up_to_their_number() -> None:
    full = simulate(config(rewards={"zero_variance": "refill"}), lengths=lambda _: 3)
    assert {len(batch.groups) for batch in full.trainer.batches} == {4}
    assert full.samples.effects["groups_refilled"] * 4 >= full.samples.dropped["zero_variance"] > 0
    bounded = simulate(config(rewards={"zero_variance": "refill", "refill_max": 1}), constant=1.0)
    assert bounded.progress.step == 12 and bounded.samples.trained == 12 * 16, "what may not be replaced is kept"


def test_dropping_makes_batches_smaller() -> None:
    parts = simulate(config(rewards={"zero_variance": "drop"}, batch={"prompts": 4, "group_size": 2}), lengths=lambda _: 3)
    sizes = [len(batch.groups) for batch in parts.trainer.batches]
    assert min(sizes) < 4 and max(sizes) <= 4 and parts.samples.effects["groups_left_out"] > 0


@pytest.mark.parametrize("kind", get_args(axes.BufferKind))
@pytest.mark.parametrize("over_limit", get_args(axes.OverLimit))
def test_every_buffer_goes_with_every_limit(kind: str, over_limit: str) -> None:
    settings = config(buffer={"kind": kind, "depth": 8}, staleness={"over_limit": over_limit, "max_lag": 1})
    parts = simulate(settings, lengths=uneven, train_s=0.2)
    assert parts.progress.step == 12


def test_a_ring_overwrites_and_counts() -> None:
    settings = config(buffer={"kind": "stream", "ring": 4}, staleness={"over_limit": "count_only", "max_lag": 0})
    parts = simulate(settings, lengths=lambda _: 2, train_s=2.0)
    assert parts.samples.dropped["overwritten"] > 0


def test_a_full_ring_never_holds_generation_back_however_long_a_step_takes() -> None:
    settings = config(buffer={"kind": "stream", "ring": 4}, staleness={"over_limit": "count_only", "max_lag": 0}, budget={"steps": 6})
    parts = simulate(settings, lengths=lambda _: 2, train_s=4.0)
    assert parts.progress.step == 6 and parts.samples.dropped["overwritten"] > 6 * 20 * 16
    assert "buffer_full" not in {state["flow"]["throttle"] for state in parts.emit.of("state")}


def test_no_extra_share_means_that_a_sync_finds_nothing_under_way() -> None:
    bound = {"value": 0.0, "unit": "fraction"}
    parts = simulate(config(staleness={"depth_bound": bound, "over_limit": "count_only"}, sync={"every_steps": 3}), train_s=0.5)
    assert max(lags(parts)) == 0 and parts.progress.version == 4


def test_a_fraction_bounds_what_is_under_way_until_the_next_sync() -> None:
    bound = {"value": 0.5, "unit": "fraction"}
    parts = simulate(config(staleness={"depth_bound": bound, "over_limit": "count_only"}, sync={"every_steps": 2}), train_s=0.5)
    most = max(state["samples"]["in_flight"] + state["samples"]["buffered"] for state in parts.emit.of("state"))
    assert most <= 1.5 * 2 * 16


def rollout(index: int, reason: str = "stop") -> Rollout:
    return Rollout(f"g1/{index}", "g1", index, [1, 2], [-1.0, -1.0], [0, 0], reason)  # type: ignore[arg-type]


def group(*samples: Sample) -> Group:
    return Group("g1", Prompt("p:0", 0, "?", [1]), 0, list(samples))


def test_who_leaves_a_group_and_why() -> None:
    members = group(
        Sample(rollout(0), reward=1.0),
        Sample(rollout(1), error="the verifier raised"),
        Sample(rollout(2, "abort"), error="the rollout was aborted"),
        Sample(rollout(3, "length"), reward=0.0),
        Sample(rollout(4), reward=0.0),
    )
    kept = judge(Rewards(), members)
    assert [sample.rollout.index for sample in kept.kept] == [0, 3, 4] and kept.refuse is None
    assert {reason: len(samples) for reason, samples in kept.left.items()} == {"scoring_failed": 1, "aborted": 1}
    assert {*judge(Rewards(on_truncated="drop"), members).left} == {"scoring_failed", "aborted", "truncated"}
    assert judge(Rewards(group_completeness="complete"), members).refuse == "group_incomplete"
    equal = group(Sample(rollout(0), reward=1.0), Sample(rollout(1), reward=1.0))
    assert judge(Rewards(), equal).refuse is None
    assert judge(Rewards(zero_variance="refill"), equal).refuse == "zero_variance"
    cut = group(Sample(rollout(0, "length"), reward=0.0), Sample(rollout(1), reward=1.0), Sample(rollout(2), reward=0.0))
    assert judge(Rewards(group_completeness="complete", on_truncated="drop"), cut).refuse is None, "cut on purpose is not failed"


def test_a_transfer_that_was_cut_is_sent_again() -> None:
    async def main() -> Any:
        parts = rig(config())
        engine = parts.pool.engines["generator/0"]
        update, cuts = engine.update, [2, 5]

        async def cut(manifest: Any) -> Any:
            if cuts and manifest.version == cuts[0]:
                cuts.pop(0)
                raise EngineError("the transfer was cut", field="transport", retryable=True)
            return await update(manifest)

        engine.update = cut
        await Pipeline(parts).run()
        return parts

    parts = run_virtual(main())
    assert parts.samples.effects["publish_retries"] == 2
    assert parts.progress.version == parts.progress.step == 12
