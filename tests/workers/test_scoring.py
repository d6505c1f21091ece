"""Scoring: a verifier that fails costs its own sample, and is never a reward of 0."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from workers.contract.errors import DataError, EngineError
from workers.records import Prompt, Rollout
from workers.scoring import threads
from workers.scoring.threads import ThreadScorer
from workers.scoring.verifiers import VERIFIERS

PROMPT = Prompt(id="t:0", index=0, text="1 + 1", token_ids=[1])


class Judging:
    """A judge whose verdict is a function of the text; the text is the ids joined."""

    def __init__(self, verdict: Callable[[str], Any]) -> None:
        self._verdict = verdict

    def decode(self, ids: list[int]) -> str:
        return " ".join(map(str, ids))

    def verify(self, prompt: Prompt, text: str) -> tuple[Any, str | None]:
        return self._verdict(text), text


def rollout(index: int = 0) -> Rollout:
    return Rollout(f"g1/{index}", "g1", index, [index], [-0.1], [0], "stop")


def boom(_: str) -> float:
    raise ZeroDivisionError("by hand")


@pytest.mark.parametrize("given_", [0, 1, 0.5, -2.0, True])
async def test_a_number_is_a_reward(given_: float) -> None:
    sample = await ThreadScorer(Judging(lambda _: given_)).score(PROMPT, rollout(3))
    assert (sample.reward, sample.error, sample.text, sample.answer) == (float(given_), None, "3", "3")


@pytest.mark.parametrize(
    ("verdict", "words"),
    [
        (boom, "ZeroDivisionError: by hand"),
        (lambda _: None, "no reward"),
        (lambda _: math.nan, "nan"),
        (lambda _: math.inf, "inf"),
        (lambda _: -math.inf, "-inf"),
        (lambda _: "much", "str, not a number"),
        (lambda _: 10**400, "int, not a number"),
        (lambda _: [], "list, not a number"),
    ],
)
async def test_a_failed_verdict_is_none_and_says_why(verdict: Callable[[str], Any], words: str) -> None:
    sample = await ThreadScorer(Judging(verdict)).score(PROMPT, rollout())
    assert sample.reward is None and words in str(sample.error)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"finish_reason": "abort"}, "aborted"),
        ({"finish_reason": "deadline", "token_ids": [], "seconds": 30.0}, "within 30 s"),
        ({"token_ids": []}, "no token"),
    ],
)
async def test_where_there_is_nothing_to_judge_nobody_is_asked(changes: dict[str, Any], words: str) -> None:
    sample = await ThreadScorer(Judging(lambda _: 1.0)).score(PROMPT, replace(rollout(), **changes))
    assert sample.reward is None and words in str(sample.error)


async def test_a_slow_verifier_costs_its_own_sample_alone() -> None:
    scorer = ThreadScorer(Judging(lambda text: time.sleep(0.6) or 1.0 if text == "0" else 1.0), deadline_s=0.15)
    began = time.monotonic()
    samples = await asyncio.gather(*(scorer.score(PROMPT, rollout(index)) for index in range(8)))
    assert time.monotonic() - began < 0.5
    assert [sample.reward for sample in samples] == [None] + [1.0] * 7
    assert "longer than 0.15 s" in str(samples[0].error)


async def test_the_order_of_judging_changes_nothing() -> None:
    scorer = ThreadScorer(Judging(lambda text: time.sleep(0.02 if int(text) % 3 else 0.0) or float(text)))
    samples = await asyncio.gather(*(scorer.score(PROMPT, rollout(index)) for index in range(30)))
    assert [sample.reward for sample in samples] == [float(index) for index in range(30)]


async def test_a_verifier_that_always_hangs_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threads, "MAX_ABANDONED", 3)
    scorer = ThreadScorer(Judging(lambda _: time.sleep(1.0)), deadline_s=0.01)
    with pytest.raises(EngineError, match="deadline"):
        for index in range(3):
            await scorer.score(PROMPT, rollout(index))


@pytest.mark.parametrize(
    ("name", "given_", "expected", "reward"),
    [
        ("exact", " The  Cat", "the cat", 1.0),
        ("exact", "cat", "the cat", 0.0),
        ("number", "4.0", "4", 1.0),
        ("number", "1,000", "1000", 1.0),
        ("number", "four", "4", 0.0),
        ("number", "NaN", "4", 0.0),
        ("number", "9" * 500, "4", 0.0),
        ("contains", "It is Paris, surely", "paris", 1.0),
        ("contains", "Rome", "paris", 0.0),
    ],
)
def test_the_built_in_verifiers(name: str, given_: str, expected: str, reward: float) -> None:
    assert VERIFIERS[name](given_, expected) == reward


def test_an_expected_answer_that_is_no_number_is_a_fault_of_the_data() -> None:
    with pytest.raises(DataError):
        VERIFIERS["number"]("4", "four")
