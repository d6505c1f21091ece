"""From per-token losses to one number. Denominators are those of the whole optimizer batch, counted beforehand, so that
the sum over micro-batches is the same however the batch is cut."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from workers.learn.losses import masked


@dataclass(frozen=True)
class Denominators:
    """Counted once an optimizer step, over all its samples.

    tokens: loss tokens (S); sequences: samples with at least one loss token (N+, as verl and OpenRLHF count);
    samples: all scored samples, those with every token masked included (B of Dr. GRPO); max_tokens: Lmax, a run constant.
    """

    tokens: int
    sequences: int
    samples: int
    max_tokens: int


def aggregate(loss: Tensor, mask: Tensor, kind: str, denominators: Denominators) -> Tensor:
    """This micro-batch's share of the batch loss, a scalar. loss, mask: (B, T).

    token_mean             sum(L m) / S                        DAPO, arXiv:2503.14476
    sequence_mean          sum_i (sum_t L m / n_i) / N+        GRPO, arXiv:2402.03300; empty rows are not counted
    sequence_sum_constant  sum(L m) / (B Lmax)                 Dr. GRPO, arXiv:2503.20783; Lmax is not the padded width
    """
    kept = masked(loss, mask)
    if kind == "token_mean":
        return kept.sum() / max(denominators.tokens, 1)
    if kind == "sequence_mean":
        lengths = mask.sum(dim=1).clamp(min=1)
        return (kept.sum(dim=1) / lengths).sum() / max(denominators.sequences, 1)
    if kind == "sequence_sum_constant":
        return kept.sum() / max(denominators.samples * denominators.max_tokens, 1)
    raise ValueError(f"no such aggregation: {kind!r}")
