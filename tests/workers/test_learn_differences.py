"""verl's number and TRL's number on the same batch: each convention is an option here, and each difference is one of them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.workers.learn_rig import F64, tensor
from workers.contract.formulas import DIFFERENCES
from workers.learn.advantages import grpo
from workers.learn.aggregation import aggregate, token_weights
from workers.learn.corrections import correction
from workers.learn.kl import kl
from workers.learn.losses import cispo, ppo

# Four samples, at most three tokens each: the third has a token of ratio e^6 and a negative advantage, the fourth is empty.
MASK = torch.tensor([[True, True, True], [True, True, False], [True, False, False], [False, False, False]])
RATIO = torch.tensor([[1.0, 1.5, 0.5], [1.1, 0.9, 1.0], [math.exp(6), 1, 1], [1, 1, 1]], dtype=F64)
NEW, OLD = RATIO.log(), torch.zeros(4, 3, dtype=F64)
ADVANTAGE = tensor(1, -1, -1, 1)[:, None]
ROLLOUT = OLD - torch.tensor([[1.0, 1.0, 4.0], [0.5, 1.0, 1.0], [1, 1, 1], [1, 1, 1]], dtype=F64).log()  # w = 4, 1/2, else 1
# Clipped at .2: -1, -1.2, -.5 | 1.1, .9 | e^6.
LOSSES = [-1.0, -1.2, -0.5, 1.1, 0.9, math.exp(6)]


def total(value: Tensor, kind: str, empty: str = "skip", mask: Tensor = MASK) -> float:
    weights = token_weights(mask.sum(1), torch.arange(4), kind, 3, empty)  # type: ignore[arg-type]
    return float(aggregate(value, mask, weights))


def by_ppo(**options: Any) -> Tensor:
    return ppo(NEW, OLD, ADVANTAGE, MASK, 0.2, 0.2, **options).value


def denominator_of_tokens() -> tuple[float, float, float, float]:
    """verl: mean over six tokens. TRL's grpo: mean of means, over four samples, the empty one too."""
    rows = (-2.7 / 3, 2.0 / 2, math.exp(6))
    return total(by_ppo(), "token_mean"), sum(LOSSES) / 6, total(by_ppo(), "sequence_mean", "count"), sum(rows) / 4


def denominator_of_empty_samples() -> tuple[float, float, float, float]:
    """The same mean over samples: verl leaves the empty one out, TRL counts it."""
    rows = (-2.7 / 3, 2.0 / 2, math.exp(6))
    return total(by_ppo(), "sequence_mean", "skip"), sum(rows) / 3, total(by_ppo(), "sequence_mean", "count"), sum(rows) / 4


def dual_clip() -> tuple[float, float, float, float]:
    """verl bounds the token of ratio 403 at 3, TRL does not."""
    verl = total(by_ppo(dual_clip=3.0), "token_mean")
    return verl, (sum(LOSSES[:5]) + 3) / 6, total(by_ppo(), "token_mean"), sum(LOSSES) / 6


def cap_of_cispo() -> tuple[float, float, float, float]:
    """With "epsilon_high" 0.3 verl's weights reach 1.3, TRL's 0.3. On token 1.5 of the first sample: -A weight new."""
    verl = cispo(NEW, OLD, ADVANTAGE, MASK, 1.0, 1 + 0.3).value[0, 1]
    trl = cispo(NEW, OLD, ADVANTAGE, MASK, 1.0, 0.3).value[0, 1]
    return float(verl), -1.3 * math.log(1.5), float(trl), -0.3 * math.log(1.5)


def cap_of_the_ratio() -> tuple[float, float, float, float]:
    """TRL's delta 4 cuts the ratio 403 to 4; verl's dual clip at 4 gives the same there. With A > 0 they differ: a ratio of 1.1
    under delta 1.05 counts 1.05 in TRL, 1.1 in verl."""
    one, old, plus = tensor(math.log(1.1))[None], torch.zeros(1, 1, dtype=F64), tensor(1)[None]
    mask = torch.ones(1, 1, dtype=torch.bool)
    verl = ppo(one, old, plus, mask, 0.2, 0.2, 1.05).value
    trl = ppo(one, old, plus, mask, 0.2, 0.2, None, 1.05).value
    assert total(by_ppo(dual_clip=4.0), "token_mean") == total(by_ppo(ratio_cap=4.0), "token_mean")
    return float(verl), -1.1, float(trl), -1.05


def rejected_tokens() -> tuple[float, float, float, float]:
    """A gate at w <= 3 rejects the token with w = 4, whose loss is -.5: verl divides by 5, TRL by 6."""
    gate = correction(OLD, ROLLOUT, ADVANTAGE, MASK, hi=3.0, action="gate")
    rest = sum(LOSSES) + 0.5
    value = by_ppo() * gate.weight
    return total(value, "token_mean", mask=gate.kept), rest / 5, total(value, "token_mean"), rest / 6


