"""The config of a run: frozen, unknown keys refused, JSON round trip. The form, the CLI and the API are made from it.

`level` in a field's schema says where the form shows it: "main" in the open, "more" behind a fold.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from workers.contract import axes

SCHEMA_VERSION = 1


def main(**extra: Any) -> dict[str, Any]:
    return {"level": "main", **extra}


class Block(BaseModel):
    """A section of the config."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)


class Model(Block):
    """Which language model is trained."""

    path: str = Field(
        "smollm2-135m-instruct",
        min_length=1,
        max_length=500,
        title="Model",
        description="The built-in `smollm2-135m-instruct`, a local folder with safetensors weights, or a Hugging Face hub id.",
        json_schema_extra=main(),
    )
    dtype: Literal["bfloat16", "float32"] = Field(
        "bfloat16", title="Weights' type", description="Number format of the frozen base weights. Adapters are always float32."
    )


class Environment(Block):
    """Where prompts come from and how completions are judged."""

    dataset: str = Field(
        "chain_sum",
        min_length=1,
        max_length=500,
        title="Task",
        description="A reasoning-gym dataset by name, or the path of a .jsonl file whose lines hold `prompt` and `answer`.",
        json_schema_extra=main(),
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        title="Task options",
        description='Options of the dataset as JSON, for example {"min_terms": 2, "max_terms": 2}.',
        json_schema_extra=main(widget="json"),
    )
    size: int = Field(
        512,
        ge=1,
        le=1_000_000,
        title="Prompts",
        description="How many training prompts a generated task has; one pass is an epoch. A file is used whole.",
    )
    system_prompt: str = Field(
        "Answer with the final answer only.",
        max_length=8000,
        title="System prompt",
        description="Sent before every question. Empty: none.",
        json_schema_extra={"widget": "textarea"},
    )
    answer: Literal["auto", "last_number", "answer_tag", "last_line", "whole"] = Field(
        "auto",
        title="Answer extraction",
        description="What is handed to the verifier: the last number, the text in <answer> tags, the last non-empty line,"
        " or the whole completion. auto: the last number where the task's answers are numbers, the last line otherwise.",
        json_schema_extra=main(),
    )
    verifier: Literal["exact", "number", "contains"] = Field(
        "exact",
        title="Verifier (JSONL)",
        description="How a JSONL task compares the extracted answer. Reasoning-gym datasets bring their own.",
    )


class BatchBlock(Block):
    """How many samples make one optimizer batch, and how they are cut for memory."""

    prompts: int = Field(8, ge=1, le=4096, title="Prompts a step", description="Groups in one batch.", json_schema_extra=main())
    group_size: int = Field(
        8,
        ge=2,
        le=256,
        title="Completions a prompt",
        description="Samples in one group; their rewards are compared with one another.",
        json_schema_extra=main(),
    )
    minibatches: int = Field(1, ge=1, le=64, title="Minibatches", description="Optimizer steps a batch is cut into.")
    epochs: int = Field(1, ge=1, le=16, title="Passes over a batch", description="How often a batch is used before it is thrown away.")
    micro_tokens: int = Field(
        2048,
        ge=64,
        le=1_000_000,
        title="Tokens a micro-batch",
        description="Memory bound of one forward and backward pass. The result does not depend on it.",
        json_schema_extra={"unit": "tokens"},
    )


class Sampling(Block):
    """How the engine draws tokens. Stored log-probs are those of this very distribution."""

    max_new_tokens: int = Field(
        24,
        ge=1,
        le=131_072,
        title="New tokens at most",
        description="Longer completions are cut and marked as truncated.",
        json_schema_extra=main(unit="tokens"),
    )
    temperature: float = Field(
        1.0, ge=0.01, le=10.0, title="Temperature", description="1 samples the model as it is; lower is greedier.", json_schema_extra=main()
    )
    top_k: int = Field(0, ge=0, le=1_000_000, title="Top-k", description="Keep the k most likely tokens. 0: all.")
    top_p: float = Field(1.0, gt=0.0, le=1.0, title="Top-p", description="Keep the smallest set of tokens with this probability. 1: all.")
    min_p: float = Field(
        0.0, ge=0.0, le=1.0, title="Min-p", description="Drop tokens less likely than this share of the likeliest. 0: none."
    )


