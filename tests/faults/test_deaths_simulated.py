"""Deaths at any moment of the real flow, on the virtual clock: the checker finds nothing, and finds every bug that is planted."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.faults.checker import check
from tests.faults.history import History, digests
from tests.faults.simulated import Disk, lived
from tests.workers.test_flow_policies import config, uneven
from workers.contract import axes
from workers.contract.config import RunConfig
from workers.records import Batch, Manifest, UpdateReport

FAILING = {f"g{group}/{index}" for group in range(1, 400, 5) for index in range(group % 3 + 1)}
ORDINARY = {"lengths": uneven, "train_s": 0.3}


def some(**blocks: Any) -> RunConfig:
    return config(**{"checkpoint": {"every_steps": 2}, "staleness": {"max_lag": 2}, **blocks})


def found(history: History) -> list[str]:
    return [str(broken) for broken in check(history)]


def letters(history: History) -> set[str]:
    return {broken.invariant for broken in check(history)}


def sampled(rng: random.Random) -> dict[str, Any]:
    """Blocks of a config whose policies the flow may have: which ones, a seed says."""
    return {
        "buffer": {
            "kind": rng.choice(get_args(axes.BufferKind)),
            "unit": rng.choice(get_args(axes.BufferUnit)),
            "depth": rng.choice([8, 16, 32]),
        },
        "staleness": {"over_limit": rng.choice(get_args(axes.OverLimit)), "max_lag": rng.randint(0, 3)},
        "interrupt": {"kind": rng.choice(["forward_pass", "keep", "drain", "batch"])},
        "sync": {"every_steps": rng.randint(1, 3)},
        "checkpoint": {"every_steps": rng.randint(1, 3)},
        "rewards": rng.choice([{}, {"zero_variance": "drop"}, {"zero_variance": "refill"}, {"on_truncated": "drop"}]),
        "sampling": rng.choice([{}, {"max_new_tokens": 40}]),
        "evaluation": {"every_steps": rng.randint(0, 3), "at_start": False, "at_end": False},
    }


MOMENTS = st.lists(st.floats(0.05, 8.0), min_size=1, max_size=4)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(seed=st.integers(0, 2**32), kills=MOMENTS, failing=st.booleans())
def test_whatever_dies_whenever_nothing_is_lost_or_done_twice(seed: int, kills: list[float], failing: bool) -> None:
    history = lived(config(**sampled(random.Random(seed))), kills, **ORDINARY, failing=FAILING if failing else None)
    assert found(history) == []
    assert history.state == "succeeded"


@pytest.mark.parametrize("seed", [697, 1263, 2291, 4226])
def test_what_is_handed_over_in_the_moment_of_a_pulse_is_in_no_buffer(seed: int) -> None:
    """Found by the release tier: a buffer that holds nothing was told to hold what the trainer had been given and not yet taken up."""
    rng = random.Random(seed)
    kills = [rng.uniform(0.05, 8.0) for _ in range(rng.randint(1, 4))]
    chosen = config(**sampled(rng))
    assert chosen.buffer.kind == "none"
    assert found(lived(chosen, kills, **ORDINARY, failing=rng.choice([FAILING, None]))) == []


def test_with_no_lag_a_killed_run_learns_what_the_other_learns() -> None:
    """Every batch is the same, so every version has the same weights, wherever it was cut."""
    strict = some(staleness={"max_lag": 0, "depth_bound": {"value": 1, "unit": "batches"}}, checkpoint={"every_steps": 1})
    whole = lived(strict, [], **ORDINARY)
    rng = random.Random(6)
    for _ in range(20):
        history = replace(lived(strict, [rng.uniform(0.3, 6.0) for _ in range(3)], **ORDINARY), reference=digests(whole))
        assert found(history) == []
    assert len(digests(whole)) == 12


# --- the checker itself is proved: each of these bugs, planted in the flow, is found under its letter


def skip_a_prompt(parts: Any, disk: Disk | None) -> None:
    """A resume that forgets one of the groups in flight (as a cursor that counts dispatches, not ends, would)."""
    if disk is not None:
        restore = parts.progress.restore
        parts.progress.restore = lambda saved, under_way: restore(saved, under_way[1:])


def skip_in_the_source(parts: Any, disk: Disk | None) -> None:
    """A resume whose cursor stands one too far."""
    if disk is not None:
        restore = parts.environment.source.restore
        parts.environment.source.restore = lambda state: restore({"index": state["index"] + 1})


def double_a_batch(parts: Any, disk: Disk | None) -> None:
    """A resume that puts the buffer back and dispatches the same groups again, as if they had been in flight."""
    if disk is not None:
        restore, state = parts.progress.restore, disk.driver_state()
        again = [{"id": item["id"], "prompt": item["prompt"], "slots": []} for item in state["buffer"]]
        parts.progress.restore = lambda saved, under_way: restore(saved, under_way + again)
        parts.samples.check = lambda: None


def train_again(parts: Any, disk: Disk | None) -> None:
    """Groups that were trained stay in the buffer, as where a failed answer of the trainer is asked again."""
    train = parts.trainer.train

    async def twice(batch: Batch) -> Any:
        result = await train(batch)
        if batch.step == 3:
            parts.again = asyncio.create_task(parts.buffer.put(batch.groups[0]))
        return result

    parts.trainer.train = twice
    parts.samples.check = lambda: None


def bump_early(parts: Any, disk: Disk | None) -> None:
    """The push of version 2 is cut, and the version advances all the same."""
    update = parts.pool.update

    async def cut(manifest: Manifest) -> dict[str, UpdateReport]:
        if manifest.version == 2 and disk is None:
            return dict.fromkeys(parts.pool.engines, UpdateReport(2, manifest.digest, 0.0, 0.0, 0.0))
        reports: dict[str, UpdateReport] = await update(manifest)
        return reports

    parts.pool.update = cut


def overfill(parts: Any, disk: Disk | None) -> None:
    """A buffer that takes whatever comes."""
    parts.buffer._fits = lambda group: True


def forget_a_drop(parts: Any, disk: Disk | None) -> None:
    """A group that is refused is not counted."""
    parts.samples.check = lambda: None
    parts.samples.drop = lambda *_, **__: None


def too_old(parts: Any, disk: Disk | None) -> None:
    """A bound that nobody asks."""
    parts.staleness.judge = lambda group, version: "train"


def other_weights(parts: Any, disk: Disk | None) -> None:
    """A resume that goes on with the weights of the start."""
    if disk is not None:
        disk.weights = "version 0"


BUGS = {
    skip_a_prompt: "S",
    skip_in_the_source: "S",
    double_a_batch: "S",
    train_again: "S",
    forget_a_drop: "S",
    bump_early: "V",
    too_old: "V",
    overfill: "B",
}


NEEDS: dict[Any, dict[str, Any]] = {  # what a bug needs to show itself
    too_old: {"staleness": {"max_lag": 0}},
    forget_a_drop: {"rewards": {"zero_variance": "drop"}},
    overfill: {"buffer": {"depth": 4}, "rollout": {"max_running": 64}},
}
QUICK = {"lengths": lambda _: 2, "train_s": 4.0}  # engines far faster than the trainer


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug: Any) -> None:
    blocks = some(**NEEDS.get(bug, {}))
    pace = QUICK if bug is overfill else ORDINARY
    assert found(lived(blocks, [3.3], **pace)) == [], "without it there is nothing to find"
    assert BUGS[bug] in letters(lived(blocks, [3.3], bug, **pace))


def test_weights_that_were_not_put_back_are_found() -> None:
    strict = some(staleness={"max_lag": 0, "depth_bound": {"value": 1, "unit": "batches"}}, checkpoint={"every_steps": 1})
    reference = digests(lived(strict, [], **ORDINARY))
    assert letters(replace(lived(strict, [4.0], other_weights, **ORDINARY), reference=reference)) == {"R"}


@pytest.mark.parametrize("bug", ["dropped acknowledgement", "lost event", "doubled event", "other content", "told to nobody"])
def test_what_the_server_lost_or_doubled_is_found(bug: str) -> None:
    history = lived(some(), [], **ORDINARY)
    life = history.lives[0]
    life.stored, life.acked = [dict(event) for event in life.events], len(life.events)
    assert found(history) == []
    match bug:
        case "dropped acknowledgement":
            del life.stored[-3:]
        case "lost event":
            del life.stored[10]
        case "doubled event":
            life.stored.insert(10, life.stored[10])
        case "other content":
            life.stored[10]["data"] = {"name": "another"}
        case "told to nobody":
            del life.events[-3:]
    assert letters(history) == {"M"}


def test_two_attempts_at_once_are_found() -> None:
    history = lived(some(), [4.0], **ORDINARY)
    first, second = history.lives
    began = second.events[0]["t"]
    first.events[-1] = {**first.events[-1], "kind": "sync", "t": began + 1, "data": {"version": 99, "digest": "d"}}
    assert "A" in letters(history)
    second.fence = first.fence
    assert any("fence" in message for message in found(history))


def test_a_run_that_nobody_ended_or_that_left_something_is_found() -> None:
    history = lived(some(), [], **ORDINARY)
    assert letters(replace(history, state="running")) == {"A"}
    assert letters(replace(history, state="failed", cause="")) == {"A"}
    assert letters(replace(history, left=["process 17"])) == {"O"}
