"""Policy losses per token. Called for every micro-batch; aggregation and corrections come afterwards.

Shapes: log-probs, advantages and mask are (B, T); advantages may be (B, 1). `new` carries the gradient; `anchor` is the
detached denominator of the ratio. Values at masked positions are never read, be they NaN or infinite; the loss there is 0.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

# exp(20) = 5e8: beyond it a ratio carries no information, and exp would overflow on the way to inf * 0 in the backward pass.
MAX_LOG_RATIO = 20.0


class TokenLoss(NamedTuple):
    """value (B, T), with gradient; clipped (B, T) bool: loss tokens whose gradient the clip removed."""

    value: Tensor
    clipped: Tensor


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """values where mask, else 0: not a product, since NaN * 0 is NaN, in the gradient too."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def ppo(
    new: Tensor,
    anchor: Tensor,
    advantages: Tensor,
    mask: Tensor,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = None,
) -> TokenLoss:
    """max(-A r, -A clip(r, 1 - clip_low, 1 + clip_high)), r = exp(new - anchor). Schulman et al. 2017, arXiv:1707.06347.

    clip_high > clip_low is DAPO's clip-higher (arXiv:2503.14476). dual_clip c > 1 bounds the loss of negative advantages
    at -c A (Ye et al. 2019, arXiv:1912.09729). The log-ratio is held within +-20, with no gradient beyond.
    """
    advantages = masked(advantages.expand_as(mask), mask)
    ratio = (masked(new, mask) - masked(anchor, mask).detach()).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    plain = -advantages * ratio
    bounded = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    clipped = bounded > plain
    value = torch.maximum(plain, bounded)
    if dual_clip is not None:
        ceiling = -dual_clip * advantages
        over = (advantages < 0) & (value > ceiling)
        value = torch.where(over, ceiling, value)
        clipped = clipped | over
    return TokenLoss(masked(value, mask), clipped & mask)


def reinforce_is(new: Tensor, rollout: Tensor, advantages: Tensor, mask: Tensor, cap: float | None = 2.0) -> TokenLoss:
    """-A sg[min(exp(new - rollout), cap)] new: REINFORCE with truncated importance weights (as in IMPALA, arXiv:1802.01561).

    The weight already corrects for staleness: no further correction belongs on top. `clipped` marks tokens at the cap,
    which lose weight but keep a gradient.
    """
    advantages = masked(advantages.expand_as(mask), mask)
    new = masked(new, mask)
    weight = (new.detach() - masked(rollout, mask)).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    over = torch.zeros_like(mask) if cap is None else weight > cap
    if cap is not None:
        weight = weight.clamp(max=cap)
    return TokenLoss(masked(-advantages * weight * new, mask), over & mask)
