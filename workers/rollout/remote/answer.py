"""What a server says of one sample, judged before a token of it is believed."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers import models
from workers.contract.config import RunConfig
from workers.records import SampleRequest
from workers.rollout.remote.calls import Failure

_SEEDS = 2**63
REASONS = ("stop", "length", "abort")
LEAST_LOGPROB = -9000.0  # vLLM writes -9999 where a probability is 0: nobody draws such a token
ROUNDING = 1e-3  # a log-prob computed in 16 bits may come out a little above 0


@dataclass(frozen=True)
class Answer:
    """New tokens with a log-prob each, natural log, and why the server stopped."""

    token_ids: list[int]
    logprobs: list[float]
    reason: str


def judge(token_ids: Any, logprobs: Any, reason: Any, vocabulary: int, most: int) -> Answer:
    """`most`: tokens that were asked for. Raises Failure naming what is wrong; nothing is repaired."""
    if reason not in REASONS:
        raise _wrong("reason", f"an unknown finish reason: {str(reason)[:60]!r}")
    if not isinstance(token_ids, list) or not isinstance(logprobs, list):
        raise _wrong("shape", "no lists of tokens and log-probs")
    if len(logprobs) != len(token_ids):
        raise _wrong("count", f"{len(token_ids)} tokens with {len(logprobs)} log-probs")
    if len(token_ids) > most or (not token_ids and reason != "abort"):
        raise _wrong("count", f"{len(token_ids)} tokens where 1 to {most} were asked for")
    strange = [token for token in token_ids if type(token) is not int or not 0 <= token < vocabulary]
    if strange:
        raise _wrong("vocabulary", f"token {str(strange[0])[:40]} is outside the model's vocabulary of {vocabulary}: another model?")
    unreal = [value for value in logprobs if not _is_logprob(value)]
    if unreal:
        raise _wrong("logprob", f"{str(unreal[0])[:40]} is not the log of a probability of a drawn token")
    return Answer(token_ids, [min(0.0, float(value)) for value in logprobs], reason)


def _is_logprob(value: Any) -> bool:
    return isinstance(value, int | float) and type(value) is not bool and math.isfinite(value) and LEAST_LOGPROB < value <= ROUNDING


def dig(value: Any, *path: str | int) -> Any:
    """An entry deep in a JSON value. Raises Failure where the way to it does not exist."""
    for step in path:
        fits = isinstance(value, dict) if isinstance(step, str) else isinstance(value, Sequence) and not isinstance(value, str)
        if not fits or (step not in value if isinstance(step, str) else len(value) <= int(step)):
            raise _wrong("shape", f"an answer without {'.'.join(map(str, path))}")
        value = value[step]
    return value


def _wrong(cause: str, message: str) -> Failure:
    return Failure(f"bad_{cause}", message, False)


def seed_of(request: SampleRequest, prefix: int) -> int:
    """A sample gone on with gets another stream than the one that drew its prefix."""
    return (request.key + prefix * 0x9E3779B97F4A7C15) % _SEEDS


def truncates(config: RunConfig) -> bool:
    sampling = config.sampling
    return (sampling.top_k, sampling.top_p, sampling.min_p) != (0, 1.0, 0.0)


def tied(config: RunConfig) -> bool:
    """Whether the model's output weights are its embedding."""
    shape = json.loads((Path(models.locate(config.model.path)) / "config.json").read_text(encoding="utf-8"))
    return bool(shape.get("tie_word_embeddings"))
