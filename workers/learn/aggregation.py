"""From per-token losses to one number. What a token weighs is settled by the whole optimizer batch, beforehand, so that the
sum over micro-batches, ranks and orders is the same however the batch is cut."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from workers.learn.tensors import masked

Empty = Literal["skip", "count"]


def token_weights(lengths: Tensor, prompts: Tensor, kind: str, max_tokens: int, empty_samples: Empty = "skip") -> Tensor:
    """(B,) float64: the factor of each loss token of a sample. Called once an optimizer step, over all its B scored samples.

    lengths (B,): n_i, a sample's loss tokens, 0 where all are masked; prompts (B,) int64: the same number for samples of a prompt;
    max_tokens: Lmax, the run's longest completion, not the padded width. S = sum n_i, P the number of prompts.

    token_mean             1 / S            DAPO, arXiv:2503.14476
    sequence_mean          1 / (N n_i)      GRPO, arXiv:2402.03300
    sequence_sum           1 / N            verl's seq-mean-token-sum
    sequence_sum_constant  1 / (B Lmax)     Dr. GRPO, arXiv:2503.20783
    token_sum              1
    prompt_mean            1 / (P n_p)      SkyRL; n_p the prompt's loss tokens

    N is the number of samples with loss tokens where empty_samples is skip (verl, OpenRLHF), of all samples where it is count
    (TRL, SkyRL); P likewise for prompts. Dr. GRPO's denominator is a constant by its idea: neither option touches it.
    Raises ValueError for another kind.
    """
    lengths = lengths.double()
    filled = lengths > 0
    one = torch.ones_like(lengths)
    samples = max(int(filled.sum()) if empty_samples == "skip" else len(lengths), 1)
    if kind == "token_mean":
        weights = one / lengths.sum().clamp(min=1)
    elif kind == "sequence_mean":
        weights = one / (samples * lengths.clamp(min=1))
    elif kind == "sequence_sum":
        weights = one / samples
    elif kind == "sequence_sum_constant":
        weights = one / max(len(lengths) * max_tokens, 1)
    elif kind == "token_sum":
        weights = one
    elif kind == "prompt_mean":
        _, place = torch.unique(prompts, return_inverse=True)
        of_prompt = torch.zeros_like(lengths).scatter_add(0, place, lengths)[place]
        counted = prompts[filled] if empty_samples == "skip" else prompts
        weights = one / (max(len(torch.unique(counted)), 1) * of_prompt.clamp(min=1))
    else:
        raise ValueError(f"no such aggregation: {kind!r}")
    return masked(weights, filled)


def aggregate(loss: Tensor, mask: Tensor, weights: Tensor) -> Tensor:
    """This micro-batch's share of the batch loss, a scalar. loss, mask: (B, T); weights (B,): those samples' `token_weights`."""
    return (masked(loss, mask).sum(dim=1) * weights.to(loss.dtype)).sum()
