"""Policy losses per token. Called for every micro-batch; corrections and aggregation come afterwards.

Shapes: log-probs, advantages and mask are (B, T); advantages may be (B, 1). `new` carries the gradient, and nothing else does;
`anchor` is the denominator of the ratio r = exp(new - anchor). Values at masked positions are never read, be they NaN or
infinite; the loss there is 0. `log_ratio_clamp` holds every log-ratio within +-clamp before exp, with no gradient beyond (None: not
at all, as in TRL, slime, AReaL and PRIME-RL).
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from workers.learn.tensors import MAX_LOG_RATIO, held, log_ratio, masked, row_mean, row_sum


class TokenLoss(NamedTuple):
    """value (B, T), with gradient; clipped (B, T) bool: loss tokens whose gradient the clip removed, or whose weight it cut."""

    value: Tensor
    clipped: Tensor


def ppo(
    new: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
    ratio_cap: float | None = None,
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)). Schulman et al. 2017, arXiv:1707.06347.

    clip_high > clip_low is DAPO's clip-higher (arXiv:2503.14476). dual_clip c > 1 bounds the loss of negative advantages
    at -c A (Ye et al. 2019, arXiv:1912.09729); verl always does so, with c = 3. ratio_cap cuts the unclipped ratio before the
    maximum, whatever the sign of A (TRL's `delta`).
    """
    ratio = held(log_ratio(new, anchor, mask), log_ratio_clamp).exp()
    return _clip(ratio, masked(advantages.expand_as(mask), mask), mask, clip_low, clip_high, dual_clip, ratio_cap)


