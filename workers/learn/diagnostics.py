"""What the log-probs say about the batch, before any rejection hides it. Called once a step, on detached tensors."""

from __future__ import annotations

from torch import Tensor

from workers.learn.tensors import masked, row_mean, row_sum


def mismatch(trainer: Tensor, rollout: Tensor, mask: Tensor) -> dict[str, float]:
    """How far trainer and engine disagree about the same tokens. Log-probs and mask (B, T); {} without a loss token.

    With w = exp(trainer - rollout), over the S loss tokens; rows without one are left out:
    kl_mismatch            mean(w - 1 - log w), unbiased for KL(rollout || trainer) and never negative (k3, Schulman 2020)
    kl_mismatch_k1         mean(-log w), unbiased for the same, and may be negative
    mismatch_mean_abs      mean |log w|
    weight_mean, weight_max  of w
    ess, ess_sequence      (sum w)^2 / (S sum w^2) in (0, 1]; the same over the rows' products of w
    chi2                   mean w^2 - 1
    perplexity_gap         mean over rows of (mean rollout - mean trainer); perplexity_ratio the mean of its exp
    probability_gap_max    max |exp(trainer) - exp(rollout)|
    Computed in float64, and w - 1 by expm1: k3 of equal policies is 0, not rounding noise.
    """
    tokens = int(mask.sum())
    if tokens == 0:
        return {}
    trainer, rollout = masked(trainer.detach().double(), mask), masked(rollout.detach().double(), mask)
    gaps = trainer - rollout
    gap = gaps[mask]
    weights = gap.exp()
    filled = mask.any(dim=1)
    by_row = -row_mean(gaps, mask)[filled, 0]
    return {
        "kl_mismatch": float((gap.expm1() - gap).mean()),
        "kl_mismatch_k1": float(-gap.mean()),
        "mismatch_mean_abs": float(gap.abs().mean()),
        "weight_mean": float(weights.mean()),
        "weight_max": float(weights.max()),
        "ess": effective_share(gap),
        "ess_sequence": effective_share(row_sum(gaps, mask)[filled, 0]),
        "chi2": float((2 * gap).exp().mean() - 1),
        "perplexity_gap": float(by_row.mean()),
        "perplexity_ratio": float(by_row.exp().mean()),
        "probability_gap_max": float((trainer[mask].exp() - rollout[mask].exp()).abs().max()),
    }


def effective_share(log_weights: Tensor) -> float:
    """(sum w)^2 / (n sum w^2) of n log-weights, scaled by the largest, so that squares can not overflow."""
    weights = (log_weights - log_weights.max()).exp()
    return float(weights.sum() ** 2 / (len(weights) * (weights**2).sum()))


def masked_mean(values: Tensor, mask: Tensor) -> float | None:
    """Mean over loss tokens of (B, T) values (entropies, flags); None without any: no data is not zero."""
    tokens = int(mask.sum())
    return float(masked(values.double(), mask).sum()) / tokens if tokens else None
