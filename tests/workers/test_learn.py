"""Advantages, aggregation, diagnostics: values worked out by hand, masks that hide garbage, cuts that change nothing."""

from __future__ import annotations

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.learn_rig import AGGREGATIONS, LENGTHS, random_batch, row, tensor, weights_of
from workers.learn import advantages
from workers.learn.advantages import ADVANTAGES, overlong
from workers.learn.aggregation import aggregate, token_weights
from workers.learn.diagnostics import effective_share, masked_mean, mismatch

BY_GROUP = [kind for kind in ADVANTAGES if kind != "reinforce_pp"]
WHITENED = ("reinforce_pp", "reinforce_pp_baseline")


def advantage(kind: str, rewards: Tensor, groups: list[int], **options: object) -> Tensor:
    plain = {"valid": torch.ones(len(rewards), dtype=torch.bool), "lengths": torch.ones(len(rewards), dtype=torch.int64), "eps": 0.0}
    return ADVANTAGES[kind](rewards, torch.tensor(groups), **{**plain, **options})  # type: ignore[arg-type]


def test_group_advantages_by_hand() -> None:
    rewards, groups = tensor(1, 0, 0, 0, 2, 4), [3, 3, 3, 3, 1, 1]
    # Group 3: mean 0.25, unbiased std 0.5. Group 1: mean 3, std sqrt(2).
    expected = tensor(0.75 / 0.5, -0.5, -0.5, -0.5, -1 / math.sqrt(2), 1 / math.sqrt(2))
    torch.testing.assert_close(advantage("grpo", rewards, groups), expected)
    torch.testing.assert_close(advantage("dr_grpo", rewards, groups), tensor(0.75, -0.25, -0.25, -0.25, -1, 1))
    torch.testing.assert_close(advantage("rloo", rewards, groups), tensor(1, -1 / 3, -1 / 3, -1 / 3, -2, 2))
    torch.testing.assert_close(advantage("max_rl", rewards, groups), tensor(3, -1, -1, -1, -1 / 3, 1 / 3))
    assert float(advantage("grpo", rewards, groups, eps=0.5)[0]) == pytest.approx(0.75)
    assert float(advantage("max_rl", rewards, groups, eps=0.25)[0]) == pytest.approx(1.5)
    # Batch: mean 7/6, squares 21 - 6 (7/6)^2 = 21 - 49/6 = 77/6, over 5.
    torch.testing.assert_close(advantage("batch_std", rewards, groups)[0], torch.tensor(0.75 / math.sqrt(77 / 30)).double())


def test_a_length_weighted_baseline_by_hand() -> None:
    lengths = torch.tensor([1, 3, 2, 2])
    # Group 0: (1 x 1 + 3 x 0) / 4 = 0.25. Group 1: equal lengths, so the plain mean, 1.
    found = advantage("opo", tensor(1, 0, 0, 2), [0, 0, 1, 1], lengths=lengths)
    torch.testing.assert_close(found, tensor(0.75, -0.25, -1, 1))


def test_whitening_over_tokens_by_hand() -> None:
    lengths = torch.tensor([1, 3, 2, 0])
    # Tokens: 1, 0 0 0, 4 4. Mean 9/6 = 1.5; squares 0.25 + 3 x 2.25 + 2 x 6.25 = 19.5, over 5 = 3.9. A sample without tokens
    # is not counted and gets nothing.
    found = advantage("reinforce_pp", tensor(1, 0, 4, 100), [0, 0, 1, 1], lengths=lengths)
    torch.testing.assert_close(found, tensor(-0.5, -1.5, 2.5, 0) / math.sqrt(3.9))
    # Less the group means 0.5 and 52: tokens 0.5, -0.5 x 3, -48 x 2. Mean -97/6.
    found = advantage("reinforce_pp_baseline", tensor(1, 0, 4, 100), [0, 0, 1, 1], lengths=lengths)
    tokens = tensor(0.5, -0.5, -0.5, -0.5, -48, -48)
    torch.testing.assert_close(found[:3], (tensor(0.5, -0.5, -48) + 97 / 6) / tokens.std())
    # eps^2 stands under the root: 1e-4 is verl's 1e-8.
    found = advantage("reinforce_pp", tensor(1, 0, 4, 100), [0, 0, 1, 1], lengths=lengths, eps=2.0)
    torch.testing.assert_close(found[0], torch.tensor(-0.5 / math.sqrt(7.9)).double())


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_equal_rewards_teach_exactly_nothing(kind: str) -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1])  # the float32 mean of three 0.1 is not 0.1
    assert advantage(kind, rewards, [0, 0, 0], eps=1e-4).tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", [kind for kind in BY_GROUP if kind not in WHITENED])
