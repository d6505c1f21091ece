"""A running attempt is paused, goes on, gets more or fewer steps; and a budget in samples or tokens ends it. On the virtual clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.workers.emulated import rig
from tests.workers.test_pipeline import config, simulate
from workers.clock import run_virtual
from workers.contract.events import Control
from workers.parts import Parts
from workers.pipeline import Pipeline


def steered(script: Callable[[Parts], Awaitable[None]], **blocks: Any) -> Any:
    """Runs the flow with a script beside it; the script sends wishes at its own times."""

    async def main() -> Any:
        parts = rig(config(**blocks), token_s=0.05)
        saved: list[tuple[int, bool]] = []

        async def save(under_way: Any) -> None:
            saved.append((parts.progress.step, parts.held))

        parts.save, parts.save_requested = save, parts.steering.take_save
        beside = asyncio.create_task(script(parts))
        await Pipeline(parts).run()
        await beside
        return parts, saved

    return run_virtual(main())


def closes(parts: Parts) -> None:
    parts.samples.check()
    times = parts.time.as_dict()
    for causes in times["lanes"].values():
        assert sum(causes.values()) == pytest.approx(times["wall_s"], abs=1e-3)


def test_a_pause_holds_everything_between_two_steps_and_loses_nothing() -> None:
    marks: dict[str, Any] = {}

    async def script(parts: Parts) -> None:
        await asyncio.sleep(4.3)
        parts.steering.ask(Control(pause=True))
        await asyncio.sleep(3.0)
        marks.update(held=parts.held, step=parts.progress.step, dispatched=parts.samples.dispatched, states=len(parts.emit.of("state")))
        await asyncio.sleep(100.0)
        marks["same"] = (parts.progress.step, parts.samples.dispatched)
        marks["in_flight"], marks["told"] = parts.samples.in_flight, parts.emit.of("state")[marks["states"] :]
        parts.steering.ask(Control())

    parts, _ = steered(script)
    assert marks["held"] and marks["same"] == (marks["step"], marks["dispatched"])
    assert len(marks["told"]) >= 99 and {state["status"] for state in marks["told"]} == {"paused"}
    assert {state["flow"]["throttle"] for state in marks["told"]} == {"paused"}
    assert parts.progress.step == 10 and parts.emit.of("state")[-1]["status"] == "running"
    for lane, causes in parts.time.as_dict()["lanes"].items():
        assert causes["paused"] == pytest.approx(102.5, abs=2.0), lane
    assert max(event["values"].get("time/step_s", 0) for event in parts.emit.of("metrics")) < 10, "a pause is no part of a step"
    assert set(parts.samples.as_dict()["dropped"]) <= {"run_ended"}
    closes(parts)


def test_a_paused_run_saves_and_stops_when_it_is_asked_to() -> None:
    async def script(parts: Parts) -> None:
        await asyncio.sleep(3.3)
        parts.steering.ask(Control(pause=True))
        await asyncio.sleep(5.0)
        parts.steering.ask(Control(pause=True, checkpoint_now=1))
        await asyncio.sleep(5.0)
        parts.stop_requested = lambda: True

    parts, saved = steered(script)
    assert saved[0][1] and len(saved) == 1, "saved once, while paused; nothing was left to save at the end"
    assert parts.progress.step < 10 and parts.clock.now() < 20
    closes(parts)


def test_more_steps_and_fewer_steps_while_it_runs() -> None:
    async def more(parts: Parts) -> None:
        await asyncio.sleep(5.0)
        parts.steering.ask(Control(steps=15))

    async def fewer(parts: Parts) -> None:
        await asyncio.sleep(5.2)
        parts.steering.ask(Control(steps=1))

    parts, _ = steered(more)
    assert parts.progress.step == 15 and parts.emit.of("state")[-1]["steps_total"] == 15
    assert parts.config.budget.steps == 10
    parts, _ = steered(fewer)
    assert 1 < parts.progress.step < 8
    assert parts.emit.of("state")[-1]["steps_total"] == parts.progress.step, "never fewer than are done"


def test_steps_given_to_a_paused_run_and_a_pause_taken_back_at_once() -> None:
    async def script(parts: Parts) -> None:
        await asyncio.sleep(4.0)
        parts.steering.ask(Control(pause=True))
        parts.steering.ask(Control(pause=False))
        await asyncio.sleep(1.0)
        parts.steering.ask(Control(pause=True))
        await asyncio.sleep(9.0)
        parts.steering.ask(Control(pause=True, steps=12))
        await asyncio.sleep(2.0)
        assert parts.held and parts.emit.of("state")[-1]["steps_total"] == 12
        parts.steering.ask(Control(steps=12))

    parts, _ = steered(script)
    assert parts.progress.step == 12


@pytest.mark.parametrize(("budget", "steps"), [({"samples": 40}, 3), ({"samples": 48}, 3), ({"tokens": 481}, 4), ({"samples": 999}, 10)])
def test_the_step_that_reaches_a_bound_is_the_last(budget: dict[str, int], steps: int) -> None:
    parts = simulate(config(budget={"steps": 10, **budget}))
    assert parts.progress.step == steps
    if "samples" in budget:
        assert parts.samples.dispatched <= min(160, -(-budget["samples"] // 16) * 16), "no group is dispatched beyond the last batch"
    closes(parts)


def test_a_bound_in_samples_is_reached_though_groups_are_left_out() -> None:
    parts = simulate(config(budget={"steps": 30, "samples": 100}, rewards={"zero_variance": "drop"}))
    assert 100 <= parts.samples.trained < 116
    closes(parts)


MOVES = st.tuples(st.floats(0.0, 6.0), st.booleans(), st.one_of(st.none(), st.integers(1, 16)), st.integers(0, 3))


@settings(max_examples=40, deadline=None)
@given(st.lists(MOVES, max_size=8), st.sampled_from(["bounded", "none", "double", "stream"]), st.sampled_from([1, 3]))
def test_whatever_is_wished_the_run_ends_and_its_books_close(moves: list[Any], buffer: str, every: int) -> None:
    async def script(parts: Parts) -> None:
        for wait_s, pause, steps, saves in moves:
            await asyncio.sleep(wait_s)
            parts.steering.ask(Control(pause=pause, steps=steps, checkpoint_now=saves))
        await asyncio.sleep(1.0)
        parts.steering.ask(Control(steps=12))

    parts, _ = steered(script, buffer={"kind": buffer}, sync={"every_steps": every})
    assert not parts.held
    assert parts.progress.step <= 16
    closes(parts)


def test_the_flow_tells_what_its_lanes_did_without_a_gap() -> None:
    async def script(parts: Parts) -> None:
        await asyncio.sleep(3.0)
        parts.steering.ask(Control(pause=True))
        await asyncio.sleep(20.0)
        parts.steering.ask(Control())

    parts, _ = steered(script)
    events = [event["spans"] for event in parts.emit.of("spans")] + [parts.time.take_spans()]
    assert len(events) > 20 and max(map(len, events)) < 100
    ledger = parts.time.as_dict()
    for lane in parts.time.lanes:
        rows = [row for event in events for row in event if row[0] == lane]
        assert rows[0][2] == 0.0 and rows[-1][3] == pytest.approx(ledger["wall_s"])
        assert all(before[3] == after[2] for before, after in itertools.pairwise(rows))
        for cause, seconds in ledger["lanes"][lane].items():
            assert sum(row[3] - row[2] for row in rows if row[1] == cause) == pytest.approx(seconds, abs=0.05), cause


def test_a_paused_run_is_cancelled_at_once() -> None:
    async def main() -> Parts:
        parts = rig(config(budget={"steps": 1000}), token_s=0.05)
        parts.steering.pause = True
        flow = asyncio.create_task(Pipeline(parts).run())
        await asyncio.sleep(10.0)
        assert parts.held
        flow.cancel()
        await asyncio.wait({flow}, timeout=0.1)
        assert flow.cancelled()
        return parts

    parts = run_virtual(main())
    assert parts.progress.step == 0 and parts.clock.now() < 10.2
