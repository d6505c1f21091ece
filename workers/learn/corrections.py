"""Off-policy corrections: detached weights on the per-token loss. Called after the policy loss, for every micro-batch."""

from __future__ import annotations

from torch import Tensor

from workers.learn.losses import MAX_LOG_RATIO, masked


def token_tis(old: Tensor, rollout: Tensor, mask: Tensor, cap: float) -> Tensor:
    """(B, T) weights min(exp(old - rollout), cap): truncated importance sampling by token; 0 where masked.

    It multiplies the loss after PPO's clip, and the aggregation's denominator stays the original one. Only with the anchor
    `old`: where the ratio is taken to the rollout policy, the same factor is in it already.
    Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training".
    """
    gap = (masked(old, mask) - masked(rollout, mask)).detach()
    return masked(gap.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp().clamp(max=cap), mask)