def test_lonely_survivors_get_nothing_or_their_reward(kind: str) -> None:
    rewards = tensor(0, 1, 0.7, math.nan)
    valid = torch.tensor([True, True, True, False])
    zero = advantage(kind, rewards, [0, 0, 1, 1], valid=valid, eps=1e-4)
    raw = advantage(kind, rewards, [0, 0, 1, 1], valid=valid, eps=1e-4, singletons="raw")
    assert (float(zero[2]), float(raw[2])) == (0, 0.7)
    assert torch.equal(zero[:2], raw[:2])


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_failed_samples_move_nobody(kind: str) -> None:
    rewards, groups = tensor(1, math.nan, 0, 3), torch.zeros(4, dtype=torch.int64)
    valid, lengths = torch.tensor([True, False, True, True]), torch.tensor([2, 9, 3, 1])
    survivors = ADVANTAGES[kind](rewards[valid], groups[valid], valid[valid], lengths[valid], 1e-4, "zero")
    result = ADVANTAGES[kind](rewards, groups, valid, lengths, 1e-4, "zero")
    torch.testing.assert_close(result[valid], survivors)
    assert float(result[1]) == 0


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_nobody_scored_is_nobody_compared(kind: str) -> None:
    nobody = torch.zeros(2, dtype=torch.bool)
    assert advantage(kind, tensor(math.nan, math.nan), [0, 0], valid=nobody, eps=1e-4).tolist() == [0, 0]


@given(
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 9), st.integers(0, 2)), min_size=2, max_size=12),
    st.randoms(use_true_random=False),
)
@settings(max_examples=50, deadline=None)
def test_advantages_follow_a_permutation_and_sum_to_zero(rows: list[tuple[float, int, int]], chance: random.Random) -> None:
    order = list(range(len(rows)))
    chance.shuffle(order)
    rewards, lengths = tensor(*(one for one, _, _ in rows)), torch.tensor([one for _, one, _ in rows])
    groups = torch.tensor([one for _, _, one in rows])
    everyone = torch.ones(len(rows), dtype=torch.bool)
    for kind, formula in ADVANTAGES.items():
        result = formula(rewards, groups, everyone, lengths, 1e-4, "zero")
        permuted = formula(rewards[order], groups[order], everyone, lengths[order], 1e-4, "zero")
        torch.testing.assert_close(permuted, result[order], rtol=1e-7, atol=1e-7)
        scale = float(result.abs().max()) + 1
        if kind in WHITENED:
            assert float((result * lengths).sum()) == pytest.approx(0, abs=1e-6 * scale)
        elif kind == "opo":
            assert float((result * lengths)[groups == 0].sum()) == pytest.approx(0, abs=1e-8 * scale)
        else:
            assert float(result[groups == 0].sum()) == pytest.approx(0, abs=1e-8 * scale)


def test_overlong_shaping_by_hand() -> None:
    # Limit 10, zone 4: nothing up to 6, then -1/4 a token, -1 at the limit and beyond.
    found = overlong(torch.tensor([1, 6, 7, 8, 10, 12]), 10, 4)
    assert found.tolist() == [0, 0, -0.25, -0.5, -1, -1]


def test_every_advantage_has_a_name() -> None:
    assert all(getattr(advantages, name) is formula for name, formula in ADVANTAGES.items())


def test_aggregation_by_hand() -> None:
    loss = torch.tensor([[1.0, 2.0, 9.0], [6.0, 9.0, 9.0], [9.0, 9.0, 9.0], [4.0, 5.0, 9.0]], dtype=torch.float64)
    lengths, prompts = torch.tensor([2, 1, 0, 2]), torch.tensor([0, 0, 1, 2])
    mask = torch.arange(3) < lengths[:, None]

    def value(kind: str, empty: str = "skip") -> float:
        return float(aggregate(loss, mask, token_weights(lengths, prompts, kind, 10, empty)))  # type: ignore[arg-type]

    assert value("token_mean") == pytest.approx(18 / 5)
    assert value("sequence_mean") == pytest.approx((1.5 + 6 + 4.5) / 3)
    assert value("sequence_mean", "count") == pytest.approx((1.5 + 6 + 4.5) / 4)
    assert value("sequence_sum") == pytest.approx(18 / 3)
    assert value("sequence_sum", "count") == pytest.approx(18 / 4)
    assert value("sequence_sum_constant") == value("sequence_sum_constant", "count") == pytest.approx(18 / (4 * 10))
    assert value("token_sum") == pytest.approx(18)
    # Prompt 0: (1 + 2 + 6) / 3 = 3; prompt 1 has no tokens; prompt 2: 4.5.
    assert value("prompt_mean") == pytest.approx((3 + 4.5) / 2)
    assert value("prompt_mean", "count") == pytest.approx((3 + 4.5) / 3)
    with pytest.raises(ValueError, match="nonsense"):
        value("nonsense")