def truncated_or_masked_by_row() -> tuple[float, float, float, float]:
    """verl's TIS cuts w = 4 to 2; TRL's sequence_mask drops the first sample, whose product 4 exceeds 3."""
    tis = correction(OLD, ROLLOUT, ADVANTAGE, MASK, hi=2.0)
    row = correction(OLD, ROLLOUT, ADVANTAGE, MASK, hi=3.0, action="mask", level="sequence")
    verl = (-1.0 - 1.2 - 0.5 * 2 + 1.1 * 0.5 + 0.9 + math.exp(6)) / 6
    trl = ((1.1 + 0.9) * 0.5 + math.exp(6)) / 6  # the second sample's product is 1/2, on both its tokens
    return total(by_ppo() * tis.weight, "token_mean"), verl, total(by_ppo() * row.weight, "token_mean"), trl


def kl_estimator() -> tuple[float, float, float, float]:
    """verl: k3. TRL: k3 times the ratio to old. Against a reference equal to old: x = log r, k3 = 1/r + log r - 1."""
    third = [1 / r + math.log(r) - 1 for r in RATIO[MASK].tolist()]
    weighted = [r * one for r, one in zip(RATIO[MASK].tolist(), third, strict=True)]
    verl, trl = (total(kl(NEW, OLD, OLD, MASK, kind), "token_mean") for kind in ("k3", "k3_weighted"))  # type: ignore[arg-type]
    return verl, sum(third) / 6, trl, sum(weighted) / 6


def singletons() -> tuple[float, float, float, float]:
    """One survivor of reward 0.7: verl takes mean 0 and deviation 1; in TRL it is its own mean."""
    rewards, groups, valid = tensor(0.7, math.nan), torch.tensor([0, 0]), torch.tensor([True, False])
    verl, trl = (grpo(rewards, groups, valid, valid.long(), 1e-6, kind)[0] for kind in ("raw", "zero"))  # type: ignore[arg-type]
    return float(verl), 0.7, float(trl), 0.0


def epsilon() -> tuple[float, float, float, float]:
    """Rewards 0 and 0.001: mean .0005, deviation .001 / sqrt(2)."""
    rewards, groups = tensor(0, 0.001), torch.tensor([0, 0])
    everyone = torch.tensor([True, True])
    verl, trl = (float(grpo(rewards, groups, everyone, everyone.long(), eps)[1]) for eps in (1e-6, 1e-4))
    deviation = 0.001 / math.sqrt(2)
    return verl, 0.0005 / (deviation + 1e-6), trl, 0.0005 / (deviation + 1e-4)


def overflow_guard() -> tuple[float, float, float, float]:
    """A log-ratio of 25 with A = -1: verl holds it at 20."""
    new, old, signed, mask = tensor(25)[None], tensor(0)[None], tensor(-1)[None], torch.ones(1, 1, dtype=torch.bool)
    verl, trl = (float(ppo(new, old, signed, mask, log_ratio_clamp=clamp).value) for clamp in (20.0, None))
    return verl, math.exp(20), trl, math.exp(25)


# (topic in the page's table, what verl computes, its arithmetic, what TRL computes, its arithmetic)
CASES: list[tuple[str, Callable[[], tuple[float, float, float, float]]]] = [
    ("Denominator", denominator_of_tokens),
    ("Denominator", denominator_of_empty_samples),
    ("Dual clip", dual_clip),
    ("Ratio cap", cap_of_cispo),
    ("Ratio cap", cap_of_the_ratio),
    ("Rejected tokens", rejected_tokens),
    ("Direction and bounds of the importance weight", truncated_or_masked_by_row),
    ("KL estimator", kl_estimator),
    ("Lonely samples", singletons),
    ("Epsilon of the deviation", epsilon),
    ("Overflow guard", overflow_guard),
]


@pytest.mark.parametrize(("topic", "case"), CASES, ids=[case.__name__ for _, case in CASES])
def test_why_verl_and_trl_differ(topic: str, case: Callable[[], tuple[float, float, float, float]]) -> None:
    verl, verl_by_hand, trl, trl_by_hand = case()
    assert verl == pytest.approx(verl_by_hand)
    assert trl == pytest.approx(trl_by_hand)
    assert verl != pytest.approx(trl, rel=1e-3)
    assert topic in {one["topic"] for one in DIFFERENCES}


def test_holes_in_rows_change_nothing_here() -> None:
    """The last row of the page's table: one number a sample, so a masked token in the middle only leaves the loss."""
    holes = torch.tensor([[True, False, True]])
    value = ppo(NEW[:1], OLD[:1], ADVANTAGE[:1], holes).value
    torch.testing.assert_close(value, torch.tensor([[-1.0, 0, -0.5]], dtype=F64))
    assert {one["topic"] for one in DIFFERENCES} == {topic for topic, _ in CASES} | {"Holes in rows"}
