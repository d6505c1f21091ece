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


MOVES = st.lists(
    st.tuples(
        st.sampled_from(["a", "b"]),
        st.sampled_from(["generate", "train", "paused", "sync_pause", "idle"]),
        st.one_of(st.floats(0.002, 3), st.floats(0, 0.0009)),
        st.sampled_from(["enter", "set", "shift", "tell", "nothing"]),
    ),
    max_size=60,
)


def told(rows: list[list[object]], clock: HandClock) -> dict[str, dict[str, float]]:
    """Seconds by lane and cause, after every lane was seen to be told from 0 to now without gap or overlap."""
    ends = {"a": 0.0, "b": 0.0}
    seconds: dict[str, dict[str, float]] = {"a": {}, "b": {}}
    for lane, cause, began, ended in rows:
        assert began == ends[lane] and ended > began
        ends[lane] = ended
        seconds[lane][cause] = seconds[lane].get(cause, 0.0) + ended - began
    assert all(end == pytest.approx(clock.time, abs=0.0011) for end in ends.values())
    return seconds


@given(MOVES)
def test_what_is_told_of_each_lane_adds_up_to_the_ledger(moves: list[tuple[str, str, float, str]]) -> None:
    clock, rows = HandClock(), []
    ledger = TimeLedger(clock, ["a", "b"])
    short = 0.001  # the last millisecond may be untold
    for lane, cause, seconds, what in moves:
        if what == "enter":
            ledger.enter(lane, cause)
        elif what == "set":
            ledger.set(lane, {cause})
        elif what == "shift":
            ledger.shift(lane, "generate", "sync_pause", seconds)
            short += 0.001  # it may leave a stretch under a millisecond on either side
        elif what == "tell":
            rows += ledger.take_spans()
        clock.time += seconds
        short += 0.001 if seconds < 0.001 else 0.0
    rows += ledger.take_spans()
    seconds_told = told(rows, clock)
    for lane, causes in ledger.as_dict()["lanes"].items():
        owed = sum(debt[2] for debt in ledger._spans._owed[lane])
        for cause in causes.keys() | seconds_told[lane].keys():
            assert seconds_told[lane].get(cause, 0.0) == pytest.approx(causes.get(cause, 0.0), abs=1e-4 + 2 * short + owed)


def test_a_sync_pause_is_drawn_where_it_was_and_what_was_told_is_paid_later() -> None:
    clock = HandClock()
    ledger = TimeLedger(clock, ["a"])
    ledger.set("a", {"generate"})
    clock.time = 10.0
    assert ledger.take_spans() == [["a", "generate", 0.0, 10.0]]
    clock.time = 11.0
    ledger.shift("a", "generate", "sync_pause", 0.25)
    assert ledger.take_spans() == [["a", "generate", 10.0, 10.75], ["a", "sync_pause", 10.75, 11.0]]
    ledger.shift("a", "generate", "sync_pause", 0.5)
    clock.time = 12.0
    assert ledger.take_spans() == [["a", "sync_pause", 11.0, 11.5], ["a", "generate", 11.5, 12.0]]
    assert ledger.take_spans(0.2) == [], "asked again at once"
    assert ledger.as_dict()["lanes"]["a"] == {"sync_pause": 0.75, "generate": 11.25}


def test_however_much_happens_an_event_stays_small() -> None:
    clock = HandClock()
    lanes = [f"generator/{index}" for index in range(8)]
    ledger = TimeLedger(clock, lanes)
    for turn in range(20_000):
        ledger.set(lanes[turn % 8], {("generate", "idle")[turn // 8 % 2]})
        clock.time += 0.004
    rows = ledger.take_spans()
    assert 8 <= len(rows) <= 600
    assert {
        lane: (rows_of[0][2], rows_of[-1][3]) for lane in lanes if (rows_of := [row for row in rows if row[0] == lane])
    } == dict.fromkeys(lanes, (0.0, pytest.approx(80.0)))
