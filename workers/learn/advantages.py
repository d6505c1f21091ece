"""Advantages from outcome rewards, by group. Called once a batch, before any log-prob is computed.

All functions take
    rewards (B,) float: one outcome reward a sample, any value where `valid` is False;
    groups  (B,) int64: the same number for samples of the same prompt;
    valid   (B,) bool:  False where scoring failed. A failed sample is not a reward of 0: mean, standard deviation and
                        group size are those of the survivors, and its own advantage is 0 (its tokens leave the loss too).
and return (B,) advantages of the dtype of `rewards`. A group with a single survivor has nothing to be compared with: 0.
A group of equal rewards gives exactly 0, whatever rounding the mean suffers.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


def grpo(rewards: Tensor, groups: Tensor, valid: Tensor, eps: float = 1e-4) -> Tensor:
    """(R - mean) / (std + eps), std unbiased (n - 1). Shao et al. 2024, arXiv:2402.03300, which leaves the choice of std open;
    verl, SkyRL and TRL take the unbiased one."""
    return _by_group(rewards, groups, valid, lambda values: (values - values.mean()) / (values.std(correction=1) + eps))


def dr_grpo(rewards: Tensor, groups: Tensor, valid: Tensor, eps: float = 0.0) -> Tensor:
    """R - mean: no division, so that easy and hard prompts weigh alike. Liu et al. 2025, arXiv:2503.20783. `eps` is not used."""
    return _by_group(rewards, groups, valid, lambda values: values - values.mean())


def rloo(rewards: Tensor, groups: Tensor, valid: Tensor, eps: float = 0.0) -> Tensor:
    """R_i - mean of the others = n / (n - 1) (R_i - mean). Ahmadian et al. 2024, arXiv:2402.14740. `eps` is not used."""
    return _by_group(rewards, groups, valid, lambda values: (values - values.mean()) * (len(values) / (len(values) - 1)))


ADVANTAGES: dict[str, Callable[[Tensor, Tensor, Tensor, float], Tensor]] = {"grpo": grpo, "dr_grpo": dr_grpo, "rloo": rloo}


def _by_group(rewards: Tensor, groups: Tensor, valid: Tensor, formula: Callable[[Tensor], Tensor]) -> Tensor:
    result = torch.zeros_like(rewards)
    for group in sorted(set(groups.tolist())):
        members = (groups == group) & valid
        values = rewards[members]
        if len(values) > 1 and bool((values != values[0]).any()):
            result[members] = formula(values)
    return result