class Optimizer(Block):
    """AdamW on the adapters."""

    learning_rate: float = Field(2e-4, gt=0, le=1, title="Learning rate", description="Peak step size of AdamW.", json_schema_extra=main())
    beta1: float = Field(0.9, ge=0, lt=1, title="Beta 1", description="Decay of the gradient's mean.")
    beta2: float = Field(0.999, ge=0, lt=1, title="Beta 2", description="Decay of the gradient's square.")
    eps: float = Field(1e-8, gt=0, le=1, title="Epsilon", description="Added to the denominator.")
    weight_decay: float = Field(0.0, ge=0, le=1, title="Weight decay", description="Decoupled, on adapter weights.")
    warmup_steps: int = Field(
        0, ge=0, le=1_000_000, title="Warm-up steps", description="The learning rate rises linearly over these steps."
    )
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant",
        title="Schedule",
        description="How the learning rate goes after warm-up; linear and cosine end at 0 at the last step of the budget.",
    )
    max_grad_norm: float = Field(1.0, gt=0, le=1e6, title="Gradient clip", description="The global norm is scaled down to this.")
    stop_after_non_finite: int = Field(
        3,
        ge=1,
        le=1000,
        title="Non-finite steps allowed",
        description="A step with a NaN or infinite loss or gradient is skipped and counted; this many in a row stop the run.",
    )


class Loss(Block):
    """The policy loss. Formulas and sources: workers/learn."""

    policy: Literal["ppo", "reinforce_is"] = Field(
        "ppo", title="Policy loss", description="PPO's clipped surrogate, or REINFORCE with truncated importance weights."
    )
    advantage: Literal["grpo", "dr_grpo", "rloo"] = Field(
        "grpo",
        title="Advantage",
        description="How a reward is compared with its group: mean and standard deviation, mean only, or leave-one-out.",
        json_schema_extra=main(),
    )
    aggregation: Literal["token_mean", "sequence_mean", "sequence_sum_constant"] = Field(
        "token_mean",
        title="Aggregation",
        description="token_mean: all tokens of the batch weigh the same (DAPO). sequence_mean: all samples do (GRPO)."
        " sequence_sum_constant: divided by samples x max_new_tokens (Dr. GRPO).",
    )
    anchor: Literal["old", "rollout"] = Field(
        "old",
        title="Ratio's anchor",
        description="The policy in the ratio's denominator: the trainer's own log-probs at the start of the batch, or the engine's.",
    )
    clip_low: float = Field(
        0.2, ge=0, le=1, title="Clip below", description="Ratios under 1 - this have no gradient where the advantage is negative."
    )
    clip_high: float = Field(
        0.2, ge=0, le=10, title="Clip above", description="Ratios over 1 + this have no gradient where the advantage is positive."
    )
    dual_clip: float | None = Field(
        None, gt=1, le=100, title="Dual clip", description="Bounds the loss of negative advantages at this ratio. Empty: off."
    )
    advantage_eps: float = Field(1e-4, gt=0, le=1, title="Advantage epsilon", description="Added to the group's standard deviation.")
    tis_cap: float | None = Field(
        2.0,
        gt=0,
        le=1000,
        title="Importance cap",
        description="Token weights exp(old - rollout) are cut at this value (truncated importance sampling). Empty: no correction.",
    )


class Rewards(Block):
    """What becomes of groups and samples that teach nothing or are cut."""

    zero_variance: Literal["keep", "drop"] = Field(
        "keep",
        title="Groups of equal rewards",
        description="keep: they stay, with advantage 0. drop: they are dropped, counted and replaced.",
    )
    timeout_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        title="Verifier's deadline",
        description="A sample judged for longer than this counts as failed.",
        json_schema_extra={"unit": "s"},
    )
    on_truncated: Literal["keep", "mask"] = Field(
        "keep", title="Truncated samples", description="keep: judged as they are. mask: their tokens are left out of the loss."
    )


class Lora(Block):
    """Low-rank adapters (PEFT)."""

    kind: axes.LoraKind = Field("adapter_only", title="LoRA", description="How adapters reach the engine.")
    rank: int = Field(16, ge=1, le=512, title="Rank", description="Inner width of each adapter.", json_schema_extra=main())
    alpha: float = Field(32.0, gt=0, le=4096, title="Alpha", description="Adapters are scaled by alpha / rank.")


class Rollout(Block):
    """The inference pool."""

    engine: axes.EngineKind = Field("torch", title="Engine", description="What generates.")
    engines: int = Field(1, ge=1, le=1024, title="Engines", description="Copies of the engine.")
    max_running: int = Field(
        64, ge=1, le=4096, title="Slots an engine", description="Samples decoded at the same time.", json_schema_extra=main()
    )
    threads: int = Field(0, ge=0, le=1024, title="Threads an engine", description="CPU threads. 0: shared out over the cores.")


class Orchestration(Block):
    """How the pools are started and reached."""

    kind: axes.OrchestrationKind = Field(
        "ray", title="Orchestration", description="Who carries messages between driver, generator and trainer.", json_schema_extra=main()
    )


