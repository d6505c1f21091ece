"""Which tokens truncated sampling left, as read from vLLM's log-probs: ties at the edge are in, and what cannot be told is refused."""

from __future__ import annotations

from math import inf, log
from types import SimpleNamespace

import pytest

from workers.contract.errors import EngineError
from workers.records import SampleRequest
from workers.rollout.vllm.support import TIED, asked, kept

VOCABULARY = 1000
REQUEST = SampleRequest("g0/0", "g0", 0, [1, 2], 1, 4, 1.0, top_k=2)


def told(*positions: list[tuple[int, float]]) -> SimpleNamespace:
    """The drawn token first, as vLLM tells it, then the likeliest, which hold it again."""
    flat = [pair for position in positions for pair in position]
    ends = [sum(len(position) for position in positions[: count + 1]) for count in range(len(positions))]
    return SimpleNamespace(
        start_indices=[0, *ends[:-1]],
        end_indices=ends,
        token_ids=[token for token, _ in flat],
        logprobs=[logprob for _, logprob in flat],
    )


def test_those_as_likely_as_the_last_are_left_too() -> None:
    """Top-k of 2 leaves three where the second and third are tied, as vLLM does."""
    half, quarter, never = log(0.5), log(0.25), -inf
    first = [(7, quarter), (5, half), (7, quarter), (8, quarter), (9, never)]
    second = [(5, 0.0), (5, 0.0), (7, never), (8, never), (9, never)]
    assert kept(told(first, second), REQUEST, VOCABULARY) == [[7, 5, 8], [5]]


def test_an_empty_list_stands_for_the_whole_vocabulary() -> None:
    everything = [(1, log(0.5)), (0, log(0.5)), (1, log(0.5))]
    assert kept(told(everything), REQUEST, 2) == [[]]


def test_more_ties_than_were_asked_for_are_refused() -> None:
    count = asked(2, VOCABULARY)
    assert count == 2 + TIED and asked(2, 10) == 10
    flat = [(0, log(1 / count)), *((token, log(1 / count)) for token in range(count))]
    with pytest.raises(EngineError) as refused:
        kept(told(flat), REQUEST, VOCABULARY)
    assert (refused.value.field, refused.value.value) == ("sampling.top_k", 2) and refused.value.cure
