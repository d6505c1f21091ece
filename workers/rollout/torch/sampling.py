"""Drawing tokens, with the log-prob of the distribution drawn from, renormalised over what truncation kept, and the kept ids.

A token's random number is a hash of its request's key and its position in the completion, so it depends neither on what
else runs nor on the order in which requests came. Order of truncation: top-k, then top-p over what is left, then min-p.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy
import numpy.typing
import torch

# From logits [n, vocabulary], temperatures [n, 1] float32 above 0 and numbers [n] float64 in (0, 1): tokens [n] int64 and their
# log-probs [n] float32 under the whole distribution.
Draw = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], tuple[torch.Tensor, torch.Tensor]]

_BLOCK_ROWS = 8  # rows softmaxed at a time: their probabilities stay in the core's cache while chunk sums are taken
_CANDIDATES = 512
_MASK = (1 << 64) - 1


@dataclass(slots=True)
class Plan:
    """How each row of a batch is to be drawn. Lists have one entry a row; position counts generated tokens from 0."""

    keys: list[int]
    positions: list[int]
    temperatures: list[float]
    top_ks: list[int]
    top_ps: list[float]
    min_ps: list[float]


def uniforms(keys: list[int], positions: list[int]) -> torch.Tensor:
    """One number in (0, 1) a row, float64: splitmix64 of the key, then of the position."""
    with numpy.errstate(over="ignore"):
        state = _mix(numpy.array([key & _MASK for key in keys], dtype=numpy.uint64))
        step = (numpy.array(positions, dtype=numpy.uint64) + numpy.uint64(1)) * numpy.uint64(0x9E3779B97F4A7C15)
        bits = _mix(state + step) >> numpy.uint64(11)
    return torch.from_numpy((bits.astype(numpy.float64) + 0.5) * 2.0**-53)


def _mix(state: numpy.typing.NDArray[numpy.uint64]) -> numpy.typing.NDArray[numpy.uint64]:
    state = (state ^ (state >> numpy.uint64(30))) * numpy.uint64(0xBF58476D1CE4E5B9)
    state = (state ^ (state >> numpy.uint64(27))) * numpy.uint64(0x94D049BB133111EB)
    return state ^ (state >> numpy.uint64(31))


def truncates(temperature: float, top_k: int, top_p: float, min_p: float) -> bool:
    """Whether a draw with these settings leaves part of the vocabulary out."""
    return temperature == 0 or top_k > 0 or top_p < 1 or min_p > 0


def draw(
    logits: torch.Tensor, plan: Plan, supports: list[list[int]] | None = None, whole: Draw | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [n] int64 and log-probs [n] float32 from logits [n, vocabulary]. Temperature 0 is greedy, with log-prob 0.

    Where a list of n lists is given as `supports`, the ids that truncation left to row i are appended to supports[i], the drawn
    one always among them; a row without truncation gets none, which stands for the whole vocabulary. `whole` draws the rows
    without truncation; plain torch does if it is not given.
    """
    draw_whole = whole or draw_plainly
    numbers = uniforms(plan.keys, plan.positions)
    given = zip(plan.temperatures, plan.top_ks, plan.top_ps, plan.min_ps, strict=True)
    cut = [row for row, options in enumerate(given) if truncates(*options)]
    temperatures = torch.tensor(plan.temperatures, dtype=torch.float32).view(-1, 1)
    if not cut:
        return draw_whole(logits, temperatures, numbers)
    tokens = torch.empty(logits.shape[0], dtype=torch.int64)
    logprobs = torch.empty(logits.shape[0], dtype=torch.float32)
    rest = sorted(set(range(logits.shape[0])) - set(cut))
    if rest:
        tokens[rest], logprobs[rest] = draw_whole(logits[rest], temperatures[rest], numbers[rest])
    top_k = torch.tensor([1 if plan.temperatures[row] == 0 else plan.top_ks[row] or logits.shape[1] for row in cut])
    top_p = torch.tensor([plan.top_ps[row] for row in cut])
    min_p = torch.tensor([plan.min_ps[row] for row in cut])
    scaled = logits[cut].float() / torch.where(temperatures[cut] == 0, 1.0, temperatures[cut])
    tokens[cut], logprobs[cut], ids, keep = _draw_truncated(scaled, top_k, top_p, min_p, numbers[cut])
    if supports is not None:
        for row, candidates, kept in zip(cut, ids, keep, strict=True):
            supports[row].extend(candidates[kept].tolist())
    return tokens, logprobs


