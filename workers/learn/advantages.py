"""Advantages from outcome rewards. Called once a batch, before any log-prob is computed.

All functions take
    rewards (B,) float: one outcome reward a sample, any value where `valid` is False;
    groups  (B,) int64: the same number for samples of the same prompt;
    valid   (B,) bool:  False where scoring failed. A failed sample is not a reward of 0: means, deviations and group size
                        are those of the survivors, and its own advantage is 0 (its tokens leave the loss too);
    lengths (B,) int64: tokens of the sample; read by opo (completion tokens) and by the two that whiten (loss tokens);
    eps:                added to a deviation or mean that divides;
    singletons:         the advantage of a survivor that has no other to be compared with: "zero", or "raw", its reward, which
                        is what verl's and SkyRL's GRPO give it (they take mean 0 and deviation 1);
and return (B,) advantages of the dtype of `rewards`. A group of equal rewards gives exactly 0, whatever rounding the mean
suffers; so does a batch of equal rewards where advantages are whitened over the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

Singletons = Literal["zero", "raw"]
Advantage = Callable[[Tensor, Tensor, Tensor, Tensor, float, Singletons], Tensor]


def grpo(rewards: Tensor, groups: Tensor, valid: Tensor, lengths: Tensor, eps: float = 1e-4, singletons: Singletons = "zero") -> Tensor:
    """(R - mean) / (std + eps), std unbiased (n - 1). Shao et al. 2024, arXiv:2402.03300, which leaves the choice of std open;
    verl, SkyRL and TRL take the unbiased one, with eps 1e-6, 1e-6 and 1e-4."""
    return _by_group(rewards, groups, valid, singletons, lambda rows: _centred(rewards[rows]) / (rewards[rows].std(correction=1) + eps))


def dr_grpo(rewards: Tensor, groups: Tensor, valid: Tensor, lengths: Tensor, eps: float = 0.0, singletons: Singletons = "zero") -> Tensor:
    """R - mean: no division, so that easy and hard prompts weigh alike. Liu et al. 2025, arXiv:2503.20783. `eps` is not used."""
    return _by_group(rewards, groups, valid, singletons, lambda rows: _centred(rewards[rows]))


def rloo(rewards: Tensor, groups: Tensor, valid: Tensor, lengths: Tensor, eps: float = 0.0, singletons: Singletons = "zero") -> Tensor:
    """R_i - mean of the others = n / (n - 1) (R_i - mean). Ahmadian et al. 2024, arXiv:2402.14740. `eps` is not used."""
    return _by_group(rewards, groups, valid, singletons, lambda rows: _centred(rewards[rows]) * (int(rows.sum()) / (int(rows.sum()) - 1)))


def batch_std(
    rewards: Tensor, groups: Tensor, valid: Tensor, lengths: Tensor, eps: float = 1e-4, singletons: Singletons = "zero"
) -> Tensor:
    """(R - mean of the group) / (std of the batch + eps), std unbiased over every survivor. TRL's scale_rewards="batch"."""
    survivors = rewards[valid]
    # Inside the group's formula: a raw reward is no deviation, and would be divided by `eps` alone where all rewards are equal.
    return _by_group(rewards, groups, valid, singletons, lambda rows: _centred(rewards[rows]) / (survivors.std(correction=1) + eps))


def opo(rewards: Tensor, groups: Tensor, valid: Tensor, lengths: Tensor, eps: float = 0.0, singletons: Singletons = "zero") -> Tensor:
    """R - sum(l R) / sum(l), the baseline of least variance where gradients grow with length. Hao et al. 2025, arXiv:2505.23585.
    `eps` is not used."""

    def formula(rows: Tensor) -> Tensor:
        share = lengths[rows].to(rewards.dtype)
        return rewards[rows] - (share * rewards[rows]).sum() / share.sum().clamp(min=1)

    return _by_group(rewards, groups, valid, singletons, formula)


def max_rl(rewards: Tensor, groups: Tensor, valid: Tensor, lengths: Tensor, eps: float = 1e-4, singletons: Singletons = "zero") -> Tensor:
    """(R - mean) / (mean + eps): hard prompts weigh more, as under maximum likelihood. For rewards of 0 and more; SkyRL's MaxRL."""
    return _by_group(rewards, groups, valid, singletons, lambda rows: _centred(rewards[rows]) / (rewards[rows].mean() + eps))


def reinforce_pp(
    rewards: Tensor, groups: Tensor, valid: Tensor, lengths: Tensor, eps: float = 1e-4, singletons: Singletons = "zero"
) -> Tensor:
    """(R - mean) / sqrt(var + eps^2), both over all loss tokens of the batch, var unbiased. Hu 2025, arXiv:2501.03262, with gamma 1.

    eps 1e-4 is the 1e-8 under the root in verl and OpenRLHF. Groups play no part, so there are no singletons.
    """
    return _whitened(rewards, valid, lengths, eps)


def reinforce_pp_baseline(
    rewards: Tensor, groups: Tensor, valid: Tensor, lengths: Tensor, eps: float = 1e-4, singletons: Singletons = "zero"
) -> Tensor:
    """The group's mean is taken off, then whitened as in `reinforce_pp`."""
    return _whitened(dr_grpo(rewards, groups, valid, lengths, eps, singletons), valid, lengths, eps)


ADVANTAGES: dict[str, Advantage] = {
    "grpo": grpo,
    "dr_grpo": dr_grpo,
    "rloo": rloo,
    "batch_std": batch_std,
    "reinforce_pp": reinforce_pp,
    "reinforce_pp_baseline": reinforce_pp_baseline,
    "opo": opo,
    "max_rl": max_rl,
}


def overlong(lengths: Tensor, max_tokens: int, zone: int) -> Tensor:
    """DAPO's soft punishment, added to the reward before advantages: 0 up to max_tokens - zone, then falling linearly to -1 at
    max_tokens, -1 beyond. lengths (B,): completion tokens. Yu et al. 2025, arXiv:2503.14476, section 3.4. Returns float64."""
    return ((max_tokens - zone - lengths.double()) / zone).clamp(-1.0, 0.0)


def _centred(values: Tensor) -> Tensor:
    return values - values.mean()


def _by_group(rewards: Tensor, groups: Tensor, valid: Tensor, singletons: Singletons, formula: Callable[[Tensor], Tensor]) -> Tensor:
    """formula: from a (B,) bool that marks a group's survivors to their advantages."""
    result = torch.zeros_like(rewards)
    for group in sorted(set(groups.tolist())):
        members = (groups == group) & valid
        values = rewards[members]
        if len(values) == 1 and singletons == "raw":
            result[members] = values
        elif len(values) > 1 and bool((values != values[0]).any()):
            result[members] = formula(members)
    return result


def _whitened(values: Tensor, valid: Tensor, lengths: Tensor, eps: float) -> Tensor:
    result = torch.zeros_like(values)
    counted = valid & (lengths > 0)
    some, share = values[counted], lengths[counted].to(values.dtype)
    if len(some) == 0 or not bool((some != some[0]).any()):
        return result
    tokens = share.sum()
    mean = (share * some).sum() / tokens
    variance = (share * (some - mean) ** 2).sum() / (tokens - 1)
    result[counted] = (some - mean) / (variance + eps**2).sqrt()
    return result
