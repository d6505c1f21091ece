"""Both ledgers: what they count, and that they close whatever happens."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.contract.errors import EngineError
from workers.ledger import CAUSES, SampleLedger, TimeLedger


class SampleMachine(RuleBasedStateMachine):
    """Any order of legal moves keeps the account closed; a restored copy says the same."""

    def __init__(self) -> None:
        super().__init__()
        self.ledger = SampleLedger()

    @rule(count=st.integers(1, 64))
    def dispatch(self, count: int) -> None:
        self.ledger.dispatch(count)

    @precondition(lambda self: self.ledger.in_flight > 0)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.ledger.in_flight))
        move = data.draw(st.sampled_from(["buffer", "drop"]))
        if move == "buffer":
            self.ledger.buffer(count)
        else:
            self.ledger.drop(count, "scoring_failed", buffered=False)

    @rule(count=st.integers(1, 64))
    def roll_back(self, count: int) -> None:
        before = sum(self.ledger.lost.values())
        self.ledger.roll_back(count)
        assert sum(self.ledger.lost.values()) == before + count

    @precondition(lambda self: self.ledger.buffered > 0)
    @rule(data=st.data())
    def consume(self, data: st.DataObject) -> None:
        count = data.draw(st.integers(1, self.ledger.buffered))
        if data.draw(st.booleans()):
            self.ledger.train(count)
        else:
            self.ledger.drop(count, "stale", buffered=True)

    @invariant()
    def closes(self) -> None:
        self.ledger.check()
        copy = SampleLedger()
        copy.restore(self.ledger.as_dict())
        assert copy.as_dict() == self.ledger.as_dict()


SampleMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=30, deadline=None)
TestSamples = SampleMachine.TestCase


@pytest.mark.parametrize("bug", ["dropped twice", "trained without a count"])
def test_a_planted_bug_is_caught(bug: str) -> None:
    ledger = SampleLedger()
    ledger.dispatch(8)
    ledger.buffer(8)
    if bug == "dropped twice":
        ledger.drop(8, "stale", buffered=True)
        ledger.drop(8, "stale", buffered=True)
    else:
        ledger.buffered -= 8
    with pytest.raises(EngineError, match="does not close"):
        ledger.check()


class HandClock:
    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def stamp(self) -> float:
        return self.time

    async def sleep(self, seconds: float) -> None:
        self.time += seconds


def test_the_highest_cause_is_charged_and_the_hidden_one_is_kept_apart() -> None:
    clock = HandClock()
    ledger = TimeLedger(clock, ["trainer"])
    ledger.enter("trainer", "train")
    clock.time = 2.0
    ledger.enter("trainer", "checkpoint")
    clock.time = 5.0
    ledger.leave("trainer", "checkpoint")
    ledger.leave("trainer", "train")
    clock.time = 6.0
    told = ledger.as_dict()
    assert told["lanes"] == {"trainer": {"checkpoint": 3.0, "train": 2.0, "idle": 1.0}}
    assert told["overlapped_s"] == {"trainer": {"train": 3.0}}
    assert told["wall_s"] == 6.0


@given(st.lists(st.tuples(st.sampled_from(["a", "b"]), st.sampled_from(CAUSES), st.floats(0, 5), st.booleans()), max_size=40))
def test_every_second_of_every_lane_has_one_cause(moves: list[tuple[str, str, float, bool]]) -> None:
    clock = HandClock()
    ledger = TimeLedger(clock, ["a", "b"])
    for lane, cause, seconds, enter in moves:
        if enter:
            ledger.enter(lane, cause)
        else:
            ledger.set(lane, {cause})
        clock.time += seconds
    told = ledger.as_dict()
    for causes in told["lanes"].values():
        assert sum(causes.values()) == pytest.approx(told["wall_s"], abs=1e-3)
