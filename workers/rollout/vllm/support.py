"""Which tokens truncated sampling left: those of vLLM's likeliest whose processed log-prob is not minus infinity.

vLLM 0.32 tells it outright only in its second model runner, which needs a GPU; this way is the same in both. It needs a top-k, which
bounds how many are left.
"""

from __future__ import annotations

from math import inf
from typing import Protocol

from workers.contract.errors import EngineError
from workers.records import SampleRequest

TIED = 64  # tokens as likely as the last of top-k are left, too: logits in bfloat16 often are


class Told(Protocol):
    """vLLM's FlatLogprobs: of position i, the drawn token and then the likeliest, from start_indices[i] to end_indices[i]."""

    start_indices: list[int]
    end_indices: list[int]
    token_ids: list[int]
    logprobs: list[float]


def asked(top_k: int, vocabulary: int) -> int:
    """How many log-probs a token show everything that `top_k` leaves."""
    return min(top_k + TIED, vocabulary)


def kept(told: Told, request: SampleRequest, vocabulary: int) -> list[list[int]]:
    """By position, as in `Rollout.support`. Raises EngineError where more were left than vLLM was asked for."""
    left = []
    for start, end in zip(told.start_indices, told.end_indices, strict=True):
        likeliest = told.logprobs[start + 1 : end]
        if likeliest[-1] > -inf and len(likeliest) < vocabulary:
            raise EngineError(
                f"more than {TIED} tokens are as likely as the last of top-k: vLLM does not tell which it left",
                field="sampling.top_k",
                value=request.top_k,
                cure="set replay.sampling_mask to false, or rollout.engine to torch",
            )
        ids = zip(told.token_ids[start:end], told.logprobs[start:end], strict=True)
        found = list(dict.fromkeys(token for token, logprob in ids if logprob > -inf))
        left.append(found if len(found) < vocabulary else [])
    return left
