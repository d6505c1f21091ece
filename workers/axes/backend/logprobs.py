"""Log-probs of given tokens from hidden states, without ever holding the whole (N, vocabulary) matrix.

The distribution is softmax(logits / temperature) over the full vocabulary, or, where the engine recorded what truncated
sampling (top-k, top-p, min-p) had left to choose from, over that set S alone:
    log pi(y) = z_y - logsumexp over j in S of z_j;    d log pi / d z_j = 1[j = y] - softmax_S(z)_j inside S, exactly 0 outside.
Without the record a truncating engine's log-probs are higher than the trainer's by minus the log of the kept mass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_BYTES = 32 * 1024 * 1024  # of logits in working precision, at a time


@dataclass(frozen=True)
class Support:
    """What N tokens were drawn from. A token that `rows` does not name was drawn from the whole vocabulary.

    rows (M,): the token, ascending; ids (M,): one id that it could have been. A token's own id is always among its ids, once.
    """

    rows: Tensor
    ids: Tensor

    def within(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """The part of the tokens start..stop, rows counted from start."""
        first, last = torch.searchsorted(self.rows, torch.tensor([start, stop], device=self.rows.device)).tolist()
        return self.rows[first:last] - start, self.ids[first:last]


@dataclass(frozen=True)
class _Task:
    """Everything of one call that has no gradient."""

    targets: Tensor
    temperature: float
    support: Support | None

    def chunks(self, hidden: Tensor, weight: Tensor, bias: Tensor | None) -> Iterator[tuple[slice, Tensor, Tensor, Tensor]]:
        """By piece of the tokens: where it is, logits z (n, V), log of the whole mass (n, 1), probabilities (n, V).

        The last two may be written to; all three are gone with the next piece.
        """
        work = torch.promote_types(hidden.dtype, torch.float32)
        count, vocabulary = len(hidden), len(weight)
        step = min(count, max(1, CHUNK_BYTES // (vocabulary * work.itemsize)))
        # Two buffers for all chunks: fresh ones of this size would come from the kernel, page by page, every time.
        logits_buffer = torch.empty((step, vocabulary), dtype=work, device=hidden.device)
        chances_buffer = torch.empty_like(logits_buffer)
        for start in range(0, count, step):
            piece = slice(start, min(start + step, count))
            logits, chances = (buffer[: piece.stop - start] for buffer in (logits_buffer, chances_buffer))
            logits.copy_(torch.nn.functional.linear(hidden[piece], weight, bias))
            if self.temperature != 1.0:
                logits.div_(self.temperature)
            highest = logits.amax(dim=1, keepdim=True)
            torch.sub(logits, highest, out=chances).exp_()
            mass = chances.sum(dim=1, keepdim=True)
            yield piece, logits, highest + mass.log(), chances.div_(mass)

    def restrict(self, piece: slice, logits: Tensor, chances: Tensor, logprobs: Tensor) -> None:
        """Replaces, in place, log-probs (n,) and probabilities (n, V) of tokens with a support by those over it alone."""
        if self.support is None:
            return
        rows, ids = self.support.within(piece.start, piece.stop)
        values = logits[rows, ids]
        highest = torch.full_like(logprobs, float("-inf")).scatter_reduce(0, rows, values, "amax")
        above = (values - highest[rows]).exp()
        mass = torch.zeros_like(logprobs).index_add(0, rows, above)
        named = torch.unique_consecutive(rows)
        chances[named] = 0.0
        chances[rows, ids] = above / mass[rows]
        logprobs[named] = logits[named, self.targets[piece][named]] - highest[named] - mass[named].log()

    def surprise(self, piece: slice, chances: Tensor) -> Tensor:
        """one-hot - probabilities, in place of the latter: d logprob / d z."""
        # Subtracted in working precision: near-certain tokens keep their small gradient.
        chances.neg_()
        targets = self.targets[piece, None]
        return chances.scatter_add_(1, targets, torch.ones_like(targets, dtype=chances.dtype))


class _TokenLogprobs(torch.autograd.Function):
    """With a frozen head, d logprob / d hidden, (N, H), is saved in the forward pass: the logits are needed once.

    A head that learns needs them again in the backward pass, for its own gradient hangs on the gradient from above.
    """

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, task: _Task) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device)
        entropy = torch.empty_like(logprobs)
        ctx.learns = any(ctx.needs_input_grad[1:3])
        slope = torch.empty_like(hidden) if ctx.needs_input_grad[0] and not ctx.learns else None
        for piece, logits, total, chances in task.chunks(hidden, weight, bias):
            logprobs[piece] = logits.gather(1, task.targets[piece, None])[:, 0] - total[:, 0]
            entropy[piece] = total[:, 0] - torch.linalg.vecdot(chances, logits)  # H = logsumexp(z) - sum softmax(z) z
            task.restrict(piece, logits, chances, logprobs[piece])
            if slope is not None:
                slope[piece] = task.surprise(piece, chances).to(weight.dtype) @ weight
        if slope is not None and task.temperature != 1.0:
            slope.div_(task.temperature)
        ctx.task = task
        ctx.save_for_backward(*((hidden, weight, bias) if ctx.learns else (slope,)))
        ctx.mark_non_differentiable(entropy)
        return logprobs, entropy

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        if not ctx.learns:
            (slope,) = ctx.saved_tensors
            return (slope * upstream[0][:, None].to(slope.dtype)), None, None, None
        hidden, weight, bias = ctx.saved_tensors
        down = torch.empty_like(hidden)
        for_weight = torch.zeros_like(weight)
        for_bias = None if bias is None else torch.zeros_like(bias)
        for piece, logits, total, chances in ctx.task.chunks(hidden, weight, bias):
            ctx.task.restrict(piece, logits, chances, total[:, 0])
            slope = ctx.task.surprise(piece, chances).mul_(upstream[0][piece, None] / ctx.task.temperature).to(weight.dtype)
            down[piece] = slope @ weight
            for_weight.addmm_(slope.t(), hidden[piece])
            if for_bias is not None:
                for_bias += slope.sum(0)
        return down, for_weight, for_bias, None


def token_logprobs(
    hidden: Tensor, head: torch.nn.Module, targets: Tensor, temperature: float, support: Support | None = None
) -> tuple[Tensor, Tensor]:
    """hidden (N, H), head a Linear (V, H), targets (N,) -> log-probs (N,) with gradient to `hidden` and a head that learns, and
    entropies (N,) without.

    Both in float32, or float64 where the model is. Entropy in nats, of the full vocabulary at `temperature`, with a support, too.
    """
    task = _Task(targets, temperature, support)
    logprobs, entropy = _TokenLogprobs.apply(hidden, head.weight, getattr(head, "bias", None), task)  # type: ignore[no-untyped-call]
    return logprobs, entropy