def draw_plainly(logits: torch.Tensor, temperatures: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Two-level inverse of the cumulative distribution: the uniform picks a chunk of the vocabulary, then a token in it."""
    count, vocabulary = logits.shape
    width = next(width for width in (256, 128, 64, 32, 16, 8, 4, 2, 1) if vocabulary % width == 0)
    plain = bool((temperatures == 1).all())
    probabilities, sums = [], []
    for start in range(0, count, _BLOCK_ROWS):
        block = logits[start : start + _BLOCK_ROWS].float()
        if not plain:
            block = block / temperatures[start : start + _BLOCK_ROWS]
        block = torch.softmax(block, dim=-1).view(block.shape[0], -1, width)
        probabilities.append(block)
        sums.append(block.sum(-1))
    cumulative = torch.cat(sums).double().cumsum(-1)
    target = numbers.view(-1, 1) * cumulative[:, -1:]
    chunk = torch.searchsorted(cumulative, target, right=True).clamp_(max=cumulative.shape[1] - 1)
    before = torch.where(chunk > 0, cumulative.gather(1, (chunk - 1).clamp(min=0)), 0.0)
    picked = chunk.view(-1).tensor_split(list(range(_BLOCK_ROWS, count, _BLOCK_ROWS)))
    inner = torch.cat([block[torch.arange(block.shape[0]), chosen] for block, chosen in zip(probabilities, picked, strict=True)])
    steps = inner.double().cumsum(-1)
    # The chunk's own sum may differ from the first level's in its last bits: stay below it, on a token that has probability.
    rest = torch.minimum(target - before, steps[:, -1:] * (1 - 1e-12))
    within = torch.searchsorted(steps, rest, right=True).clamp_(max=width - 1)
    return (chunk * width + within).view(-1), inner.gather(1, within).log().view(-1)


def _draw_truncated(
    scaled: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor, numbers: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Candidates in falling order; more are sorted only where the kept set reaches beyond them.

    Returns tokens and log-probs [n], the candidates' ids and which of them are kept [n, width].
    """
    vocabulary = scaled.shape[1]
    limited = top_k[top_k < vocabulary]
    width = min(vocabulary, max(_CANDIDATES, int(limited.max()) if limited.numel() else 0))
    whole_mass = scaled.logsumexp(-1, keepdim=True)
    while True:
        values, ids = scaled.topk(width, dim=-1)
        keep = _kept(values, whole_mass, top_k, top_p, min_p)
        beyond = keep[:, -1] & (top_k > width)
        if width == vocabulary or not bool(beyond.any()):
            break
        width = min(vocabulary, width * 8)
    logprobs = torch.log_softmax(values.masked_fill(~keep, float("-inf")), dim=-1)
    steps = logprobs.double().exp().cumsum(-1)
    rest = torch.minimum(numbers.view(-1, 1), torch.ones(1, dtype=torch.float64) - 1e-12) * steps[:, -1:]
    picked = torch.searchsorted(steps, rest, right=True).clamp_(max=width - 1)
    return ids.gather(1, picked).view(-1), logprobs.gather(1, picked).view(-1), ids, keep


def _kept(values: torch.Tensor, whole_mass: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor, min_p: torch.Tensor) -> torch.Tensor:
    """Which of the candidates (falling order) belong to the support. The likeliest always does."""
    vocabulary_wide = top_k > values.shape[1]
    keep = torch.arange(values.shape[1]) < top_k.view(-1, 1)
    mass = torch.where(vocabulary_wide.view(-1, 1), whole_mass, values.masked_fill(~keep, float("-inf")).logsumexp(-1, keepdim=True))
    probabilities = (values - mass).double().exp()
    before = probabilities.cumsum(-1) - probabilities
    keep &= (before < top_p.view(-1, 1)) | (top_p.view(-1, 1) >= 1)
    keep &= values - values[:, :1] >= min_p.view(-1, 1).log()
    keep[:, 0] = True
    return keep
