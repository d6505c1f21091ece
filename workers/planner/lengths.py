"""Distributions that are drawn by inverse CDF from a key: how long completions are, how many seconds a judgement takes.

A draw hangs on the seed and the key alone, never on the order of events, so that two designs meet the same samples.
"""

from __future__ import annotations

import math
from functools import cached_property
from statistics import NormalDist
from typing import Annotated, Literal

from pydantic import Field, model_validator

from workers.contract.block import Block
from workers.requests import stream_key

_NORMAL = NormalDist()
_Z90 = _NORMAL.inv_cdf(0.9)


class Fixed(Block):
    """Always the same."""

    kind: Literal["fixed"] = "fixed"
    value: float = Field(gt=0)

    def quantile(self, share: float) -> float:
        return self.value


class Lognormal(Block):
    """A long tail: ln(value) is normal around ln(median). Its width is given by `sigma`, or by the 90th percentile."""

    kind: Literal["lognormal"] = "lognormal"
    median: float = Field(gt=0)
    p90: float | None = Field(None, gt=0)
    sigma: float | None = Field(None, ge=0)

    @model_validator(mode="after")
    def _one_width(self) -> Lognormal:
        if (self.p90 is None) == (self.sigma is None):
            raise ValueError("give either p90 or sigma")
        if self.p90 is not None and self.p90 < self.median:
            raise ValueError("p90 is at least the median")
        return self

    def quantile(self, share: float) -> float:
        return self.median * math.exp(self._width * _NORMAL.inv_cdf(share))

    @cached_property
    def _width(self) -> float:
        return math.log(self.p90 / self.median) / _Z90 if self.p90 is not None else self.sigma or 0.0


class Empirical(Block):
    """Values that were seen, each as likely as it was frequent."""

    kind: Literal["empirical"] = "empirical"
    values: list[float] = Field(min_length=1, max_length=50_000)

    @model_validator(mode="after")
    def _in_order(self) -> Empirical:
        if min(self.values) <= 0 or any(later < former for former, later in zip(self.values, self.values[1:], strict=False)):
            raise ValueError("values are above 0 and ascend")
        return self

    def quantile(self, share: float) -> float:
        return self.values[min(len(self.values) - 1, math.ceil(share * len(self.values)) - 1)]


Single = Annotated[Fixed | Lognormal | Empirical, Field(discriminator="kind")]


class Chain(Block):
    """Agents in turn: an episode is the sum of what each of them writes, drawn independently of one another."""

    kind: Literal["chain"] = "chain"
    parts: list[Single] = Field(min_length=2, max_length=64)


Distribution = Annotated[Fixed | Lognormal | Empirical | Chain, Field(discriminator="kind")]


def share_of(seed: int, name: str, key: object) -> float:
    """A number between 0 and 1, both left out, that hangs on seed, name and key alone."""
    return (stream_key(seed, name, key) + 0.5) / 2**63


def drawn(distribution: Distribution, seed: int, name: str, key: object) -> list[float]:
    """The draw of this key: one value, or one for each part of a chain."""
    if not isinstance(distribution, Chain):
        return [distribution.quantile(share_of(seed, f"{name}/0", key))]
    return [part.quantile(share_of(seed, f"{name}/{place}", key)) for place, part in enumerate(distribution.parts)]
