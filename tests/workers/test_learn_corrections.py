"""Corrections, KL and distillation: the published recipes as identities, values by hand, gradients."""

from __future__ import annotations

import math
from typing import Any, get_args

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from tests.workers.learn_rig import F64, full, random_batch, row, tensor
from workers.contract.formulas import FORMULAS
from workers.contract.learning import Correction
from workers.learn.corrections import Action, Level, correction, decoupled_weight, loglinear_proximal
from workers.learn.distillation import jsd, reverse_kl_advantage
from workers.learn.kl import Estimator, kl

W = row(0.1, 0.9, 1.5, 9.0)
LOG_W = W.log()
ZERO = torch.zeros_like(W)


def apply(recipe: str, old: Tensor, new: Tensor, rollout: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """The weights of a named recipe of the product's page."""
    weight = torch.ones_like(rollout)
    for values in FORMULAS["corrections"][recipe]["corrections"]:
        item = Correction.model_validate(values)
        options: dict[str, Any] = item.model_dump(include={"level", "lo", "hi", "action", "only"})
        weight = weight * correction(new if item.ratio == "new_over_rollout" else old, rollout, advantages, mask, **options).weight
    return weight


def test_actions_by_hand() -> None:
    def of(action: Action, **options: Any) -> tuple[list[float], list[bool]]:
        found = correction(LOG_W, ZERO, row(1.0), full(W), lo=0.5, hi=2.0, action=action, **options)
        return [round(one, 6) for one in found.weight[0].tolist()], found.kept[0].tolist()

    assert of("clip") == ([0.5, 0.9, 1.5, 2.0], [True] * 4)
    assert of("mask") == ([0, 0.9, 1.5, 0], [False, True, True, False])
    assert of("gate") == ([0, 1, 1, 0], [False, True, True, False])
    assert of("drop_row") == ([0] * 4, [False] * 4)
    assert of("drop_row", only="negative") == ([1] * 4, [True] * 4)
    assert of("clip", only="negative") == ([1] * 4, [True] * 4)


def test_levels_by_hand() -> None:
    # Row 0: ratios 2 and 0.25, product 0.5, geometric mean sqrt(0.5); row 1: one token of ratio 3; the third place is masked.
    gap = torch.tensor([[2, 0.25, math.nan], [3, math.nan, math.nan]], dtype=F64).log()
    mask = torch.tensor([[True, True, False], [True, False, False]])

    def of(level: Level, **options: Any) -> Tensor:
        return correction(gap, torch.zeros_like(gap), tensor(1, 1)[:, None], mask, level=level, **{"hi": None, **options}).weight

    torch.testing.assert_close(of("token"), torch.tensor([[2, 0.25, 0], [3, 0, 0]], dtype=F64))
    torch.testing.assert_close(of("sequence"), torch.tensor([[0.5, 0.5, 0], [3, 0, 0]], dtype=F64))
    torch.testing.assert_close(of("geometric"), torch.tensor([[0.5**0.5, 0.5**0.5, 0], [3, 0, 0]], dtype=F64))
    torch.testing.assert_close(of("token", hi=2.5, action="drop_row"), torch.tensor([[1, 1, 0], [0, 0, 0]], dtype=F64))
    torch.testing.assert_close(of("sequence", lo=0.6, action="gate"), torch.tensor([[0, 0, 0], [1, 0, 0]], dtype=F64))


def test_the_recipes_are_what_their_papers_say() -> None:
    new, old, signed, mask = random_batch(6)
    rollout = old + 0.8 * torch.randn(old.shape, generator=torch.Generator().manual_seed(1), dtype=F64)
    ratio = torch.where(mask, (old - rollout).exp(), 0.0)

    def of(recipe: str) -> Tensor:
        return apply(recipe, old, new, rollout, signed, mask)

    torch.testing.assert_close(of("is"), ratio)
    torch.testing.assert_close(of("tis"), ratio.clamp(max=2))
    torch.testing.assert_close(of("mis"), torch.where(ratio <= 2, ratio, 0.0))
    torch.testing.assert_close(of("icepop"), torch.where((ratio >= 0.5) & (ratio <= 5), ratio, 0.0))
    product = torch.where(mask, old - rollout, 0.0).sum(1, keepdim=True).exp()
    torch.testing.assert_close(of("seq_mask"), torch.where(mask & (product <= 3), product, 0.0))
    # OPSM, arXiv:2512.02556: 0 where A < 0 and the mean of mu - new exceeds delta, else 1.
    fallen = torch.where(mask, rollout - new, 0.0).sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)
    torch.testing.assert_close(of("opsm"), torch.where(mask & ~((signed < 0) & (fallen > 0.1)), 1.0, 0.0).double())
    torch.testing.assert_close(of("veto"), mask.double())
    assert 0 < float(of("icepop").count_nonzero()) < float(mask.sum())
    assert 0 < float(of("seq_mask").count_nonzero()) < float(mask.sum())
    assert 0 < float(of("opsm").count_nonzero()) < float(mask.sum())


