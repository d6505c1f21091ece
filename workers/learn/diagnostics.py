"""What the log-probs say about the batch, before any rejection hides it. Called once a step, on detached tensors."""

from __future__ import annotations

from torch import Tensor

from workers.learn.losses import masked


def mismatch(trainer: Tensor, rollout: Tensor, mask: Tensor) -> dict[str, float]:
    """How far trainer and engine disagree about the same tokens. Log-probs and mask (B, T); {} without a loss token.

    With w = exp(trainer - rollout), over the S loss tokens:
    kl_mismatch mean(w - 1 - log w), an unbiased, never negative estimate of KL(rollout || trainer) (k3, Schulman 2020);
    mismatch_mean_abs mean |log w|; weight_max max w; ess (sum w)^2 / (S sum w^2), in (0, 1].
    Computed in float64, and w - 1 by expm1: k3 of equal policies is 0, not rounding noise.
    """
    tokens = int(mask.sum())
    if tokens == 0:
        return {}
    gap = (masked(trainer, mask) - masked(rollout, mask)).detach().double()[mask]
    weights = gap.exp()
    return {
        "kl_mismatch": float((gap.expm1() - gap).mean()),
        "mismatch_mean_abs": float(gap.abs().mean()),
        "weight_max": float(weights.max()),
        # Scaled by the largest weight, so that squares can not overflow.
        "ess": float((weights / weights.max()).sum() ** 2 / (tokens * ((weights / weights.max()) ** 2).sum())),
    }


def masked_mean(values: Tensor, mask: Tensor) -> float | None:
    """Mean over loss tokens of (B, T) values (entropies, flags); None without any: no data is not zero."""
    tokens = int(mask.sum())
    return float(masked(values.double(), mask).sum()) / tokens if tokens else None
