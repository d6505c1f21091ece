"""What every formula is made of: values at loss tokens only, log-ratios, sums and means over a row. Shapes are (B, T)."""

from __future__ import annotations

import torch
from torch import Tensor

# exp(20) = 5e8: beyond it a ratio carries no information, and exp would overflow on the way to inf * 0 in the backward pass.
MAX_LOG_RATIO = 20.0


def masked(values: Tensor, mask: Tensor) -> Tensor:
    """values where mask, else 0: not a product, since NaN * 0 is NaN, in the gradient too."""
    return torch.where(mask, values, torch.zeros((), dtype=values.dtype, device=values.device))


def held(values: Tensor, bound: float | None) -> Tensor:
    """values within +-bound, with no gradient beyond; unchanged where bound is None."""
    return values if bound is None else values.clamp(-bound, bound)


def log_ratio(upper: Tensor, lower: Tensor, mask: Tensor) -> Tensor:
    """(B, T) upper - lower at loss tokens, 0 elsewhere. The gradient goes through `upper` alone."""
    return masked(upper, mask) - masked(lower, mask).detach()


def row_sum(values: Tensor, mask: Tensor) -> Tensor:
    """(B, 1) sum over a row's loss tokens; 0 for a row without any."""
    return masked(values, mask).sum(dim=1, keepdim=True)


def row_mean(values: Tensor, mask: Tensor) -> Tensor:
    """(B, 1) mean over a row's loss tokens; 0 for a row without any."""
    return row_sum(values, mask) / mask.sum(dim=1, keepdim=True).clamp(min=1)
