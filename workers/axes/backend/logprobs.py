"""Log-probs of given tokens from hidden states, without ever holding the whole (N, vocabulary) matrix.

The distribution is softmax(logits / temperature) over the full vocabulary. Where sampling truncates (top-k, top-p, min-p),
the engine's log-probs are of the truncated distribution, and the trainer, which does not know the kept set, differs from them
by the log of the kept mass; the token correction caps what follows from that.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 32 * 1024 * 1024  # of logits in working precision, at a time


class _TokenLogprobs(torch.autograd.Function):
    """Saves d logprob / d hidden, (N, H), in the forward pass: the logits are needed once, not again in the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, targets: Tensor, temperature: float
    ) -> tuple[Tensor, Tensor]:
        work = torch.promote_types(hidden.dtype, torch.float32)
        count, vocabulary = len(hidden), len(weight)
        logprobs = torch.empty(count, dtype=work, device=hidden.device)
        entropy = torch.empty_like(logprobs)
        wanted = ctx.needs_input_grad[0]
        slope = torch.empty_like(hidden) if wanted else None
        step = min(count, max(1, CHUNK_BYTES // (vocabulary * work.itemsize)))
        # Two buffers for all chunks: fresh ones of this size would come from the kernel, page by page, every time.
        logits_buffer = torch.empty((step, vocabulary), dtype=work, device=hidden.device)
        chances_buffer = torch.empty_like(logits_buffer)
        for start in range(0, count, step):
            piece = slice(start, min(start + step, count))
            logits, chances = (buffer[: piece.stop - start] for buffer in (logits_buffer, chances_buffer))
            logits.copy_(torch.nn.functional.linear(hidden[piece], weight, bias)).div_(temperature)
            highest = logits.amax(dim=1, keepdim=True)
            torch.sub(logits, highest, out=chances).exp_()
            mass = chances.sum(dim=1, keepdim=True)
            total = highest + mass.log()
            chances.div_(mass)
            logprobs[piece] = logits.gather(1, targets[piece, None])[:, 0] - total[:, 0]
            # H = logsumexp(z) - sum softmax(z) z; a dot product by row needs no third matrix
            entropy[piece] = total[:, 0] - torch.bmm(chances[:, None, :], logits[:, :, None])[:, 0, 0]
            if slope is not None:
                # (one-hot - softmax) is subtracted in working precision: near-certain tokens keep their small gradient
                chances.neg_()
                chances.scatter_add_(1, targets[piece, None], torch.ones_like(targets[piece, None], dtype=work))
                slope[piece] = (chances.to(weight.dtype) @ weight).div_(temperature)
        ctx.save_for_backward(slope)
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        (slope,) = ctx.saved_tensors
        return (slope * upstream[0][:, None].to(slope.dtype)), None, None, None, None


def token_logprobs(hidden: Tensor, head: torch.nn.Module, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """hidden (N, H), head a frozen Linear (V, H), targets (N,) -> log-probs (N,) with gradient to `hidden`, entropies (N,) without.

    Both in float32, or float64 where the model is. Entropy in nats, of the full vocabulary at `temperature`.
    """
    logprobs, entropy = _TokenLogprobs.apply(hidden, head.weight, getattr(head, "bias", None), targets, temperature)  # type: ignore[no-untyped-call]
    return logprobs, entropy
