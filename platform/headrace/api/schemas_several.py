"""The shapes of runs in the plural: the queue, sweeps, races and saved views. As in `schemas`, no Django."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field

from headrace.api.schemas import Asked, PublicId, RunOut


class SweepIn(Asked):
    """One config, run over seeds and a few values of a few fields: at most 64 runs."""

    name: str = Field(min_length=1, max_length=200)
    config: dict[str, Any] = {}
    preset: str | None = None
    set: list[str] = []
    seeds: list[int] = Field([], max_length=64)
    axes: dict[str, list[Any]] = Field({}, max_length=3, description="dotted path of a field: its values")
    project: PublicId | None = None
    idempotency_key: str = Field(min_length=1, max_length=180)


class SweepOut(BaseModel):
    """A sweep and its runs, the best held-out score first. `group` is what its runs carry."""

    id: PublicId
    name: str
    state: str
    seeds: list[int]
    axes: list[dict[str, Any]]
    runs: list[RunOut]


class RaceIn(Asked):
    """Presets raced on one workload; `spec` as GET /races/{id} gives it back."""

    name: str = Field(min_length=1, max_length=200)
    spec: dict[str, Any]
    project: PublicId | None = None
    idempotency_key: str = Field(min_length=1, max_length=200)


class RaceRow(BaseModel):
    """A race in the list."""

    id: PublicId
    name: str
    state: str
    contenders: list[str]
    seeds: int
    stop: str
    over: int
    total: int
    created: str


class RacePage(BaseModel):
    """Newest first. `next` is the `before` of the next page; null on the last."""

    races: list[RaceRow]
    next: str | None


class RaceOut(BaseModel):
    """A race, its entries as they stand, and what can be said of it so far."""

    id: PublicId
    name: str
    state: str
    spec: dict[str, Any]
    live: dict[str, Any]
    result: dict[str, Any]


class PriorityIn(Asked):
    """A run's place in its team's queue."""

    priority: int = Field(ge=-100, le=100)


class QueueOut(BaseModel):
    """Queued runs in the order in which they will start, each with why it waits."""

    waiting: list[dict[str, Any]]
    running: list[RunOut]


class ViewOut(BaseModel):
    """A saved view: the page and the query string it is opened with."""

    id: PublicId
    page: str
    name: str
    query: str


class ViewsOut(BaseModel):
    views: list[ViewOut]


class ViewIn(Asked):
    page: Literal["runs", "compare"]
    name: str = Field(min_length=1, max_length=200)
    query: str = Field("", max_length=4000)
