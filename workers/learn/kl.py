"""Estimates of KL(policy || reference) from the tokens drawn, x = new - reference. Called for every micro-batch with loss.kl set.

As values on tokens of the policy itself k1 and k3 are unbiased, k2 is not (Schulman 2020, "Approximating KL divergence"). As terms of
a loss it is the gradients that count: k1's has mean zero and pulls nowhere, k2's is that of the reverse KL, k3's is that of the
forward KL. k3_plus has the value of k3 and the gradient of k2 (verl); k3_weighted is k3 times r = exp(new - old), whose
gradient goes through r too and is right off-policy (DeepSeek-V3.2, arXiv:2512.02556; on by default in TRL).
"""

from __future__ import annotations

from typing import Literal

from torch import Tensor

from workers.learn.tensors import held, log_ratio, masked

Estimator = Literal["k1", "k2", "k3", "k3_plus", "k3_weighted"]


def kl(new: Tensor, reference: Tensor, old: Tensor, mask: Tensor, estimator: Estimator = "k3", clamp: float | None = None) -> Tensor:
    """(B, T) estimates, 0 where masked; gradient through `new` alone. `old` is read by k3_weighted only.

    clamp holds the log-ratios before, and the values after, within +-clamp (verl 20 and 10, OpenRLHF and AReaL 10, TRL none).
    Raises ValueError for another estimator.
    """
    gap = held(log_ratio(new, reference, mask), clamp)
    value: Tensor
    if estimator == "k1":
        value = gap
    elif estimator == "k2":
        value = 0.5 * gap**2
    elif estimator == "k3":
        value = _k3(gap)
    elif estimator == "k3_plus":
        square = 0.5 * gap**2
        value = _k3(gap).detach() + square - square.detach()
    elif estimator == "k3_weighted":
        value = _k3(gap) * held(log_ratio(new, old, mask), clamp).exp()
    else:
        raise ValueError(f"no such estimator: {estimator!r}")
    return masked(held(value, clamp), mask)


def _k3(gap: Tensor) -> Tensor:
    """exp(-x) - 1 + x, by expm1: equal policies give 0, not rounding noise."""
    result: Tensor = (-gap).expm1() + gap
    return result
