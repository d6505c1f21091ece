"""Learning from a teacher: by the tokens drawn (reverse KL as an advantage), or over the full vocabulary (JSD as a loss)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from workers.learn.tensors import log_ratio


def reverse_kl_advantage(student: Tensor, teacher: Tensor, mask: Tensor) -> Tensor:
    """(B, T) teacher - student, detached, 0 where masked: the advantage of on-policy distillation, discount 0.

    Its mean over the student's own tokens is -KL(student || teacher). Both score the very tokens drawn. Agarwal et al. 2023,
    arXiv:2306.13649; Lu 2025, "On-policy distillation"; slime and PRIME-RL.
    """
    return -log_ratio(student, teacher, mask).detach()


def jsd(student: Tensor, teacher: Tensor, beta: float = 0.5) -> Tensor:
    """(N,) generalised Jensen-Shannon divergence of log-distributions (N, V); gradient through `student` alone.

    beta 0: KL(teacher || student). beta 1: KL(student || teacher). Else with M = (1 - beta) student + beta teacher:
    beta KL(teacher || M) + (1 - beta) KL(student || M). GKD, arXiv:2306.13649; the same values as TRL's generalized_jsd_loss.
    """
    teacher = teacher.detach()
    if beta == 0:
        return _kl(teacher, student)
    if beta == 1:
        return _kl(student, teacher)
    middle = torch.logaddexp(student + math.log(1 - beta), teacher + math.log(beta))
    return beta * _kl(teacher, middle) + (1 - beta) * _kl(student, middle)


def _kl(one: Tensor, other: Tensor) -> Tensor:
    """KL(one || other) by row. A token of probability 0 in `one` adds nothing, whatever the other says of it."""
    possible = torch.isfinite(one)
    gap = torch.where(possible, one, torch.zeros_like(one)) - torch.where(possible, other, torch.zeros_like(other))
    return torch.where(possible, one.exp() * gap, torch.zeros_like(one)).sum(dim=-1)
