"""What the emulated engine is made of: shared counting says of every sample what counting each alone would, and acts come in turn."""

from __future__ import annotations

import asyncio
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.clock import VirtualClock, run_virtual
from workers.loads import Loads
from workers.records import SampleRequest
from workers.rollout.leaps import Sequence
from workers.rollout.rhythm import Rhythm
from workers.rollout.running import Running, whole

GRAIN = 64
DOINGS = st.lists(
    st.one_of(
        st.tuples(st.just("add"), st.integers(1, 9)),
        st.tuples(st.just("draw"), st.floats(0, 1)),
        st.tuples(st.just("end"), st.none()),
        st.tuples(st.just("turn"), st.none()),
        st.tuples(st.just("take"), st.integers(0, 3)),
    ),
    max_size=60,
)


@given(DOINGS)
def test_one_count_for_all_is_as_good_as_a_count_for_each(doings: list[tuple[str, float]]) -> None:
    """Beside it every sample is counted by itself, in exact fractions."""
    running, version, made = Running(GRAIN), 0, 0
    alone: dict[int, tuple[int, list[tuple[int, Fraction]]]] = {}
    request = SampleRequest("g/0", "g", 0, [1, 2, 3], 0, 100, 1.0)

    def check(left: list[Sequence], expected: list[int]) -> None:
        assert [item.length for item in left] == [alone[name][0] for name in expected]
        for item, name in zip(left, expected, strict=True):
            spans = [(number, tokens) for number, tokens in alone.pop(name)[1] if tokens]
            assert (item.spans, item.done) == (spans, sum(tokens for _, tokens in spans))

    for doing, much in doings:
        if doing == "add":
            running.add(Sequence(request, None, int(much), "stop", 3))  # type: ignore[arg-type]
            alone[made] = (int(much), [(version, Fraction(0))])
            made += 1
        elif doing == "turn":
            version += 1
            running.turn(version)
            for _, spans in alone.values():
                spans.append((version, Fraction(0)))
        elif doing == "take":
            wanted = [name for name, (length, _) in alone.items() if length % 4 == much]
            check(running.take(lambda item, rest=much: item.length % 4 == rest), wanted)
        elif alone:
            tokens = running.left() if doing == "end" else min(running.left(), whole(much))
            for _, spans in alone.values():
                spans[-1] = (spans[-1][0], spans[-1][1] + Fraction(tokens))
            ended = [name for name, (length, spans) in alone.items() if sum(drawn for _, drawn in spans) == length]
            assert ended or doing != "end"
            check(running.draw(tokens), ended)
        held = sum(3 + GRAIN * sum(drawn for _, drawn in spans) for _, spans in alone.values())
        assert (len(running), running.held) == (len(alone), held)


def test_a_version_within_a_token_shows_in_whole_tokens() -> None:
    item = Sequence(None, None, 4, "stop", 3, done=4, spans=[(1, 0.25), (2, 1.5), (3, 2.25)])  # type: ignore[arg-type]
    assert item.versions() == [2, 2, 3, 3]


def test_a_leap_lands_unless_it_rings_before_and_a_ring_while_nobody_waits_is_kept() -> None:
    async def main() -> list[tuple[str, float]]:
        told: list[tuple[str, float]] = []
        clock, rhythm = VirtualClock(), Rhythm(lambda error: told.append((str(error), clock.now())))

        def tell(name: str) -> None:
            told.append((name, clock.now()))
            if name == "landed":
                rhythm.leap(5.0, lambda: tell("too late"), lambda: tell("cut"))
            elif name == "cut":
                rhythm.then(2.0, lambda: tell("done"))
            elif name == "done":
                rhythm.rest(lambda: tell("rung meanwhile"))
            else:
                raise ValueError("broken")

        asyncio.get_running_loop().set_exception_handler(lambda _, context: None)
        rhythm.leap(1.0, lambda: tell("landed"), lambda: tell("nobody rings"))
        await clock.sleep(3)
        rhythm.ring()  # cuts the second leap
        await clock.sleep(1)
        rhythm.ring()  # is kept: nothing disturbs `then`
        await clock.sleep(9)
        return told

    assert run_virtual(main()) == [("landed", 1), ("cut", 3), ("done", 5), ("rung meanwhile", 5), ("broken", 5)]


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), max_size=80), st.integers(0, 80))
def test_the_freest_engine_is_the_first_with_the_fewest(changes: list[tuple[int, bool]], gone_at: int) -> None:
    names = [f"generator/{place}" for place in range(5)]
    loads, plain = Loads(names), dict.fromkeys(names, 0)
    for time, (place, more) in enumerate(changes):
        if time == gone_at:
            loads.leave("generator/2")
            del plain["generator/2"]
        name = names[place]
        if name in plain and (more or plain[name]):
            loads.change(name, 1 if more else -1)
            plain[name] += 1 if more else -1
        assert loads.least() == min(plain, key=plain.__getitem__)
        assert [loads[name] for name in plain] == list(plain.values())


@pytest.mark.parametrize("tokens", [0.1, 1 / 3, 59.99999999])
def test_a_partial_leap_is_rounded_by_next_to_nothing(tokens: float) -> None:
    assert abs(whole(tokens) - tokens) < 1e-9
