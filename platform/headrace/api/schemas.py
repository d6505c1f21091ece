"""The shapes of requests and answers. Server and client import them from here, so they cannot drift; no Django in this file."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

PublicId = str


class Asked(BaseModel):
    """What a caller sends: an unknown field is refused, because a misspelt one would be silently without effect."""

    model_config = ConfigDict(extra="forbid")


class RunIn(Asked):
    """A run to start. `config` is a RunConfig or a part of one laid over `preset`; `set` holds path=value lines."""

    name: str = Field(min_length=1, max_length=200)
    config: dict[str, Any] = {}
    preset: str | None = None
    set: list[str] = []
    project: PublicId | None = Field(None, description="public id of a project of the team; absent: the oldest one")
    experiment: PublicId | None = Field(None, description="public id of an experiment of that project")
    parent: PublicId | None = Field(None, description="public id of the run this one was cloned from")
    idempotency_key: str = Field(min_length=1, max_length=200)
    group: str = Field("", max_length=100, description="runs of one group are compared together")
    priority: int = Field(0, ge=-100, le=100, description="higher ones leave the queue first; more than 0 is for maintainers")
    note: str = ""
    tags: list[str] = []


class RunEdit(Asked):
    """What people say about a run. Absent: as it is."""

    name: str | None = Field(None, min_length=1, max_length=200)
    note: str | None = None
    tags: list[str] | None = None
    version: str | None = Field(None, max_length=64, description="as the run was read; 409 if somebody has changed it since")


class Extension(Asked):
    """A new budget for a run. It may not be less than what is done; what is absent stays as it is."""

    steps: int | None = Field(None, ge=1, le=10_000_000)
    wall_s: float | None = Field(None, gt=0, le=31_536_000)


class UploadIn(Asked):
    """A run that was trained elsewhere and whose spool will be shipped."""

    name: str = Field(min_length=1, max_length=200)
    config: dict[str, Any]
    idempotency_key: str | None = Field(None, min_length=1, max_length=200, description="absent: every request makes a new run")
    project: PublicId | None = None


class UploadOut(BaseModel):
    """Where to ship: POST the spool to /api/v1/attempts/{attempt}/events with the token. The token is shown this once."""

    run: PublicId
    attempt: PublicId
    number: int
    fence: int
    ingested_through: int
    token: str


class RunOut(BaseModel):
    """A run as the API names it."""

    id: PublicId
    name: str
    state: str
    state_since: str
    created: str
    source: str
    preset: str
    seed: int
    project: str
    config_digest: str
    steps_total: int | None
    outcome_cause: dict[str, Any] | None
    summary: dict[str, Any]
    control: dict[str, Any]
    forecast: dict[str, Any] | None = Field(None, description="what was predicted at its launch, and from which run; null: nothing")


class RunDetail(RunOut):
    """A run with its config and attempts. `version` is the edition of its name, note and tags."""

    version: str
    config: dict[str, Any]
    attempts: list[dict[str, Any]]
    series: list[str]


class RunPage(BaseModel):
    """Newest first. `next` is the `before` of the next page; null on the last."""

    runs: list[RunOut]
    next: str | None


class SeriesOut(BaseModel):
    """Columns for each series that has data, at most `buckets` rows each; `through_seq` is how far the history was read."""

    series: dict[str, dict[str, Any]]
    through_seq: int


class EventsOut(BaseModel):
    """Stored events after a seq, oldest first."""

    attempt: int | None
    through_seq: int
    events: list[dict[str, Any]]


class SamplesOut(BaseModel):
    """The newest samples that fit."""

    samples: list[dict[str, Any]]


class LogsOut(BaseModel):
    """Log lines, oldest first."""

    attempt: int | None
    logs: list[dict[str, Any]]


class ArtifactOut(BaseModel):
    """A checkpoint, an export or an upload."""

    id: PublicId
    kind: str
    state: str
    step: int | None
    version: int | None
    bytes: int
    sha256: str
    created: str


class ArtifactsOut(BaseModel):
    """Newest first."""

    artifacts: list[ArtifactOut]


class CheckIn(Asked):
    """A config to resolve, as in POST /runs."""

    config: dict[str, Any] = {}
    preset: str | None = None
    set: list[str] = []


class CheckOut(BaseModel):
    """The resolved config."""

    config: dict[str, Any]
    digest: str
    warnings: list[dict[str, Any]]


class ComparedRun(BaseModel):
    """One column of a comparison."""

    id: PublicId
    name: str
    state: str
    preset: str
    seed: int
    results: dict[str, float | None]


class ComparisonOut(BaseModel):
    """Config fields that differ, a value for each run in order, and the last value of each asked series."""

    runs: list[ComparedRun]
    differences: dict[str, list[Any]]


class ProjectOut(BaseModel):
    id: PublicId
    name: str
    slug: str
    note: str


class ProjectsOut(BaseModel):
    projects: list[ProjectOut]


class Me(BaseModel):
    """Whose token or session this is."""

    email: str
    name: str
    team: str | None
    team_id: PublicId | None
    role: str | None
    scope: str = Field(description="the token's scope, or `session`")


class Problem(BaseModel):
    """Every error answer. Some say more: `problems` of a config, `expected` and `seq` of a batch."""

    model_config = ConfigDict(extra="allow")

    code: str
    message: str
    field: str | None = None
    value: Any = None
    cure: str | None = None
    retryable: bool = False


ExportTable = Literal["series", "samples", "logs", "events"]
ExportFormat = Literal["parquet", "csv", "jsonl"]


class ExportOut(BaseModel):
    """An adapter being made ready. `state`: queued, running, done or failed; once done `download` names the artifact with the zip."""

    state: str
    download: PublicId | None
    problem: dict[str, Any] | None
    card: str


class ProbeIn(Asked):
    """Prompts for the base model and a checkpoint of the run; without a checkpoint the base model answers alone."""

    prompts: list[str] = Field(min_length=1, max_length=4)
    checkpoint: PublicId | None = None
    sampling: dict[str, float] = {}


class ProbeOut(BaseModel):
    """A probe; `result` once it is done."""

    id: PublicId
    state: str
    checkpoint: str
    prompts: list[str]
    problem: dict[str, Any] | None
    result: dict[str, Any] | None
