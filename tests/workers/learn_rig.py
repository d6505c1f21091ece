"""Small batches in float64 for the learning formulas, and every policy loss under one signature."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from workers.learn import losses
from workers.learn.aggregation import token_weights
from workers.learn.losses import TokenLoss

F64 = torch.float64
ROWS, WIDTH = 5, 7
LENGTHS = (7, 3, 0, 1, 5)
PROMPTS = (0, 0, 1, 1, 1)
AGGREGATIONS = ("token_mean", "sequence_mean", "sequence_sum", "sequence_sum_constant", "token_sum", "prompt_mean")
Policy = Callable[[Tensor, Tensor, Tensor, Tensor], TokenLoss]

# new, anchor or rollout, advantages, mask. Thresholds are such that the batches below fall on both sides of them.
POLICIES: dict[str, Policy] = {
    "ppo": losses.ppo,
    "ppo_higher": lambda n, o, a, m: losses.ppo(n, o, a, m, 0.2, 0.28),
    "ppo_dual": lambda n, o, a, m: losses.ppo(n, o, a, m, 0.2, 0.2, 1.3),
    "ppo_capped": lambda n, o, a, m: losses.ppo(n, o, a, m, 0.2, 0.2, None, 1.4),
    "gspo": lambda n, o, a, m: losses.gspo(n, o, a, m, 0.05, 0.05),
    "cispo": lambda n, o, a, m: losses.cispo(n, o, a, m, 0.2, 1.2),
    "topr": losses.topr,
    "kimi": lambda n, o, a, m: losses.kimi(n, o, a, m, 0.7),
    "dppo_tv": lambda n, o, a, m: losses.dppo(n, o, a, m, 0.05, 0.05),
    "dppo_kl": lambda n, o, a, m: losses.dppo(n, o, a, m, 0.01, 0.01, "kl"),
    "ipo": lambda n, o, a, m: losses.ipo(n, o, a, m, 0.05),
    "sapo": losses.sapo,
    "reinforce_is": lambda n, o, a, m: losses.reinforce_is(n, o, a, m, 1.2),
    "reinforce_uncapped": losses.reinforce_is,
}


def tensor(*values: float) -> Tensor:
    return torch.tensor(values, dtype=F64)


def row(*values: float) -> Tensor:
    """(1, T)."""
    return tensor(*values)[None]


def full(values: Tensor) -> Tensor:
    """A mask that hides nothing."""
    return torch.ones_like(values, dtype=torch.bool)


def random_batch(seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """new, anchor, advantages (B, 1) of both signs, ragged mask with an empty row."""
    source = torch.Generator().manual_seed(seed)
    new = -torch.rand(ROWS, WIDTH, generator=source, dtype=F64) * 3
    anchor = new + 0.4 * torch.randn(ROWS, WIDTH, generator=source, dtype=F64)
    advantages = tensor(1.1, -0.7, 0.4, -1.3, 0.6)[:, None]
    return new, anchor, advantages, torch.arange(WIDTH) < torch.tensor(LENGTHS)[:, None]


def weights_of(mask: Tensor, kind: str, empty_samples: str = "skip") -> Tensor:
    return token_weights(mask.sum(dim=1), torch.tensor(PROMPTS), kind, 16, empty_samples)  # type: ignore[arg-type]
