"""What the emulated engine is made of: declared costs, requests under way, leaps, and new weights on their way."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from functools import lru_cache

from workers.records import FinishReason, Manifest, Rollout, SampleRequest, UpdateReport


@dataclass(frozen=True)
class EngineCost:
    """Declared seconds. A decode step takes `step_s` + `sample_s` for each running sample, a prefill `prefill_s` a token.

    grain: how many tokens one simulated token stands for; step and prefill are seconds of real ones.
    """

    step_s: float = 0.05
    sample_s: float = 0.0
    prefill_s: float = 0.0
    apply_s: float = 0.0  # making new weights the ones that serve
    grain: int = 1

    def step(self, running: int, held: float) -> float:
        """Seconds of one decode step. `held`: positions whose keys and values are read in it, all running samples together."""
        return self.step_s + self.sample_s * running


@dataclass(eq=False, slots=True)
class Weights:
    """Those that served from `since` on, in the engine's count of tokens, until `then` did."""

    version: int
    since: float
    then: Weights | None = None


@dataclass(eq=False, slots=True)
class Sequence:
    """A request under way. `length` tokens end it as `finish`; done: tokens drawn, and spans: (version, tokens drawn under it) in order,
    both up to when it last left its slot. It came into the one it has at the engine's count `came`, under `weights`.

    Where a token stands for many, weights may be swapped within one: then `done` is no whole number.
    """

    request: SampleRequest
    answer: asyncio.Future[Rollout]
    length: int
    finish: FinishReason
    prompt: int  # tokens
    done: float = 0
    spans: list[tuple[int, float]] = field(default_factory=list)
    came: float = 0
    weights: Weights | None = None
    admitted: float | None = None
    cached: bool = False  # its keys and values are still there: no prefill

    def leave(self, drawn: float) -> None:
        """Called where it leaves its slot, at the engine's count `drawn`."""
        began, weights = self.came, self.weights
        while weights is not None:
            until = drawn if weights.then is None else weights.then.since
            if until > began:
                self.spans.append((weights.version, until - began))
                began = until
            weights = weights.then
        self.done += drawn - self.came

    def versions(self) -> list[int]:
        """One for each whole token drawn."""
        if len(self.spans) == 1:
            return [self.spans[0][0]] * round(self.done)
        listed: list[int] = []
        drawn = 0.0
        for version, tokens in self.spans:
            drawn += tokens
            listed += [version] * (round(drawn) - len(listed))
        return listed

    def rollout(self, ended: FinishReason, engine: str, seconds: float) -> Rollout:
        """What its caller gets."""
        request, tokens = self.request, round(self.done)
        return Rollout(
            id=request.id,
            group_id=request.group_id,
            index=request.index,
            token_ids=_tokens(tokens),
            logprobs=_logprobs(tokens),
            versions=self.versions(),
            finish_reason=ended,
            engine=engine,
            seconds=seconds,
        )


@dataclass(eq=False, slots=True)
class Leap:
    """So many decode steps at once, each of `step_s`, with `running` samples in slots; before the first comes a prefill of `ahead_s`."""

    began: float
    running: int
    steps: float
    step_s: float
    ahead_s: float

    @property
    def seconds(self) -> float:
        return self.ahead_s + self.steps * self.step_s


@dataclass(eq=False, slots=True)
class News:
    """New weights on their way. accepted: the interrupt let them be fetched; stood: since when they are, and decoding may stand still."""

    manifest: Manifest
    flipped: asyncio.Future[UpdateReport]
    accepted: bool = False
    fetched: bool = False
    busy: bool = False
    stood: float = 0.0
    transfer_s: float = 0.0


# Rows of equal values are shared: nobody changes a rollout, and a large simulation makes many.
@lru_cache(maxsize=4096)
def _tokens(count: int) -> list[int]:
    return [1] * count


@lru_cache(maxsize=4096)
def _logprobs(count: int) -> list[float]:
    return [-1.0] * count