def gspo(
    new: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 3e-4,
    clip_high: float = 4e-4,
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> TokenLoss:
    """PPO's clip on the row's ratio s_i = exp(mean over the row of new - anchor). Zheng et al. 2025, arXiv:2507.18071.

    In the form GSPO-token, s_it = sg[s_i] exp(new - sg[new]): every token has the row's value and its own gradient. Where the
    advantage is the same along the row this is GSPO's gradient exactly, and it allows advantages by token.
    """
    gap = held(row_mean(log_ratio(new, anchor, mask), mask), log_ratio_clamp).detach()
    inner = masked(new, mask)
    ratio = (gap + inner - inner.detach()).exp()
    return _clip(ratio, masked(advantages.expand_as(mask), mask), mask, clip_low, clip_high, None, None)


def cispo(
    new: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 1.0,
    cap: float = 5.0,
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> TokenLoss:
    """-A sg[clip(r, 1 - clip_low, cap)] new: no token loses its gradient. MiniMax 2025, arXiv:2506.13585.

    cap is the bound itself, as TRL's epsilon_high; verl, slime, SkyRL and ART write it as 1 + eps_high. clip_low 1: no lower bound.
    """
    weight = held(log_ratio(new, anchor, mask).detach(), log_ratio_clamp).exp()
    bounded = weight.clamp(max(0.0, 1 - clip_low), cap)
    return TokenLoss(_score(new, bounded, advantages, mask), (bounded != weight) & mask)


def topr(
    new: Tensor,
    rollout: Tensor,
    advantages: Tensor,
    mask: Tensor,
    cap: float = 1.0,
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> TokenLoss:
    """A >= 0: -A new. A < 0: -A sg[min(product over the row of exp(new - rollout), cap)] new. Le Roux et al. 2025, arXiv:2503.14286."""
    weight = held(row_sum(log_ratio(new, rollout, mask).detach(), mask), log_ratio_clamp).exp().expand_as(mask)
    falling = masked(advantages.expand_as(mask), mask) < 0
    tapered = torch.where(falling, weight.clamp(max=cap), torch.ones_like(weight))
    return TokenLoss(_score(new, tapered, advantages, mask), falling & (weight > cap) & mask)


def kimi(
    new: Tensor, anchor: Tensor, advantages: Tensor, mask: Tensor, tau: float = 1.0, log_ratio_clamp: float | None = MAX_LOG_RATIO
) -> TokenLoss:
    """By row, -A sum_t new + tau / 2 (sum_t new - anchor)^2, spread evenly over the row's n_i tokens as to the square.

    The gradient of Kimi k1.5's squared error (arXiv:2501.12599, section 2.3.2) with tau log Z taken as the group's mean reward;
    the anchor is the policy at the start of the iteration. The square pulls even where A is 0.
    """
    total = row_sum(log_ratio(new, anchor, mask), mask)
    inside = held(total, log_ratio_clamp)
    square = 0.5 * tau * inside**2 / mask.sum(dim=1, keepdim=True).clamp(min=1)
    value = _score(new, torch.ones_like(new), advantages, mask) + masked(square.expand_as(mask), mask)
    return TokenLoss(value, (inside != total) & mask)


def dppo(
    new: Tensor,
    rollout: Tensor,
    advantages: Tensor,
    mask: Tensor,
    drop_low: float = 0.2,
    drop_high: float = 0.2,
    divergence: Literal["tv", "kl"] = "tv",
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> TokenLoss:
    """-keep A rho, rho = exp(new - rollout) without a cap, p = exp(new), q = exp(rollout). arXiv:2602.04879.

    A token is dropped where A > 0 and it has risen too far (tv: p - q > drop_high), or A < 0 and it has fallen too far
    (tv: q - p > drop_low). kl measures KL(Bernoulli(q) || Bernoulli(p)) instead, with the same test of direction.
    """
    signed = masked(advantages.expand_as(mask), mask)
    risen = probability_gap(new, rollout, mask)
    far = risen.abs() if divergence == "tv" else binary_kl(new, rollout, mask)
    dropped = ((signed > 0) & (risen > 0) & (far > drop_high)) | ((signed < 0) & (risen < 0) & (far > drop_low))
    return _dropping(new, rollout, signed, mask, dropped & mask, log_ratio_clamp)


def ipo(
    new: Tensor,
    rollout: Tensor,
    advantages: Tensor,
    mask: Tensor,
    drop_high: float = 0.1,
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> TokenLoss:
    """-keep A rho; a token is dropped where |p - q| > drop_high, whatever the sign of A. PRIME-RL's `ipo`."""
    dropped = probability_gap(new, rollout, mask).abs() > drop_high
    return _dropping(new, rollout, masked(advantages.expand_as(mask), mask), mask, dropped & mask, log_ratio_clamp)


def sapo(
    new: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    mask: Tensor,
    tau: float = 1.0,
    tau_negative: float = 1.05,
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> TokenLoss:
    """-A sigmoid(tau (r - 1)) 4 / tau, a soft gate in place of the clip; tau_negative where A < 0. arXiv:2511.20347."""
    signed = masked(advantages.expand_as(mask), mask)
    ratio = held(log_ratio(new, anchor, mask), log_ratio_clamp).exp()
    slope = torch.where(signed < 0, tau_negative, tau).to(ratio.dtype)
    value = -signed * torch.sigmoid(slope * (ratio - 1)) * 4 / slope
    return TokenLoss(masked(value, mask), torch.zeros_like(mask))


def reinforce_is(
    new: Tensor,
    rollout: Tensor,
    advantages: Tensor,
    mask: Tensor,
    cap: float | None = None,
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> TokenLoss:
    """-A sg[min(exp(new - rollout), cap)] new: REINFORCE with truncated importance weights (as in IMPALA, arXiv:1802.01561).

    The weight already corrects for staleness: no further weight belongs on top. `clipped` marks tokens at the cap, which lose weight
    but keep a gradient.
    """
    weight = held(log_ratio(new, rollout, mask).detach(), log_ratio_clamp).exp()
    bounded = weight if cap is None else weight.clamp(max=cap)
    return TokenLoss(_score(new, bounded, advantages, mask), (bounded != weight) & mask)


def log_ratio_penalty(new: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    """(B, T) (new - rollout)^2 on every loss token, dropped ones too. PRIME-RL's kl_tau is its coefficient."""
    return log_ratio(new, rollout, mask) ** 2


def probability_gap(new: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    """(B, T) p - q, detached: how far a token's probability has risen since it was sampled; 0 where masked."""
    return masked(new.detach().exp(), mask) - masked(rollout.detach().exp(), mask)


def binary_kl(new: Tensor, rollout: Tensor, mask: Tensor) -> Tensor:
    """(B, T) KL(Bernoulli(q) || Bernoulli(p)), q = exp(rollout), p = exp(new), detached: drawn token against all others."""
    log_p, log_q = masked(new.detach(), mask), masked(rollout.detach(), mask)
    tiny = torch.finfo(log_p.dtype).tiny
    q = log_q.exp()
    rest_p, rest_q = (-torch.expm1(log_p)).clamp(min=tiny), (-torch.expm1(log_q)).clamp(min=tiny)
    return masked(q * (log_q - log_p) + rest_q * (rest_q.log() - rest_p.log()), mask)


def _clip(
    ratio: Tensor, signed: Tensor, mask: Tensor, low: float, high: float, dual_clip: float | None, ratio_cap: float | None
) -> TokenLoss:
    plain = -signed * (ratio if ratio_cap is None else ratio.clamp(max=ratio_cap))
    bounded = -signed * ratio.clamp(1 - low, 1 + high)
    clipped = bounded > plain
    if ratio_cap is not None:
        clipped = clipped | (~clipped & (ratio > ratio_cap))
    value = torch.maximum(plain, bounded)
    if dual_clip is not None:
        ceiling = -dual_clip * signed
        over = (signed < 0) & (value > ceiling)
        value = torch.where(over, ceiling, value)
        clipped = clipped | over
    return TokenLoss(masked(value, mask), clipped & mask)


def _score(new: Tensor, weight: Tensor, advantages: Tensor, mask: Tensor) -> Tensor:
    """-A w new, w detached."""
    return masked(-masked(advantages.expand_as(mask), mask) * weight.detach() * masked(new, mask), mask)


def _dropping(new: Tensor, rollout: Tensor, signed: Tensor, mask: Tensor, dropped: Tensor, log_ratio_clamp: float | None) -> TokenLoss:
    ratio = held(log_ratio(new, rollout, mask), log_ratio_clamp).exp()
    return TokenLoss(masked(-signed * ratio, mask & ~dropped), dropped)