@pytest.mark.parametrize("kind", AGGREGATIONS)
def test_a_batch_without_tokens_weighs_nothing(kind: str) -> None:
    assert token_weights(torch.tensor([0, 0]), torch.tensor([0, 1]), kind, 10).tolist() == [0, 0]


@pytest.mark.parametrize("kind", AGGREGATIONS)
@given(parts=st.lists(st.integers(0, 2), min_size=len(LENGTHS), max_size=len(LENGTHS)))
@settings(max_examples=10, deadline=None)
def test_shares_of_any_cut_add_up_to_the_whole(kind: str, parts: list[int]) -> None:
    values, _, _, mask = random_batch(3)
    weights = weights_of(mask, kind)
    whole = aggregate(values, mask, weights)
    rows = [[i for i, part in enumerate(parts) if part == number] for number in range(3)]
    shares = sum(aggregate(values[some], mask[some], weights[some]) for some in rows)
    torch.testing.assert_close(shares, whole, rtol=1e-12, atol=1e-12)


def test_a_mean_of_micro_batch_means_is_another_number() -> None:
    """Why weights are settled beforehand: 4 tokens of loss 1 and 1 token of loss 6."""
    loss, mask = torch.tensor([[1.0, 1, 1, 1], [6, 0, 0, 0]]), torch.tensor([[True] * 4, [True, False, False, False]])
    weights = token_weights(torch.tensor([4, 1]), torch.tensor([0, 0]), "token_mean", 4)
    assert float(aggregate(loss, mask, weights)) == pytest.approx(10 / 5)
    assert (1 + 6) / 2 == 3.5


def test_diagnostics_by_hand() -> None:
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    garbage = math.nan
    rollout = torch.tensor([[math.log(0.25), math.log(0.5), garbage], [math.log(0.5), garbage, 0], [garbage] * 3])
    trainer = torch.tensor([[math.log(0.5), math.log(0.5), 0], [math.log(0.25), 0, garbage], [garbage] * 3])
    found = mismatch(trainer, rollout, mask)  # w = 2, 1 | 1/2
    two = math.log(2)
    assert found["kl_mismatch"] == pytest.approx(((2 - 1 - two) + 0 + (0.5 - 1 + two)) / 3)
    assert found["kl_mismatch_k1"] == pytest.approx(0, abs=1e-7)
    assert found["mismatch_mean_abs"] == pytest.approx(2 * two / 3)
    assert found["weight_mean"] == pytest.approx(3.5 / 3)
    assert found["weight_max"] == pytest.approx(2)
    assert found["ess"] == pytest.approx(3.5**2 / (3 * 5.25))
    assert found["ess_sequence"] == pytest.approx(2.5**2 / (2 * 4.25))  # row products 2 and 1/2
    assert found["chi2"] == pytest.approx(5.25 / 3 - 1)
    assert found["perplexity_gap"] == pytest.approx((-two / 2 + two) / 2)
    assert found["perplexity_ratio"] == pytest.approx((2**-0.5 + 2) / 2)
    assert found["probability_gap_max"] == pytest.approx(0.25)
    same = mismatch(trainer, trainer, mask)
    assert (same["kl_mismatch"], same["ess"], same["ess_sequence"], same["chi2"], same["perplexity_ratio"]) == (0, 1, 1, 0, 1)
    assert mismatch(trainer, trainer, torch.zeros_like(mask)) == {}
    assert masked_mean(row(1, 3, math.nan), mask[:1]) == 2
    assert masked_mean(trainer, torch.zeros_like(mask)) is None
    assert effective_share(tensor(500, 500, -500)) == pytest.approx(2 / 3)
