"""The learning formulas: values worked out by hand, gradients, masks that hide garbage, micro-batches that change nothing."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from workers.learn.advantages import ADVANTAGES, dr_grpo, grpo, rloo
from workers.learn.aggregation import Denominators, aggregate
from workers.learn.corrections import token_tis
from workers.learn.diagnostics import masked_mean, mismatch
from workers.learn.losses import TokenLoss, ppo, reinforce_is

F64 = torch.float64
ROWS, WIDTH = 5, 7
KINDS = ["token_mean", "sequence_mean", "sequence_sum_constant"]


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def everyone(rewards: Tensor) -> Tensor:
    return torch.ones_like(rewards, dtype=torch.bool)


def random_batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """new, anchor, advantages (B, 1), ragged mask with one empty row."""
    source = torch.Generator().manual_seed(seed)
    new = -torch.rand(ROWS, WIDTH, generator=source, dtype=F64) * 3
    anchor = new + 0.4 * torch.randn(ROWS, WIDTH, generator=source, dtype=F64)
    advantages = torch.randn(ROWS, 1, generator=source, dtype=F64)
    lengths = torch.tensor([7, 3, 0, 1, 5])
    return new, anchor, advantages, torch.arange(WIDTH) < lengths[:, None]


LOSSES: dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], TokenLoss]] = {
    "ppo": ppo,
    "ppo_higher": lambda n, o, a, m: ppo(n, o, a, m, 0.2, 0.28),
    "ppo_dual": lambda n, o, a, m: ppo(n, o, a, m, 0.2, 0.2, 1.3),
    "reinforce_is": reinforce_is,
    "reinforce_uncapped": lambda n, o, a, m: reinforce_is(n, o, a, m, None),
}


def test_advantages_by_hand() -> None:
    rewards = tensor(1, 0, 0, 0, 2, 4)
    groups = torch.tensor([3, 3, 3, 3, 1, 1])
    # Group 3: mean 0.25, unbiased std 0.5. Group 1: mean 3, std sqrt(2).
    expected = tensor(0.75 / 0.5, -0.5, -0.5, -0.5, -1 / math.sqrt(2), 1 / math.sqrt(2))
    torch.testing.assert_close(grpo(rewards, groups, everyone(rewards), 0.0), expected)
    torch.testing.assert_close(dr_grpo(rewards, groups, everyone(rewards)), tensor(0.75, -0.25, -0.25, -0.25, -1, 1))
    torch.testing.assert_close(rloo(rewards, groups, everyone(rewards)), tensor(1, -1 / 3, -1 / 3, -1 / 3, -2, 2))
    assert float(grpo(rewards, groups, everyone(rewards), 0.5)[0]) == pytest.approx(0.75)


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_equal_rewards_and_singletons_teach_exactly_nothing(kind: str) -> None:
    rewards = torch.tensor([0.1, 0.1, 0.1, 0.7])  # the float32 mean of three 0.1 is not 0.1
    groups = torch.tensor([0, 0, 0, 1])
    assert ADVANTAGES[kind](rewards, groups, everyone(rewards), 1e-4).tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("kind", ADVANTAGES)
def test_failed_samples_do_not_move_their_group(kind: str) -> None:
    rewards = tensor(1, math.nan, 0, 3)
    groups = torch.zeros(4, dtype=torch.int64)
    valid = torch.tensor([True, False, True, True])
    survivors = ADVANTAGES[kind](rewards[valid], groups[valid], torch.ones(3, dtype=torch.bool), 1e-4)
    result = ADVANTAGES[kind](rewards, groups, valid, 1e-4)
    torch.testing.assert_close(result[valid], survivors)
    assert float(result[1]) == 0


@given(st.lists(st.floats(-5, 5), min_size=2, max_size=12), st.randoms())
@settings(max_examples=50, deadline=None)
def test_advantages_sum_to_zero_and_follow_a_permutation(values: list[float], chance: object) -> None:
    rewards = tensor(*values)
    groups = torch.arange(len(values)) % 2
    order = list(range(len(values)))
    chance.shuffle(order)  # type: ignore[attr-defined]
    for formula in ADVANTAGES.values():
        result = formula(rewards, groups, everyone(rewards), 1e-4)
        permuted = formula(rewards[order], groups[order], everyone(rewards), 1e-4)
        torch.testing.assert_close(permuted, result[order], rtol=1e-8, atol=1e-8)
        assert float(result[groups == 0].sum()) == pytest.approx(0, abs=1e-8)


def test_ppo_by_hand() -> None:
    ratio = tensor(1.5, 0.5, 1.1, 1.5, 0.5, 6.0)
    sign = tensor(1, 1, 1, -1, -1, -1)
    mask = torch.ones(1, 6, dtype=torch.bool)
    new = ratio.log()[None].requires_grad_()
    loss = ppo(new, torch.zeros(1, 6, dtype=F64), sign[None], mask, 0.2, 0.28)
    torch.testing.assert_close(loss.value[0], tensor(-1.28, -0.5, -1.1, 1.5, 0.8, 6.0))
    loss.value.sum().backward()
    assert new.grad is not None
    torch.testing.assert_close(new.grad[0], tensor(0, -0.5, -1.1, 1.5, 0, 6.0))
    assert loss.clipped[0].tolist() == [True, False, False, False, True, False]
    dual = ppo(new.detach(), torch.zeros(1, 6, dtype=F64), sign[None], mask, 0.2, 0.28, 3.0)
    assert float(dual.value[0, 5]) == 3.0
    assert dual.clipped[0].tolist() == [True, False, False, False, True, True]


def test_reinforce_by_hand() -> None:
    new = tensor(-1.0, -1.0)[None].requires_grad_()
    rollout = tensor(-1.0 - math.log(1.5), -1.0 - math.log(8))[None]
    loss = reinforce_is(new, rollout, tensor(2.0)[None], torch.ones(1, 2, dtype=torch.bool), 2.0)
    torch.testing.assert_close(loss.value[0], tensor(3.0, 4.0))
    loss.value.sum().backward()
    assert new.grad is not None
    torch.testing.assert_close(new.grad[0], tensor(-3.0, -4.0))  # the weight itself carries no gradient
    assert loss.clipped[0].tolist() == [False, True]


def test_tis_by_hand() -> None:
    old = tensor(0, math.log(1.5), math.log(9), math.log(0.1))[None].requires_grad_()
    weights = token_tis(old, torch.zeros(1, 4, dtype=F64), torch.tensor([[True, True, True, True]]), 2.0)
    torch.testing.assert_close(weights[0], tensor(1, 1.5, 2, 0.1))
    assert not weights.requires_grad


def test_aggregation_by_hand() -> None:
    loss = torch.tensor([[1.0, 2.0, 9.0], [6.0, 9.0, 9.0], [9.0, 9.0, 9.0]], dtype=F64)
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    counts = Denominators(tokens=3, sequences=2, samples=3, max_tokens=10)
    assert float(aggregate(loss, mask, "token_mean", counts)) == pytest.approx(3.0)
    assert float(aggregate(loss, mask, "sequence_mean", counts)) == pytest.approx((1.5 + 6) / 2)
    assert float(aggregate(loss, mask, "sequence_sum_constant", counts)) == pytest.approx(9 / 30)
    with pytest.raises(ValueError, match="nonsense"):
        aggregate(loss, mask, "nonsense", counts)


def test_diagnostics_by_hand() -> None:
    mask = torch.tensor([[True, True, False]])
    trainer = tensor(math.log(2), 0, math.nan)[None]
    found = mismatch(trainer, torch.zeros(1, 3, dtype=F64), mask)
    assert found["kl_mismatch"] == pytest.approx((1 - math.log(2)) / 2)
    assert found["mismatch_mean_abs"] == pytest.approx(math.log(2) / 2)
    assert found["weight_max"] == pytest.approx(2)
    assert found["ess"] == pytest.approx(9 / (2 * 5))
    same = mismatch(trainer, trainer, mask)
    assert (same["kl_mismatch"], same["ess"]) == (0, 1)
    assert mismatch(trainer, trainer, torch.zeros_like(mask)) == {}
    assert masked_mean(tensor(1, 3, math.nan)[None], mask) == 2
    assert masked_mean(trainer, torch.zeros_like(mask)) is None


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_gradients_agree_with_finite_differences(name: str, kind: str) -> None:
    new, anchor, advantages, mask = random_batch()
    counts = Denominators(int(mask.sum()), 4, ROWS, 16)
    if name.startswith("reinforce"):
        # The detached weight is a constant of the gradient: differentiate with the weight frozen, by the definition.
        weight = (new - anchor).exp().clamp(max=math.inf if "uncapped" in name else 2.0)
        frozen = new.clone().requires_grad_()
        aggregate(LOSSES[name](frozen, anchor, advantages, mask).value, mask, kind, counts).backward()
        other = new.clone().requires_grad_()
        aggregate(-advantages * weight * other, mask, kind, counts).backward()
        torch.testing.assert_close(frozen.grad, other.grad)
    else:
        assert torch.autograd.gradcheck(
            lambda x: aggregate(LOSSES[name](x, anchor, advantages, mask).value, mask, kind, counts), (new.requires_grad_(),)
        )


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_masked_garbage_changes_nothing(name: str, garbage: float) -> None:
    new, anchor, advantages, mask = random_batch()
    counts = Denominators(int(mask.sum()), 4, ROWS, 16)

    def run(fill: float) -> tuple[Tensor, Tensor, Tensor, dict[str, float]]:
        n, o, a = (torch.where(mask, x, fill) for x in (new, anchor, advantages.expand_as(mask)))
        n.requires_grad_()
        loss = LOSSES[name](n, o, a, mask)
        weighted = loss.value * token_tis(o, n, mask, 2.0)
        total = torch.stack([aggregate(weighted, mask, kind, counts) for kind in KINDS])
        total.sum().backward()
        assert n.grad is not None
        return total.detach(), n.grad, loss.clipped, mismatch(n, o, mask)

    for one, other in zip(run(-1.0), run(garbage), strict=True):
        assert one == other if isinstance(one, dict) else torch.equal(one, other)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("kind", KINDS)
def test_neither_order_nor_cut_of_the_batch_matters(name: str, kind: str) -> None:
    new, anchor, advantages, mask = random_batch()
    counts = Denominators(int(mask.sum()), 4, ROWS, 16)

    def run(parts: list[list[int]]) -> tuple[Tensor, Tensor]:
        leaf = new.clone().requires_grad_()
        total = torch.zeros((), dtype=F64)
        for rows in parts:
            loss = LOSSES[name](leaf[rows], anchor[rows], advantages[rows], mask[rows])
            share = aggregate(loss.value, mask[rows], kind, counts)
            share.backward()
            total += share.detach()
        assert leaf.grad is not None
        return total, leaf.grad

    whole = run([[0, 1, 2, 3, 4]])
    for parts in ([[4, 2, 0, 1, 3]], [[0], [1], [2], [3], [4]], [[0, 3], [1, 2, 4]]):
        torch.testing.assert_close(run(parts), whole, rtol=1e-9, atol=1e-12)


def test_ratios_far_out_stay_finite() -> None:
    new = torch.tensor([[0.0, 0.0]], requires_grad=True)
    loss = ppo(new, torch.tensor([[-500.0, 500.0]]), torch.tensor([[1.0]]), torch.ones(1, 2, dtype=torch.bool))
    loss.value.sum().backward()
    assert new.grad is not None
    assert torch.isfinite(loss.value).all() and torch.isfinite(new.grad).all()