def test_opsm_drops_a_fallen_negative_row_only() -> None:
    # Mean of rollout - new: 0.2, 0.2, 0.05.
    new = torch.tensor([[-1.2, -1.2], [-1.2, -1.2], [-1.0, -1.1]], dtype=F64)
    rollout = torch.full((3, 2), -1.0, dtype=F64)
    weight = apply("opsm", rollout, new, rollout, tensor(-1, 1, -1)[:, None], full(new))
    assert weight.tolist() == [[0, 0], [1, 1], [1, 1]]


def test_one_outlying_token_vetoes_its_row() -> None:
    old = torch.tensor([[0, 10.0], [0, 0.1]], dtype=F64)
    weight = apply("veto", old, old, torch.zeros(2, 2, dtype=F64), tensor(1, 1)[:, None], full(old))
    assert weight.tolist() == [[0, 0], [1, 1]]


@given(st.floats(0.1, 1), st.floats(1, 5), st.integers(0, 30))
@settings(max_examples=30, deadline=None)
def test_icepop_is_tis_where_it_keeps_and_its_gate_elsewhere(lo: float, hi: float, seed: int) -> None:
    new, old, signed, mask = random_batch(seed)
    options: dict[str, Any] = {"lo": lo, "hi": hi}
    pop, clip, gate = (correction(new, old, signed, mask, action=action, **options) for action in ("mask", "clip", "gate"))  # type: ignore[arg-type]
    assert torch.equal(pop.kept, gate.kept)
    torch.testing.assert_close(pop.weight, clip.weight * gate.weight)


@pytest.mark.parametrize("level", get_args(Level))
@pytest.mark.parametrize("action", get_args(Action))
@pytest.mark.parametrize("garbage", [math.nan, math.inf, -math.inf])
def test_masked_garbage_moves_no_weight_and_weights_have_no_gradient(level: Level, action: Action, garbage: float) -> None:
    new, old, signed, mask = random_batch(3)
    found = []
    for fill in (0.0, garbage):
        n, o, a = (torch.where(mask, x, fill).requires_grad_() for x in (new, old, signed.expand_as(mask)))
        found.append(correction(n, o, a, mask, level=level, lo=0.8, hi=1.2, action=action, only="negative"))
    assert torch.equal(found[0].weight, found[1].weight) and torch.equal(found[0].kept, found[1].kept)
    assert not found[0].weight.requires_grad
    assert not found[0].weight[~mask].any() and not found[0].kept[~mask].any()


def test_decoupled_weight_by_hand() -> None:
    weight = decoupled_weight(row(0, 1.0, math.nan), row(0.5, 0, 0), torch.tensor([[True, True, False]]))
    torch.testing.assert_close(weight, row(math.exp(-0.5), math.e, 0))


