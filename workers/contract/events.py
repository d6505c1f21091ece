"""Events: what comes out of an attempt. Only the driver numbers and spools them; everything a page shows is in them.

An event is `{"seq", "t", "step", "kind", "data"}`: seq counts from 1 without gaps within an attempt, t is Unix time in
seconds, step the last finished step (0 before the first). On the wire a batch is columnar (`EventBatch`).
Non-finite numbers travel as the strings "NaN", "Infinity" and "-Infinity".
"""

from __future__ import annotations

import math
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

Kind = Literal[
    "started",
    "phase",
    "spans",
    "metrics",
    "points",
    "state",
    "lag",
    "groups",
    "sync",
    "sample",
    "evaluation",
    "checkpoint",
    "log",
    "finished",
]
KINDS: tuple[str, ...] = get_args(Kind)

DESCRIPTIONS: dict[str, str] = {
    "started": "The attempt's provenance: config digest, package versions, model and data digests, hardware, git commit, resumed_from.",
    "phase": "Start-up or shut-down progress: name, detail, done (0..1 or null).",
    "spans": "What each lane did and when: {spans: [[lane, cause, began, ended]]}, Unix seconds; no gap to the event before.",
    "metrics": "Values of one instant: {values: {name: number}}.",
    "points": "One series in columns: {name, t: [], step: [], value: []}.",
    "state": "Flow, buffer and both ledgers as absolute values; every second and after every step.",
    "lag": "Distribution of lag by trained token of the step: {counts: {lag: tokens}}.",
    "groups": "By name, where samples went since the last one: {batch: what a step trained, or null, left: what left otherwise}.",
    "sync": "One publish: version, bytes, digest, transport, payload and what it notes, phases in seconds, pause of each engine.",
    "sample": "One judged completion with its prompt, reward, advantage, version span, tokens, log-probs, drop reason.",
    "evaluation": "One score: version, n, mean, standard error, seconds.",
    "checkpoint": "A complete checkpoint: path, step, version, bytes, sha256 of its manifest.",
    "log": "A line: level, message.",
    "finished": "The end of the attempt: outcome, cause, summary.",
}

MAX_BATCH_EVENTS = 2000
MAX_BATCH_BYTES = 8 * 1024 * 1024


class EventBatch(BaseModel):
    """What a driver POSTs: events first_seq .. first_seq + n - 1 of one attempt, in columns of equal length."""

    model_config = ConfigDict(extra="forbid")

    fence: int = Field(ge=1)
    first_seq: int = Field(ge=1)
    t: list[float] = Field(max_length=MAX_BATCH_EVENTS)
    step: list[int] = Field(max_length=MAX_BATCH_EVENTS)
    kind: list[Kind] = Field(max_length=MAX_BATCH_EVENTS)
    data: list[dict[str, Any]] = Field(max_length=MAX_BATCH_EVENTS)

    @model_validator(mode="after")
    def columns_agree(self) -> EventBatch:
        lengths = {len(self.t), len(self.step), len(self.kind), len(self.data)}
        if len(lengths) != 1 or not self.t:
            raise ValueError(f"t, step, kind and data must hold the same number of events, at least 1; they hold {sorted(lengths)}")
        return self


class Control(BaseModel):
    """What the server asks of a running attempt; it rides on every ingest reply."""

    model_config = ConfigDict(extra="ignore")

    cancel: bool = False
    checkpoint_now: int = 0  # grows by one with each press of the button
    stop_after_step: bool = False
    pause: bool = False  # hold at the end of the step; false again: go on
    steps: int | None = None  # the budget as it was extended; null: as the config says
    wall_s: float | None = None  # the same for the time limit


class IngestReply(BaseModel):
    """The server holds every event up to and including `ingested_through`."""

    model_config = ConfigDict(extra="ignore")

    ingested_through: int = Field(ge=0)
    control: Control = Field(default_factory=Control)


def encode_number(value: float) -> float | str:
    """JSON has no NaN: non-finite numbers travel as strings, so that they are stored exactly and drawn as gaps."""
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def decode_number(value: float | int | str) -> float:
    """The inverse of `encode_number`. Raises ValueError on anything that is not a number."""
    if isinstance(value, str):
        if value not in ("NaN", "Infinity", "-Infinity"):
            raise ValueError(f"not a number: {value[:40]!r}")
        return float(value)
    if isinstance(value, bool):
        raise ValueError(f"not a number: {value!r}")
    return float(value)