class Buffer(Block):
    """What waits between the pools."""

    kind: axes.BufferKind = Field("bounded", title="Buffer", description="How rollouts wait for the trainer.")
    unit: axes.BufferUnit = Field("group", title="Unit", description="What is counted and handed on: complete groups.")
    depth: int = Field(
        16,
        ge=1,
        le=100_000,
        title="Buffer depth",
        description="Groups that may wait; a full buffer holds generation back.",
        json_schema_extra=main(unit="groups"),
    )


class Transport(Block):
    """How weights travel."""

    kind: axes.TransportKind = Field("shared_memory", title="Transport", description="The road the payload takes.")
    payload: axes.PayloadKind = Field("adapter", title="Payload", description="What is sent at each publish.")


class Interrupt(Block):
    """What happens to running requests when new weights arrive."""

    kind: axes.InterruptKind = Field("forward_pass", title="Interrupt", description="When the engine takes the new weights.")
    kv_after: axes.KvAfter = Field(
        "keep",
        title="Cache afterwards",
        description="keep: the old keys and values stay. recompute: running samples are prefilled again under the new weights.",
    )


class DepthBound(Block):
    """Throttles dispatch: how many samples may be under way (in flight and buffered) at once. Not a lag."""

    value: float = Field(gt=0, le=1e6, title="Under way at most", description="Counted in `unit`. One batch: the synchronous design.")
    unit: Literal["samples", "batches"] = Field(
        "batches", title="Unit", description="What `value` counts: samples, or batches of the trainer."
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


class Backend(Block):
    """The training pool."""

    kind: axes.BackendKind = Field("single", title="Backend", description="How training is spread over processes.")
    threads: int = Field(0, ge=0, le=1024, title="Threads of the trainer", description="CPU threads. 0: shared out over the cores.")


class Evaluation(Block):
    """Held-out prompts, never trained on; every score carries one pinned version."""

    every_steps: int = Field(
        10,
        ge=0,
        le=1_000_000,
        title="Evaluate every",
        description="Steps between two evaluations. 0: only at start and end.",
        json_schema_extra=main(unit="steps"),
    )
    at_start: bool = Field(True, title="Evaluate at start", description="Measure the model before it learns.")
    at_end: bool = Field(True, title="Evaluate at end", description="Measure the model after the last step.")
    prompts: int = Field(64, ge=1, le=100_000, title="Held-out prompts", description="Drawn from a range of seeds apart from training.")
    temperature: float = Field(1.0, ge=0.01, le=10.0, title="Temperature", description="Sampling temperature of the evaluation.")


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
        None, gt=0, le=31_536_000, title="Time limit", description="Wall time from start. Empty: none.", json_schema_extra=main(unit="s")
    )


class RunConfig(Block):
    """A whole run. `RunConfig.model_validate(json)` accepts exactly what `model_dump(mode="json")` wrote."""

    schema_version: Literal[1] = Field(1, title="Schema version", description="Version of this form.")
    preset: str | None = Field(None, max_length=100, title="Preset", description="The preset this config began from, as name@version.")
    seed: int = Field(7, ge=0, le=2**31 - 1, title="Seed", description="Root of every random stream.", json_schema_extra=main())
    determinism: Literal["fast", "strict"] = Field(
        "fast", title="Determinism", description="strict: float32, one thread, lag 0, one engine; the same bits every time. Slower."
    )
    model: Model = Field(default_factory=Model)
    environment: Environment = Field(default_factory=Environment)
    batch: BatchBlock = Field(default_factory=BatchBlock)
    sampling: Sampling = Field(default_factory=Sampling)
    optimizer: Optimizer = Field(default_factory=Optimizer)
    loss: Loss = Field(default_factory=Loss)
    rewards: Rewards = Field(default_factory=Rewards)
    lora: Lora = Field(default_factory=Lora)
    rollout: Rollout = Field(default_factory=Rollout)
    orchestration: Orchestration = Field(default_factory=Orchestration)
    buffer: Buffer = Field(default_factory=Buffer)
    transport: Transport = Field(default_factory=Transport)
    interrupt: Interrupt = Field(default_factory=Interrupt)
    partial: list[axes.PartialKind] = Field(
        default=["continue"],
        min_length=1,
        title="Partial rollouts",
        description="What becomes of a half-finished sample at a weight change.",
    )
    staleness: Staleness = Field(default_factory=Staleness)
    sync: Sync = Field(default_factory=Sync)
    backend: Backend = Field(default_factory=Backend)
    evaluation: Evaluation = Field(default_factory=Evaluation)
    checkpoint: Checkpoint = Field(default_factory=Checkpoint)
    budget: Budget = Field(default_factory=Budget)

    def as_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    def digest(self) -> str:
        """sha256 of the canonical JSON form: the identity of a config."""
        return hashlib.sha256(json.dumps(self.as_json(), sort_keys=True, separators=(",", ":")).encode()).hexdigest()