def test_the_loglinear_proximal_policy_lies_between_by_version() -> None:
    # Version 5 is trained, so 6 is under way. Token of 5: alpha 0, of 4: 1/2, of 2: 3/4.
    new, rollout = row(-1, -1, -1, math.nan).requires_grad_(), row(-2, -2, -2, math.nan)
    mask = torch.tensor([[True, True, True, False]])
    found = loglinear_proximal(new, rollout, torch.tensor([[5, 4, 2, 0]]), 5, mask)
    torch.testing.assert_close(found, row(-2, -1.5, -1.25, 0))
    assert not found.requires_grad


def test_kl_estimates_by_hand() -> None:
    new, reference, old = row(-1.0, -2.0), row(-1.5, -1.0), row(-1.2, -2.5)  # x = 0.5, -1; new - old = 0.2, 0.5
    mask = full(new)
    third = [math.exp(-0.5) - 0.5, math.e - 2]
    expected: dict[Estimator, list[float]] = {
        "k1": [0.5, -1],
        "k2": [0.125, 0.5],
        "k3": third,
        "k3_plus": third,
        "k3_weighted": [math.exp(0.2) * third[0], math.exp(0.5) * third[1]],
    }
    assert set(expected) == set(get_args(Estimator))
    for estimator, values in expected.items():
        torch.testing.assert_close(kl(new, reference, old, mask, estimator), row(*values))
    torch.testing.assert_close(kl(new, reference, old, mask, "k1", 0.7), row(0.5, -0.7))
    torch.testing.assert_close(kl(new, reference, old, mask, "k3", 0.6), row(third[0], math.exp(0.6) - 1.6))  # x held at -0.6
    torch.testing.assert_close(kl(new, reference, old, mask, "k2", 0.4), row(0.08, 0.08))
    torch.testing.assert_close(kl(row(-3.0), row(0.0), row(0.0), full(row(0)), "k3", 2.5), row(2.5))  # e^2.5 - 3.5 = 8.7, held after
    with pytest.raises(ValueError, match="nonsense"):
        kl(new, reference, old, mask, "nonsense")  # type: ignore[arg-type]


def test_kl_gradients_by_hand() -> None:
    x, r = 0.5, math.exp(0.2)
    expected: dict[Estimator, float] = {
        "k1": 1,
        "k2": x,
        "k3": 1 - math.exp(-x),
        "k3_plus": x,  # k2's
        "k3_weighted": r * (math.exp(-x) + x - 1) + r * (1 - math.exp(-x)),
    }
    for estimator, slope in expected.items():
        new = row(-1.0).requires_grad_()
        kl(new, row(-1.5), row(-1.2), full(new), estimator).sum().backward()
        assert new.grad is not None and float(new.grad) == pytest.approx(slope)


@pytest.mark.parametrize("estimator", [one for one in get_args(Estimator) if one != "k3_plus"])
@pytest.mark.parametrize("clamp", [None, 5.0])
def test_kl_gradients_agree_with_finite_differences(estimator: Estimator, clamp: float | None) -> None:
    new, old, _, mask = random_batch(2)
    reference = new.detach() + 0.3
    assert torch.autograd.gradcheck(lambda x: kl(x, reference, old, mask, estimator, clamp).sum(), (new.requires_grad_(),))


def test_which_estimator_pulls_which_way_in_expectation() -> None:
    """Two tokens, pi = (.8, .2) against (.5, .5), every outcome weighed by its probability: no sampling noise."""
    logits = tensor(math.log(0.8), math.log(0.2)).requires_grad_()
    reference = tensor(0.5, 0.5).log()

    def of(estimator: Estimator) -> tuple[float, Tensor]:
        table = logits.log_softmax(0)
        terms = kl(table[None], reference[None], table.detach()[None], full(table[None]), estimator)[0]
        value = (table.exp().detach() * terms).sum()
        (gradient,) = torch.autograd.grad(value, logits)
        return float(value.detach()), gradient

    table = logits.log_softmax(0)
    true_value = (table.exp() * (table - reference)).sum()
    (true_gradient,) = torch.autograd.grad(true_value, logits)
    for unbiased in ("k1", "k3", "k3_plus", "k3_weighted"):
        assert of(unbiased)[0] == pytest.approx(float(true_value.detach()))
    assert of("k2")[0] != pytest.approx(float(true_value.detach()), rel=1e-3)
    torch.testing.assert_close(of("k1")[1], torch.zeros(2, dtype=F64), rtol=0, atol=1e-12)
    for right in ("k2", "k3_plus", "k3_weighted"):
        torch.testing.assert_close(of(right)[1], true_gradient)  # type: ignore[arg-type]
    forward = (reference.exp() * (reference - logits.log_softmax(0))).sum()
    torch.testing.assert_close(of("k3")[1], torch.autograd.grad(forward, logits)[0])


