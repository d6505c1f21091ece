"""How work flows: engines, orchestration, buffer, weight sync, interrupts, staleness, checkpoints, budget."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from workers.contract import axes
from workers.contract.block import Block, main
from workers.contract.remote import Remote


class Rollout(Block):
    """The inference pool."""

    engine: axes.EngineKind = Field("torch", title="Engine", description="What generates.")
    engines: int = Field(1, ge=1, le=1024, title="Engines", description="Copies of the engine.")
    max_running: int = Field(
        64, ge=1, le=4096, title="Slots an engine", description="Samples decoded at the same time.", json_schema_extra=main()
    )
    threads: int = Field(0, ge=0, le=1024, title="Threads an engine", description="CPU threads. 0: shared out over the cores.")
    deadline_s: float = Field(
        3600.0,
        gt=0,
        le=31_536_000,
        title="Sample's deadline",
        description="Longest that an engine may take for one sample; one that takes longer is dropped, and counted.",
        json_schema_extra={"unit": "s"},
    )
    route: Literal["least_tokens", "prefix"] = Field(
        "least_tokens",
        title="Routing",
        description="least_tokens: to the engine with the least work. prefix: samples of one prompt to the same engine.",
    )
    remote: Remote | None = Field(
        None, title="Servers", description="With the engine remote: where vLLM or SGLang already run. Empty: nowhere."
    )


class Orchestration(Block):
    """How the pools are started and reached."""

    kind: axes.OrchestrationKind = Field(
        "ray", title="Orchestration", description="Who carries messages between driver, generator and trainer.", json_schema_extra=main()
    )


class Buffer(Block):
    """What waits between the pools."""

    kind: axes.BufferKind = Field("bounded", title="Buffer", description="How rollouts wait for the trainer.", json_schema_extra=main())
    unit: axes.BufferUnit = Field(
        "group",
        title="Unit",
        description="What depth counts and what is judged for its age: complete groups, or their samples one by one.",
    )
    order: axes.BufferOrder = Field("fifo", title="Order", description="Which waiting group the trainer takes next.")
    depth: int = Field(
        16,
        ge=1,
        le=100_000,
        title="Buffer depth",
        description="bounded: units that may wait; a full buffer holds generation back.",
        json_schema_extra=main(unit="units"),
    )
    ring: int | None = Field(
        None,
        ge=1,
        le=1_000_000,
        title="Ring",
        description="stream: at most this many units are kept, the oldest goes for a new one. Empty: no bound.",
    )


class Transport(Block):
    """How weights travel."""

    kind: axes.TransportKind = Field(
        "shared_memory", title="Transport", description="The road the payload takes.", json_schema_extra=main()
    )
    payload: axes.PayloadKind = Field("adapter", title="Payload", description="What is sent at each publish.")
    bucket_mb: float = Field(
        64.0,
        gt=0,
        le=65_536,
        title="Bucket",
        description="Size of the pieces in which a bucketed transport and a sharded trainer hand weights on.",
        json_schema_extra={"unit": "MB"},
    )


class Interrupt(Block):
    """What happens to running requests when new weights arrive."""

    kind: axes.InterruptKind = Field(
        "forward_pass", title="Interrupt", description="When the engine takes the new weights.", json_schema_extra=main()
    )
    kv_after: axes.KvAfter = Field(
        "keep",
        title="Cache afterwards",
        description="keep: the old keys and values stay. recompute: running samples are prefilled again under the new weights."
        " flush: they are thrown away.",
    )


class DepthBound(Block):
    """Throttles dispatch: how many samples may be under way (in flight and buffered) at once. Not a lag."""

    value: float = Field(ge=0, le=1e6, title="Under way at most", description="Counted in `unit`. One batch: the synchronous design.")
    unit: Literal["samples", "batches", "fraction"] = Field(
        "batches",
        title="Unit",
        description="What `value` counts: samples, batches of the trainer, or the extra share beyond what is trained until the next sync.",
    )


class Staleness(Block):
    """How old a sample may be."""

    max_lag: int = Field(
        4,
        ge=0,
        le=10_000,
        title="Largest lag",
        description="Versions between the weights being trained and those that sampled.",
        json_schema_extra=main(unit="versions"),
    )
    lag_from: axes.LagFrom = Field(
        "oldest_token", title="Lag counted from", description="The oldest token of the group, or the version at dispatch."
    )
    depth_bound: DepthBound | None = Field(
        None, title="Depth bound", description="Throttles dispatch to this much work under way. Empty: only slots and buffer bound it."
    )
    over_limit: axes.OverLimit = Field("drop", title="Over the limit", description="What happens to a group that is too old.")


class Sync(Block):
    """How often the engine gets new weights."""

    every_steps: int = Field(
        1, ge=1, le=10_000, title="Publish every", description="Optimizer steps between two versions.", json_schema_extra=main(unit="steps")
    )


class Checkpoint(Block):
    """Adapters, optimizer, random state, data cursor, buffer and version: everything a resume needs."""

    every_steps: int = Field(
        10,
        ge=0,
        le=1_000_000,
        title="Save every",
        description="Steps between two checkpoints. 0: only at the end.",
        json_schema_extra=main(unit="steps"),
    )
    keep_last: int = Field(2, ge=1, le=1000, title="Keep", description="Older checkpoints are deleted.")


class Budget(Block):
    """When the run ends: at whichever bound comes first."""

    steps: int = Field(40, ge=1, le=10_000_000, title="Steps", description="Batches trained.", json_schema_extra=main(unit="steps"))
    wall_s: float | None = Field(
        None,
        gt=0,
        le=31_536_000,
        title="Time limit",
        description="Wall time from start, without pauses. Empty: none.",
        json_schema_extra=main(unit="s"),
    )
    samples: int | None = Field(
        None,
        ge=1,
        le=10**12,
        title="Sample limit",
        description="Samples trained; the step that reaches it is the last. Empty: none.",
        json_schema_extra={"unit": "samples"},
    )
    tokens: int | None = Field(
        None,
        ge=1,
        le=10**15,
        title="Token limit",
        description="Completion tokens trained; the step that reaches it is the last. Empty: none.",
        json_schema_extra={"unit": "tokens"},
    )
