"""Which prompts come when: orders, the difficulty window, second chances, and a resume that goes on as if nothing had been."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workers.contract import config
from workers.contract.errors import CheckpointError, DataError
from workers.environments.source import PromptSource
from workers.records import Prompt

SIZE = 6


def prompt(index: int) -> Prompt:
    return Prompt(f"p:{index}", index, f"question {index}", [1])


def source(
    told: list[str] | None = None, size: int = SIZE, seed: int = 7, held_out: frozenset[int] = frozenset(), **options: Any
) -> PromptSource:
    return PromptSource(
        size,
        seed,
        "digest",
        lambda index: None if index in held_out else prompt(index),
        config.Curriculum.model_validate(options),
        told.append if told is not None else None,
    )


def ask(made: PromptSource, count: int) -> list[int]:
    return [made.next().index for _ in range(count)]


def observe(made: PromptSource, rates: dict[int, float]) -> None:
    for index, rate in rates.items():
        made.observe(prompt(index), [rate, rate])


def test_shuffle_is_new_in_every_epoch_and_the_same_for_a_seed() -> None:
    first, again, other = source(), source(), source(seed=8)
    epochs = [ask(first, SIZE) for _ in range(3)]
    assert all(sorted(epoch) == list(range(SIZE)) for epoch in epochs) and len({tuple(epoch) for epoch in epochs}) > 1
    assert ask(again, 3 * SIZE) == [index for epoch in epochs for index in epoch] != ask(other, 3 * SIZE)


def test_sequential_is_as_they_stand() -> None:
    assert ask(source(order="sequential"), 2 * SIZE) == [*range(SIZE)] * 2


@pytest.mark.parametrize(("order", "expected"), [("easy_first", [3, 1, 5]), ("hard_first", [0, 2, 4])])
def test_by_pass_rate_with_the_unseen_in_the_middle(order: str, expected: list[int]) -> None:
    made = source(order=order)
    ask(made, SIZE)
    observe(made, {0: 0.0, 1: 0.9, 2: 0.1, 3: 1.0, 4: 0.25})  # 5 was never judged: it counts as one half
    assert ask(made, SIZE)[:3] == expected
    observe(made, dict.fromkeys(range(SIZE), 0.5))
    assert len(set(ask(made, SIZE))) == SIZE


def test_an_order_by_pass_rate_holds_for_its_epoch() -> None:
    made = source(order="easy_first")
    ask(made, SIZE)
    observe(made, {index: index / 10 for index in range(SIZE)})
    assert ask(made, 1) == [5]
    observe(made, {0: 1.0})
    assert ask(made, 5) == [4, 3, 2, 1, 0]


def test_the_pass_rate_forgets() -> None:
    """0.5 x 1 + 0.5 x 0 = 0.5 lies inside; 0.25 does not."""
    made = source(order="sequential", size=2, window_low=0.4, memory=0.5, revisit_every=100)
    observe(made, {0: 1.0, 1: 0.7})
    observe(made, {0: 0.0})
    assert ask(made, 2) == [0, 1]
    observe(made, {0: 0.0})
    assert ask(made, 2) == [1, 1] and made.passed_over == 2


def test_rewards_are_held_within_0_and_1_and_a_group_without_any_says_nothing() -> None:
    made = source(order="sequential", size=3, window_low=0.1, window_high=0.9)
    made.observe(prompt(0), [-3.0, -1.0])
    made.observe(prompt(1), [7.0, 2.0])
    made.observe(prompt(2), [])
    assert ask(made, 2) == [2, 2]
    rates = dict(made.state()["curriculum"]["rates"])
    assert rates == {0: 0.0, 1: 1.0}


def test_prompts_never_seen_lie_inside() -> None:
    assert sorted(ask(source(window_low=0.5, window_high=0.5), SIZE)) == list(range(SIZE))


def test_a_prompt_passed_over_often_enough_gets_another_chance() -> None:
    made = source(order="sequential", size=2, window_high=0.8, revisit_every=3)
    observe(made, {0: 1.0, 1: 0.5})
    assert ask(made, 8) == [1, 1, 1, 0, 1, 1, 1, 1] and made.passed_over == 6
    observe(made, {0: 0.0, 1: 0.5})  # 0.7: harder than it was
    assert ask(made, 3) == [0, 1, 0]


def test_a_window_that_leaves_nothing_is_opened_counted_and_told() -> None:
    told: list[str] = []
    made = source(told, window_low=0.4, window_high=0.6, revisit_every=10_000)
    observe(made, dict.fromkeys(range(SIZE), 1.0))
    asked = ask(made, SIZE)
    assert Counter(asked).keys() <= set(range(SIZE)) and made.let_through == SIZE
    assert len(told) == 1 and "curriculum.window_low 0.4" in told[0]
    assert made.passed_over == 2 * SIZE
    ask(made, 1)
    assert len(told) == 2  # closed again after as many as there are questions


def test_held_out_questions_are_no_reason_to_open_the_window() -> None:
    told: list[str] = []
    with pytest.raises(DataError, match="held out"):
        source(told, held_out=frozenset(range(SIZE)), window_low=0.4).next()
    assert told == []
    made = source(told, held_out=frozenset({0, 1, 2}), window_low=0.4)
    observe(made, {3: 0.0, 4: 0.0, 5: 0.0})
    assert set(ask(made, 6)) <= {3, 4, 5} and made.let_through == 6


def test_without_a_curriculum_the_cursor_stays_small() -> None:
    made = source()
    observe(made, {0: 1.0})
    assert set(made.state()) == {"epoch", "position", "size", "seed", "digest"}


@settings(max_examples=80, deadline=None)
@given(
    order=st.sampled_from(["shuffle", "sequential", "easy_first", "hard_first"]),
    window=st.tuples(st.floats(0, 1), st.floats(0, 1)),
    revisit=st.integers(1, 4),
    held_out=st.frozensets(st.integers(0, SIZE - 1), max_size=SIZE - 1),
    moves=st.lists(st.one_of(st.none(), st.tuples(st.integers(0, SIZE - 1), st.lists(st.floats(-1, 2), max_size=3))), max_size=40),
    cut=st.integers(0, 40),
)
def test_a_resume_asks_what_the_uninterrupted_run_asks(
    order: str, window: tuple[float, float], revisit: int, held_out: frozenset[int], moves: list[Any], cut: int
) -> None:
    """None: a dispatch; otherwise a judged group. After `cut` moves the second source is replaced by one made from its state."""
    options = {"order": order, "window_low": min(window), "window_high": max(window), "revisit_every": revisit}
    straight, resumed = (source(held_out=held_out, **options) for _ in range(2))
    stories: list[list[int]] = [[], []]
    for number, move in enumerate(moves):
        if number == cut:
            state = json.loads(json.dumps(resumed.state()))
            resumed = source(held_out=held_out, **options)
            resumed.restore(state)
        for made, story in zip((straight, resumed), stories, strict=True):
            if move is None:
                story.append(made.next().index)
            elif move[0] not in held_out:
                made.observe(prompt(move[0]), move[1])
    assert stories[0] == stories[1]
    assert straight.state() == resumed.state()
    assert (straight.passed_over, straight.let_through) == (resumed.passed_over, resumed.let_through)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"order": [0, 0, 1, 2, 3, 4]}, "cursor"),
        ({"order": ["a"]}, "cursor"),
        ({"order": None}, "cursor"),
        ({"curriculum": None}, "cursor.curriculum"),
        ({"curriculum": {"rates": [[0, 7.0]], "waited": [], "open": 0, "passed_over": 0, "let_through": 0}}, "cursor.curriculum"),
        ({"curriculum": {"rates": [[99, 0.5]], "waited": [], "open": 0, "passed_over": 0, "let_through": 0}}, "cursor.curriculum"),
        ({"curriculum": {"rates": [], "waited": [[0, -1]], "open": 0, "passed_over": 0, "let_through": 0}}, "cursor.curriculum"),
    ],
)
def test_a_damaged_cursor_is_refused(change: dict[str, Any], field: str) -> None:
    made = source(order="easy_first")
    ask(made, 2)
    with pytest.raises(CheckpointError) as caught:
        source(order="easy_first").restore({**made.state(), **change})
    assert caught.value.field == field