@pytest.mark.parametrize("estimator", get_args(Estimator))
def test_kl_to_oneself_is_exactly_nothing_and_masked_garbage_stays_out(estimator: Estimator) -> None:
    new, old, _, mask = random_batch(1)
    assert not kl(new, new, new, mask, estimator).any()
    found = []
    for fill in (0.0, math.nan):
        n, o = (torch.where(mask, x, fill) for x in (new, old))
        n.requires_grad_()
        value = kl(n, o, o, mask, estimator)
        value.sum().backward()
        found.append((value.detach(), n.grad))
    assert torch.equal(found[0][0], found[1][0]) and torch.equal(found[0][1], found[1][1])


def test_the_teachers_advantage_by_hand() -> None:
    student = row(-1, -3, math.nan).requires_grad_()
    found = reverse_kl_advantage(student, row(-2, -1, 0), torch.tensor([[True, True, False]]))
    torch.testing.assert_close(found, row(-1, 2, 0))
    assert not found.requires_grad


def test_jsd_by_hand() -> None:
    # S = (.8, .2), T = (.5, .5), M = (.65, .35) at beta 0.5.
    student, teacher = tensor(0.8, 0.2).log()[None], tensor(0.5, 0.5).log()[None]
    to_student = 0.5 * math.log(0.5 / 0.8) + 0.5 * math.log(0.5 / 0.2)
    to_teacher = 0.8 * math.log(0.8 / 0.5) + 0.2 * math.log(0.2 / 0.5)
    assert float(jsd(student, teacher, 0.0)) == pytest.approx(to_student)
    assert float(jsd(student, teacher, 1.0)) == pytest.approx(to_teacher)
    middle = 0.5 * (0.5 * math.log(0.5 / 0.65) + 0.5 * math.log(0.5 / 0.35))
    middle += 0.5 * (0.8 * math.log(0.8 / 0.65) + 0.2 * math.log(0.2 / 0.35))
    assert float(jsd(student, teacher, 0.5)) == pytest.approx(middle)
    # beta 0.1: M = .9 S + .1 T = (.77, .23).
    mostly = 0.1 * (0.5 * math.log(0.5 / 0.77) + 0.5 * math.log(0.5 / 0.23))
    mostly += 0.9 * (0.8 * math.log(0.8 / 0.77) + 0.2 * math.log(0.2 / 0.23))
    assert float(jsd(student, teacher, 0.1)) == pytest.approx(mostly)
    assert float(jsd(student, student, 0.3)) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("beta", [0.0, 0.2, 0.5, 1.0])
def test_jsd_gradients_agree_with_finite_differences(beta: float) -> None:
    source = torch.Generator().manual_seed(4)
    logits, teacher = (torch.randn(3, 5, generator=source, dtype=F64) for _ in range(2))
    table = teacher.log_softmax(-1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: jsd(x.log_softmax(-1), table.detach(), beta), (logits.requires_grad_(),))
    jsd(logits.log_softmax(-1), table, beta).sum().backward()
    assert table.grad is None


@given(st.floats(0, 1), st.integers(0, 1000))
@settings(max_examples=30, deadline=None)
def test_jsd_is_never_negative(beta: float, seed: int) -> None:
    source = torch.Generator().manual_seed(seed)
    one, other = (3 * torch.randn(4, 6, generator=source, dtype=F64) for _ in range(2))
    assert (jsd(one.log_softmax(-1), other.log_softmax(-1), beta) >= -1e-12).all()
