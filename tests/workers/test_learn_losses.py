"""Policy losses: values by hand, gradients against finite differences, masks, permutations, cuts."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.learn_rig import AGGREGATIONS, F64, POLICIES, full, random_batch, row, tensor, weights_of
from workers.learn import losses
from workers.learn.aggregation import aggregate

# Their value is a surrogate: a detached weight times a log-prob, or a row's ratio carried by each token.
SURROGATES = {"cispo", "topr", "reinforce_is", "reinforce_uncapped"}


def run(name: str, new: Tensor, anchor: Tensor, signed: Tensor, mask: Tensor, kind: str = "token_mean") -> tuple[Tensor, Tensor, Tensor]:
    """Aggregated loss, gradient, clipped."""
    leaf = new.detach().clone().requires_grad_()
    loss = POLICIES[name](leaf, anchor, signed, mask)
    total = aggregate(loss.value, mask, weights_of(mask, kind))
    total.backward()
    assert leaf.grad is not None
    return total.detach(), leaf.grad, loss.clipped


def test_ppo_by_hand() -> None:
    ratio, sign = row(1.5, 0.5, 1.1, 1.5, 0.5, 6.0), row(1, 1, 1, -1, -1, -1)
    new, old = ratio.log().requires_grad_(), torch.zeros(1, 6, dtype=F64)
    loss = losses.ppo(new, old, sign, full(sign), 0.2, 0.28)
    torch.testing.assert_close(loss.value, row(-1.28, -0.5, -1.1, 1.5, 0.8, 6.0))
    loss.value.sum().backward()
    # A > 0 and r > 1.28 has none, A < 0 and r < 0.8 has none.
    torch.testing.assert_close(new.grad, row(0, -0.5, -1.1, 1.5, 0, 6.0))
    assert loss.clipped.tolist() == [[True, False, False, False, True, False]]
    dual = losses.ppo(new.detach(), old, sign, full(sign), 0.2, 0.28, 3.0)
    torch.testing.assert_close(dual.value, row(-1.28, -0.5, -1.1, 1.5, 0.8, 3.0))
    assert dual.clipped.tolist() == [[True, False, False, False, True, True]]
    # The cap comes before the maximum, whatever the sign: -min(1.5, 1.3) against the clipped -1.28 is still -1.28.
    capped = losses.ppo(new.detach(), old, sign, full(sign), 0.2, 0.28, None, 1.3)
    torch.testing.assert_close(capped.value, row(-1.28, -0.5, -1.1, 1.3, 0.8, 1.3))
    assert capped.clipped.tolist() == [[True, False, False, True, True, True]]


def test_gspo_by_hand() -> None:
    # Means of the log-ratios: (0.2 + 0.4) / 2 = 0.3, over 1.2; -0.1, inside.
    new = torch.tensor([[0.2, 0.4], [-0.1, 9.0]], dtype=F64, requires_grad=True)
    mask = torch.tensor([[True, True], [True, False]])
    loss = losses.gspo(new, torch.zeros(2, 2, dtype=F64), tensor(1, 2)[:, None], mask, 0.2, 0.2)
    torch.testing.assert_close(loss.value, torch.tensor([[-1.2, -1.2], [-2 * math.exp(-0.1), 0]], dtype=F64))
    assert loss.clipped.tolist() == [[True, True], [False, False]]
    loss.value.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[0, 0], [-2 * math.exp(-0.1), 0]], dtype=F64))


def test_gspo_has_the_gradient_of_the_sequence_ratio() -> None:
    new, old, signed, mask = random_batch(1)
    leaf = new.clone().requires_grad_()
    gap = torch.where(mask, leaf - old, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    ratio = gap.exp()
    plain = torch.maximum(-signed * ratio, -signed * ratio.clamp(0.95, 1.05))
    (plain[:, 0] * (mask.sum(1) > 0)).sum().div(4).backward()  # the mean over the four rows that have tokens
    _, by_token, _ = run("gspo", new, old, signed, mask, "sequence_mean")
    assert leaf.grad is not None
    assert float((by_token - leaf.grad).abs().max()) < 1e-16


def test_cispo_by_hand() -> None:
    new = row(math.log(3), math.log(0.5), 0.1).requires_grad_()
    loss = losses.cispo(new, torch.zeros(1, 3, dtype=F64), row(2.0), full(new), 0.2, 1.5)
    torch.testing.assert_close(loss.value, -2 * row(1.5, 0.8, math.exp(0.1)) * new)
    loss.value.sum().backward()
    torch.testing.assert_close(new.grad, row(-3, -1.6, -2 * math.exp(0.1)))
    assert loss.clipped.tolist() == [[True, True, False]]
    # clip_low 1 is no lower bound at all.
    assert losses.cispo(new, torch.zeros(1, 3, dtype=F64), row(2.0), full(new), 1.0, 1e9).clipped.any().item() is False


def test_topr_by_hand() -> None:
    # Row products 2 x 0.25 = 0.5 and 2 x 3 = 6. Only falling samples are tapered, at most to weight 1.
    new = row(2, 0.25).log().repeat(2, 1)
    new = torch.cat([new, row(2, 3).log(), row(2, 3).log()]).requires_grad_()
    signed = tensor(1, -1, -1, 3)[:, None]
    loss = losses.topr(new, torch.zeros(4, 2, dtype=F64), signed, full(new))
    loss.value.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[-1, -1], [0.5, 0.5], [1, 1], [-3, -3]], dtype=F64))
    assert loss.clipped.any(dim=1).tolist() == [False, False, True, False]


def test_kimi_by_hand() -> None:
    # Sums of log-ratios 0.3 and 0.5: row losses -A sum(new) + tau / 2 sum^2; the square's gradient is tau x sum on every token.
    new = torch.tensor([[0.1, 0.2], [0.5, 9.0]], dtype=F64, requires_grad=True)
    mask = torch.tensor([[True, True], [True, False]])
    loss = losses.kimi(new, torch.zeros(2, 2, dtype=F64), tensor(1, 0)[:, None], mask, 0.4)
    torch.testing.assert_close(loss.value.sum(1), tensor(-0.3 + 0.2 * 0.09, 0.2 * 0.25))
    loss.value.sum().backward()
    torch.testing.assert_close(new.grad, torch.tensor([[-1 + 0.12, -1 + 0.12], [0.2, 0]], dtype=F64))


def test_dppo_and_ipo_by_hand() -> None:
    p, q = row(0.8, 0.3, 0.3, 0.8, 0.5), row(0.5, 0.5, 0.5, 0.5, 0.4)
    signed = row(1, 1, -1, -1, 1)
    # p - q = .3, -.2, -.2, .3, .1: dropped are the risen positive one, and, at bound .15, the fallen negative one.
    new = p.log().requires_grad_()
    loss = losses.dppo(new, q.log(), signed, full(p), 0.15, 0.2)
    torch.testing.assert_close(loss.value, row(0, -0.6, 0, 1.6, -1.25))
    assert loss.clipped.tolist() == [[True, False, True, False, False]]
    loss.value.sum().backward()
    torch.testing.assert_close(new.grad, row(0, -0.6, 0, 1.6, -1.25))
    # The same two, by binary KL: .5 log(.5/.8) + .5 log(.5/.2) = .2231 and .5 log(.5/.3) + .5 log(.5/.7) = .0872.
    torch.testing.assert_close(losses.binary_kl(p.log(), q.log(), full(p))[0, :2], tensor(0.22314355, 0.08717669))
    assert losses.dppo(p.log(), q.log(), signed, full(p), 0.08, 0.2, "kl").clipped.tolist() == [[True, False, True, False, False]]
    assert losses.dppo(p.log(), q.log(), signed, full(p), 0.09, 0.23, "kl").clipped.any().item() is False
    # ipo asks for no sign.
    assert losses.ipo(p.log(), q.log(), signed, full(p), 0.15).clipped.tolist() == [[True, True, True, True, False]]


def test_sapo_by_hand() -> None:
    new = row(2, 2, 1).log().requires_grad_()
    loss = losses.sapo(new, torch.zeros(1, 3, dtype=F64), row(1, -1, 1), full(new), 1.0, 2.0)
    gate = lambda x: 1 / (1 + math.exp(-x))  # noqa: E731
    torch.testing.assert_close(loss.value, row(-gate(1) * 4, gate(2) * 2, -gate(0) * 4))
    loss.value.sum().backward()
    assert new.grad is not None
    assert float(new.grad[0, 2]) == pytest.approx(-1)  # on-policy the gate's slope is 1/4, so the gradient is -A


def test_reinforce_by_hand() -> None:
    new = row(-1.0, -1.0).requires_grad_()
    rollout = row(-1.0 - math.log(1.5), -1.0 - math.log(8))
    loss = losses.reinforce_is(new, rollout, row(2.0), full(rollout), 2.0)
    torch.testing.assert_close(loss.value, row(3.0, 4.0))
    loss.value.sum().backward()
    torch.testing.assert_close(new.grad, row(-3.0, -4.0))  # the weight itself carries no gradient
    assert loss.clipped.tolist() == [[False, True]]
    torch.testing.assert_close(losses.reinforce_is(new, rollout, row(2.0), full(rollout)).value, row(3.0, 16.0))


def test_log_ratio_penalty_is_on_every_loss_token() -> None:
    new = row(0.5, -1, 3).requires_grad_()
    mask = torch.tensor([[True, True, False]])
    found = losses.log_ratio_penalty(new, row(0, 0, math.nan), mask)
    torch.testing.assert_close(found, row(0.25, 1, 0))
    found.sum().backward()
    torch.testing.assert_close(new.grad, row(1, -2, 0))


@pytest.mark.parametrize("name", POLICIES)
def test_without_a_gap_every_policy_is_the_policy_gradient(name: str) -> None:
    """r = 1: the gradient is -A on every token. All the losses differ only off-policy."""
    new, _, signed, mask = random_batch(2)
    _, gradient, clipped = run(name, new, new, signed, mask, "token_sum")
    torch.testing.assert_close(gradient, torch.where(mask, -signed, 0.0))
    assert not clipped.any()


@pytest.mark.parametrize("name", POLICIES)
@pytest.mark.parametrize("kind", AGGREGATIONS)
@pytest.mark.parametrize("seed", [0, 5])
def test_gradients_agree_with_finite_differences(name: str, kind: str, seed: int) -> None:
    new, anchor, signed, mask = random_batch(seed)
    weights = weights_of(mask, kind)
    if name in SURROGATES:
        # A detached weight is a constant of the gradient: by the definition, -A w new with w frozen at its value.
        _, found, _ = run(name, new, anchor, signed, mask, kind)
        weight = POLICIES[name](new, anchor, signed, mask).value / torch.where(mask, -signed * new, 1.0)
        frozen = lambda x: aggregate(-signed * weight * x, mask, weights)  # noqa: E731
        leaf = new.clone().requires_grad_()
        frozen(leaf).backward()
        torch.testing.assert_close(found, leaf.grad)
        assert torch.autograd.gradcheck(frozen, (leaf,))
    else:
        loss = lambda x: aggregate(POLICIES[name](x, anchor, signed, mask).value, mask, weights)  # noqa: E731
        assert torch.autograd.gradcheck(loss, (new.requires_grad_(),))


@pytest.mark.parametrize("name", POLICIES)
def test_the_batches_reach_both_sides_of_every_threshold(name: str) -> None:
    """Otherwise the tests above would say nothing about clips."""
    share = [POLICIES[name](*random_batch(seed)).clipped for seed in (0, 5)]
    if name in ("sapo", "kimi", "reinforce_uncapped"):
        assert not any(one.any() for one in share)
    else:
        assert any(one.any() for one in share)
        assert not all(one.all() for one in share)


@pytest.mark.parametrize("name", POLICIES)
def test_only_today_s_log_probs_have_a_gradient(name: str) -> None:
    new, anchor, signed, mask = random_batch()
    leaves = [new.requires_grad_(), anchor.requires_grad_(), signed.requires_grad_()]
    POLICIES[name](leaves[0], leaves[1], leaves[2].detach(), mask).value.sum().backward()
    assert leaves[0].grad is not None and leaves[0].grad.abs().sum() > 0
    assert leaves[1].grad is None or not leaves[1].grad.any()


@pytest.mark.parametrize("name", POLICIES)
@given(garbage=st.sampled_from([math.nan, math.inf, -math.inf, 1e300]), seed=st.integers(0, 50))
@settings(max_examples=8, deadline=None)
def test_masked_garbage_changes_nothing(name: str, garbage: float, seed: int) -> None:
    new, anchor, signed, mask = random_batch(seed)
    found = []
    for fill in (-1.0, garbage):
        n, o, a = (torch.where(mask, x, fill) for x in (new, anchor, signed.expand_as(mask)))
        found.append(run(name, n, o, a, mask))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize("name", POLICIES)
@given(order=st.permutations(range(5)), cut=st.integers(1, 4), kind=st.sampled_from(AGGREGATIONS))
@settings(max_examples=8, deadline=None)
def test_neither_order_nor_cut_of_the_batch_matters(name: str, order: list[int], cut: int, kind: str) -> None:
    new, anchor, signed, mask = random_batch(4)
    weights = weights_of(mask, kind)
    total, gradient, _ = run(name, new, anchor, signed, mask, kind)
    leaf = new.clone().requires_grad_()
    parts = torch.zeros((), dtype=F64)
    for rows in (order[:cut], order[cut:]):
        share = aggregate(POLICIES[name](leaf[rows], anchor[rows], signed[rows], mask[rows]).value, mask[rows], weights[rows])
        share.backward()
        parts += share.detach()
    torch.testing.assert_close(parts, total, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(leaf.grad, gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", POLICIES)
def test_ratios_far_out_stay_finite(name: str) -> None:
    new = torch.tensor([[0.0, 0.0], [0.0, -700.0]], requires_grad=True)
    anchor, signed = torch.tensor([[-500.0, 500.0], [-300.0, 0.0]]), torch.tensor([[1.0], [-1.0]])
    loss = POLICIES[name](new, anchor, signed, torch.ones(2, 2, dtype=torch.bool))
    loss.value.sum().backward()
    assert new.grad is not None
    assert torch.isfinite(loss.value).all() and torch.isfinite(new.grad).all()


def test_the_clamp_ends_the_gradient_and_may_be_left_out() -> None:
    new = row(5.0).requires_grad_()
    held = losses.ppo(new, row(0.0), row(-1.0), full(new), log_ratio_clamp=2.0).value
    torch.testing.assert_close(held, row(math.exp(2)))
    (held + 0 * new).sum().backward()
    assert new.grad is not None and float(new.grad) == 0
    free = losses.ppo(row(25.0), row(0.0), row(-1.0), full(new), log_ratio_clamp=None).value
    torch.testing.assert_close(free, row(math.exp(25)))
