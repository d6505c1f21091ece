"""The flow on a virtual clock: real pipeline, buffer, staleness and ledgers; engines that only take time."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.emulated import rig
from workers.clock import run_virtual
from workers.contract.config import RunConfig
from workers.pipeline import Pipeline


def config(**blocks: Any) -> RunConfig:
    base: dict[str, Any] = {
        "batch": {"prompts": 4, "group_size": 4},
        "rollout": {"max_running": 16},
        "buffer": {"depth": 4},
        "budget": {"steps": 10},
        "evaluation": {"every_steps": 0, "at_start": False, "at_end": False},
        "checkpoint": {"every_steps": 0},
    }
    return RunConfig.model_validate({**base, **blocks})


def simulate(settings_: RunConfig, **options: Any) -> Any:
    async def main() -> Any:
        parts = rig(settings_, **options)
        await Pipeline(parts).run()
        return parts

    return run_virtual(main())


def test_it_trains_the_budget_and_both_ledgers_close() -> None:
    parts = simulate(config())
    ledger = parts.samples.as_dict()
    assert parts.progress.step == 10
    assert parts.progress.version == 10
    assert ledger["trained"] == 160
    assert ledger["dispatched"] == ledger["trained"] + sum(ledger["dropped"].values())
    times = parts.time.as_dict()
    for causes in times["lanes"].values():
        assert sum(causes.values()) == pytest.approx(times["wall_s"], abs=1e-3)
    assert times["lanes"]["trainer"]["train"] == pytest.approx(10.0)


def test_generation_and_training_overlap() -> None:
    """Equal rates: the asynchronous flow takes about half the time of the synchronous one, which waits in turn."""
    pace: dict[str, Any] = {"token_s": 0.01, "lengths": lambda _: 100}
    size: dict[str, Any] = {"budget": {"steps": 30}, "sampling": {"max_new_tokens": 100}}
    together = simulate(config(**size), **pace).time.as_dict()["wall_s"]
    bound = {"depth_bound": {"value": 1.0, "unit": "batches"}, "max_lag": 0}
    in_turn = simulate(config(**size, staleness=bound), **pace).time.as_dict()["wall_s"]
    assert in_turn == pytest.approx(60, rel=0.05)
    assert together == pytest.approx(31, rel=0.08)


def test_the_synchronous_bound_is_on_policy() -> None:
    parts = simulate(config(staleness={"max_lag": 0, "depth_bound": {"value": 1.0, "unit": "batches"}}))
    assert parts.progress.lag_max == 0
    assert parts.samples.as_dict()["dropped"] == {}


def test_the_buffer_never_exceeds_its_bound_and_holds_generation_back() -> None:
    parts = simulate(config(buffer={"depth": 4}), token_s=0.001)
    states = parts.emit.of("state")
    assert max(state["buffer"]["depth"] for state in states) == 4
    assert parts.time.as_dict()["lanes"]["generator/0"]["wait_buffer_full"] > 5
    # Held back, not discarded: only what was under way at the end is dropped.
    assert set(parts.samples.as_dict()["dropped"]) <= {"run_ended"}


def test_stale_groups_are_dropped_counted_and_replaced() -> None:
    parts = simulate(config(staleness={"max_lag": 1}, buffer={"depth": 16}, rollout={"max_running": 64}), token_s=0.001)
    assert parts.samples.as_dict()["dropped"]["stale"] > 0
    assert parts.progress.step == 10
    for batch in parts.trainer.batches:
        assert all(batch.version - group.oldest_version <= 1 for group in batch.groups)


def test_versions_are_those_of_the_tokens() -> None:
    """A sample that runs across a publish carries both versions."""
    parts = simulate(config(), token_s=0.5)
    spans = {len(set(s.rollout.versions)) for batch in parts.trainer.batches for group in batch.groups for s in group.samples}
    assert max(spans) > 1


def test_a_failed_sample_is_counted_and_never_a_reward() -> None:
    parts = simulate(config(), failing={"g1/0", "g2/0", "g2/1", "g2/2"})
    dropped = parts.samples.as_dict()["dropped"]
    assert dropped["scoring_failed"] == 4
    assert dropped["group_incomplete"] == 1
    sizes = {group.id: len(group.samples) for batch in parts.trainer.batches for group in batch.groups}
    assert sizes["g1"] == 3
    assert "g2" not in sizes


def test_groups_of_equal_rewards_can_be_dropped() -> None:
    async def main() -> Any:
        parts = rig(config(rewards={"zero_variance": "drop"}, budget={"steps": 3}), lengths=lambda _: 2)
        await Pipeline(parts).run()
        return parts

    parts = run_virtual(main())
    assert parts.samples.as_dict()["dropped"]["zero_variance"] > 0
    assert all(len(set(group.rewards)) > 1 for batch in parts.trainer.batches for group in batch.groups)


def test_a_wrong_digest_stops_the_run_and_the_version_stays() -> None:
    async def main() -> Any:
        parts = rig(config())
        next(iter(parts.pool.engines.values())).wrong_digest = True
        with pytest.raises(ExceptionGroup) as failure:
            await Pipeline(parts).run()
        return parts, failure.value

    parts, failure = run_virtual(main())
    assert "another digest" in str(failure.exceptions[0])
    assert parts.progress.version == 0


def test_a_dead_engine_has_its_requests_dispatched_again_once() -> None:
    async def main() -> Any:
        parts = rig(config(), generators=2)
        parts.pool.engines["generator/0"].fail_next = 3
        await Pipeline(parts).run()
        return parts

    parts = run_virtual(main())
    assert parts.samples.as_dict()["trained"] == 160
    assert parts.samples.as_dict()["lost"] == 0


def test_a_request_that_living_engines_fail_costs_its_sample_and_not_the_run() -> None:
    async def main() -> Any:
        parts = rig(config())
        parts.pool.engines["generator/0"].fail_next = 3
        await Pipeline(parts).run()
        return parts

    parts = run_virtual(main())
    assert parts.progress.step == 10 and parts.samples.dropped["engine_failed"] == 3
    failed = [data for data in parts.emit.of("sample") if data["drop_reason"] == "engine_failed"]
    assert failed and all(data["reward"] is None and "fell over" in data["error"] for data in failed)


def test_an_engine_that_fails_everything_ends_the_run_with_what_it_said() -> None:
    async def main() -> str:
        parts = rig(config())
        parts.pool.engines["generator/0"].fail_next = 10**9
        with pytest.raises(ExceptionGroup) as failure:
            await Pipeline(parts).run()
        return str(failure.value.exceptions[0])

    said = run_virtual(main())
    assert "as group_incomplete; the last sample without a reward: the engine failed it" in said and "fell over" in said


def test_a_run_that_drops_everything_fails_and_says_why() -> None:
    async def main() -> str:
        parts = rig(config(rewards={"zero_variance": "drop"}), constant=1.0)
        with pytest.raises(ExceptionGroup) as failure:
            await Pipeline(parts).run()
        return str(failure.value.exceptions[0])

    assert "as zero_variance" in run_virtual(main())


def test_a_stop_while_waiting_ends_the_run_with_its_checkpoint() -> None:
    async def main() -> Any:
        parts = rig(config(budget={"steps": 1000}), token_s=0.5)
        saved: list[int] = []

        async def save(under_way: Any) -> None:
            saved.append(parts.progress.step)

        parts.save = save
        parts.stop_requested = lambda: parts.clock.now() > 42
        await Pipeline(parts).run()
        return parts, saved

    parts, saved = run_virtual(main())
    assert parts.clock.now() < 45
    assert saved == [parts.progress.step]
    parts.samples.check()


@pytest.mark.parametrize("steps", [5, 6])
def test_scores_and_checkpoints_are_of_a_published_version(steps: int) -> None:
    """Publishing every second step, the last weights are published all the same before they are measured and saved."""
    parts = simulate(
        config(sync={"every_steps": 2}, budget={"steps": steps}, evaluation={"every_steps": 0, "at_start": False, "at_end": True})
    )
    assert parts.progress.version == 3
    assert parts.emit.of("evaluation")[-1]["version"] == 3


def test_a_full_disk_costs_a_periodic_checkpoint_but_not_the_run() -> None:
    async def main() -> Any:
        parts = rig(config(checkpoint={"every_steps": 3}))
        tries: list[int] = []

        async def save(under_way: Any) -> None:
            tries.append(parts.progress.step)
            if len(tries) == 1:
                raise OSError(28, "No space left on device")

        parts.save = save
        await Pipeline(parts).run()
        return parts, tries

    parts, tries = run_virtual(main())
    assert tries == [3, 6, 9, 10]
    assert any("No space" in log["message"] for log in parts.emit.of("log"))


def test_same_seed_same_story() -> None:
    def story() -> list[Any]:
        rng = random.Random(3)
        lengths = {f"g{g}/{i}": rng.randint(1, 30) for g in range(1, 200) for i in range(4)}
        return simulate(config(), lengths=lengths.__getitem__).emit.events

    assert story() == story()


@settings(max_examples=60, deadline=None)
@given(
    prompts=st.integers(1, 6),
    group=st.integers(2, 5),
    slots=st.integers(2, 40),
    depth=st.integers(1, 12),
    max_lag=st.integers(0, 4),
    every=st.integers(1, 3),
    bound=st.one_of(st.none(), st.floats(1.0, 4.0)),
    train_s=st.sampled_from([0.01, 0.5, 3.0]),
    seed=st.integers(0, 1000),
)
def test_any_shape_of_flow_closes_its_books(
    prompts: int, group: int, slots: int, depth: int, max_lag: int, every: int, bound: float | None, train_s: float, seed: int
) -> None:
    """Bound B, sample ledger S and version bound V hold whatever the numbers are, and nothing is trained twice."""
    lag_limit = max_lag if bound is None or bound > 1 else 0
    staleness: dict[str, Any] = {"max_lag": max(lag_limit, 1), "over_limit": "drop"}
    if bound is not None:
        staleness["depth_bound"] = {"value": bound, "unit": "batches"}
    shape = config(
        batch={"prompts": prompts, "group_size": group},
        rollout={"max_running": slots},
        buffer={"depth": depth},
        staleness=staleness,
        sync={"every_steps": every},
        budget={"steps": 6},
    )
    rng = random.Random(seed)
    memory: dict[str, int] = {}
    parts = simulate(shape, lengths=lambda name: memory.setdefault(name, rng.randint(1, 12)), train_s=train_s)
    ledger = parts.samples.as_dict()
    assert parts.progress.step == 6
    assert ledger["dispatched"] == ledger["trained"] + sum(ledger["dropped"].values())
    assert all(state["buffer"]["depth"] <= depth for state in parts.emit.of("state"))
    seen = [sample.rollout.id for batch in parts.trainer.batches for item in batch.groups for sample in item.samples]
    assert len(seen) == len(set(seen)) == ledger["trained"]
    for batch in parts.trainer.batches:
        assert all(batch.version - item.oldest_version <= max(lag_limit, 1) for item in batch.groups)
