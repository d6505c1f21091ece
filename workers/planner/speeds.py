"""How long a decode step of one replica takes, by what runs in it."""

from __future__ import annotations

import math
from bisect import bisect_left
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import Field, model_validator

from workers.contract.block import Block
from workers.rollout.leaps import EngineCost


class Shape(Block):
    """A dense model. Positions attend to `kv_heads` heads of `head_dim` in each layer; a value takes `bytes_per_value`."""

    params: float = Field(gt=0)
    layers: int = Field(ge=1)
    kv_heads: int = Field(ge=1)
    head_dim: int = Field(ge=1)
    bytes_per_value: float = Field(2.0, gt=0)

    @property
    def weight_bytes(self) -> float:
        return self.params * self.bytes_per_value

    @property
    def position_bytes(self) -> float:
        """Keys and values of one position in all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * self.bytes_per_value

    def adapter_params(self, rank: int) -> float:
        """Of LoRA on every linear of a decoder, about: rank x (inputs + outputs), some 20 hidden sizes a layer; 12 hidden squared a layer
        are all parameters. 7B at rank 16: 43 million, and 40 million in Llama-2-7B."""
        return 20 * rank * self.layers * math.sqrt(self.params / (12 * self.layers))


class Throughput(Block):
    """So many tokens a second, however few samples run: what published figures of a whole engine say, and no tail."""

    kind: Literal["throughput"] = "throughput"
    tokens_per_s: float = Field(gt=0, description="Output tokens a second of one replica.")


class Table(Block):
    """Measured: tokens a second of one replica at so many running samples. Between the rows, seconds of a decode step are
    interpolated; below the first row a step takes as long as there, above the last the tokens a second stay."""

    kind: Literal["table"] = "table"
    running: list[float] = Field(min_length=1, max_length=256)
    tokens_per_s: list[float] = Field(min_length=1, max_length=256)

    @model_validator(mode="after")
    def _rows(self) -> Table:
        if len(self.running) != len(self.tokens_per_s):
            raise ValueError("running and tokens_per_s have as many entries")
        if min(self.running) <= 0 or min(self.tokens_per_s) <= 0:
            raise ValueError("all entries are above 0")
        if any(later <= former for former, later in zip(self.running, self.running[1:], strict=False)):
            raise ValueError("running ascends")
        return self


class Roofline(Block):
    """From the hardware: a step reads all weights and all keys and values held, and multiplies 2 x params for each token.

    It takes the longer of the two, and `overhead_s`. Bytes and operations a second are of one GPU and add up over a replica's GPUs;
    attention's own operations are left out, as they are few beside the reading of keys and values.
    """

    kind: Literal["roofline"] = "roofline"
    bytes_per_s: float = Field(gt=0)
    flops_per_s: float = Field(gt=0)
    overhead_s: float = Field(0.0, ge=0)


Speed = Annotated[Throughput | Table | Roofline, Field(discriminator="kind")]


@dataclass(frozen=True)
class Steady(EngineCost):
    tokens_per_s: float = 1.0

    def step(self, running: int, held: float) -> float:
        return running / self.tokens_per_s


@dataclass(frozen=True)
class Tabled(EngineCost):
    running: tuple[float, ...] = ()
    seconds: tuple[float, ...] = ()

    def step(self, running: int, held: float) -> float:
        place = bisect_left(self.running, running)
        if place == 0:
            return self.seconds[0]
        if place == len(self.running):
            return self.seconds[-1] * running / self.running[-1]
        left, right = self.running[place - 1], self.running[place]
        share = (running - left) / (right - left)
        return self.seconds[place - 1] * (1 - share) + self.seconds[place] * share


@dataclass(frozen=True)
class Roofed(EngineCost):
    weight_s: float = 0.0  # reading all weights once
    position_s: float = 0.0  # reading one position's keys and values
    token_s: float = 0.0  # the operations of one token
    overhead_s: float = 0.0

    def step(self, running: int, held: float) -> float:
        return max(self.weight_s + self.position_s * held, self.token_s * running) + self.overhead_s


def cost(speed: Speed, shape: Shape | None, gpus: int, *, grain: int, prefill_s: float, apply_s: float) -> EngineCost:
    """What one replica of `gpus` costs. A roofline needs the shape."""
    if isinstance(speed, Throughput):
        return Steady(grain=grain, prefill_s=prefill_s, apply_s=apply_s, tokens_per_s=speed.tokens_per_s)
    if isinstance(speed, Table):
        seconds = tuple(running / rate for running, rate in zip(speed.running, speed.tokens_per_s, strict=True))
        return Tabled(grain=grain, prefill_s=prefill_s, apply_s=apply_s, running=tuple(speed.running), seconds=seconds)
    assert shape is not None  # the scenario has checked it
    return Roofed(
        grain=grain,
        prefill_s=prefill_s,
        apply_s=apply_s,
        weight_s=shape.weight_bytes / (speed.bytes_per_s * gpus),
        position_s=shape.position_bytes / (speed.bytes_per_s * gpus),
        token_s=2 * shape.params / (speed.flops_per_s * gpus),
        overhead_s=speed.overhead_s,
    )
