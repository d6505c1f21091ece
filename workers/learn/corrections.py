"""Off-policy corrections: detached weights and gates on the per-token loss. Called after the policy loss, for every micro-batch.

The ratio is always trainer over engine: w = exp(trainer - rollout). With the right numbers this is
    IS       token clip, no bounds                  TIS      token clip, hi 2 (Yao et al. 2025, "off-policy RL" notes)
    MIS, IcePop  token mask, lo 0.5, hi 5 (Ring-1T report)  seq_mask  sequence mask, hi 3 (TRL's default)
    OPSM     geometric drop_row of new over rollout, negative only, lo exp(-delta) (DeepSeek-V3.2, arXiv:2512.02556)
    veto     token drop_row with wide bounds: one outlying token drops its sample (verl)
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from workers.learn.tensors import MAX_LOG_RATIO, held, log_ratio, row_mean, row_sum

Level = Literal["token", "sequence", "geometric"]
Action = Literal["clip", "mask", "gate", "drop_row"]


class Weighed(NamedTuple):
    """weight (B, T): factor of each token's loss, 0 at rejected and masked tokens, no gradient; kept (B, T) bool: loss tokens
    that were not rejected. A clipped token is kept."""

    weight: Tensor
    kept: Tensor


def correction(
    trainer: Tensor,
    rollout: Tensor,
    advantages: Tensor,
    mask: Tensor,
    *,
    level: Level = "token",
    lo: float | None = None,
    hi: float | None = 2.0,
    action: Action = "clip",
    only: Literal["all", "negative"] = "all",
    log_ratio_clamp: float | None = MAX_LOG_RATIO,
) -> Weighed:
    """One correction by w = exp(trainer - rollout). trainer, rollout, mask (B, T); advantages (B, T) or (B, 1).

    level: token, each its own w; sequence, the product over a row's loss tokens; geometric, its geometric mean.
    action: clip, weigh by w held within [lo, hi]; mask, weigh by w inside the bounds and 0 outside; gate, 1 inside and 0 outside;
    drop_row, 1, or 0 for a whole row in which any loss token's value is outside.
    only negative: rows whose mean advantage over loss tokens is under 0; every other row keeps weight 1.
    """
    gap = log_ratio(trainer, rollout, mask).detach()
    if level == "sequence":
        gap = row_sum(gap, mask).expand_as(gap)
    elif level == "geometric":
        gap = row_mean(gap, mask).expand_as(gap)
    weight = held(gap, log_ratio_clamp).exp()
    low, high = (0.0 if lo is None else lo), (float("inf") if hi is None else hi)
    outside = ((weight < low) | (weight > high)) & mask
    if action == "drop_row":
        outside = outside.any(dim=1, keepdim=True).expand_as(mask)
    if action == "clip":
        outside = torch.zeros_like(mask)
        weight = weight.clamp(low, high)
    elif action != "mask":
        weight = torch.ones_like(weight)
    if only == "negative":
        touched = row_mean(advantages.expand_as(mask), mask) < 0
        outside = outside & touched
        weight = torch.where(touched, weight, torch.ones_like(weight))
    kept = mask & ~outside
    return Weighed(torch.where(kept, weight, torch.zeros_like(weight)), kept)


def decoupled_weight(proximal: Tensor, rollout: Tensor, mask: Tensor, log_ratio_clamp: float | None = MAX_LOG_RATIO) -> Tensor:
    """(B, T) exp(proximal - rollout), detached, 0 where masked: the weight of decoupled PPO, whose clip is on new over proximal.
    Hilton et al. 2022, arXiv:2110.00641; AReaL, arXiv:2505.24298."""
    weight = held(log_ratio(proximal, rollout, mask).detach(), log_ratio_clamp).exp()
    return torch.where(mask, weight, torch.zeros_like(weight))


def loglinear_proximal(new: Tensor, rollout: Tensor, versions: Tensor, current: int, mask: Tensor) -> Tensor:
    """(B, T) proximal log-probs without a forward pass: rollout + alpha (new - rollout), detached.

    alpha = (v_prox - v_token) / (v_theta - v_token), where v_prox = current, the version at the start of the update, and
    v_theta = current + 1, the version under way. versions (B, T) int64: of each token. A token of the current version has alpha 0:
    the policy that sampled it is the proximal one. AReaL's prox_logp_method "loglinear".
    """
    lag = (current - versions).clamp(min=0).to(new.dtype)
    gap = log_ratio(new, rollout, mask).detach()
    start = torch.where(mask, rollout.to(new.dtype), torch.zeros_like(new)).detach()
    return start + lag / (lag + 1) * gap
