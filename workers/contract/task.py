"""What is trained on: the model, the task, how samples are drawn, judged and chosen."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from workers.contract.block import Block, main


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
    init_from: str | None = Field(
        None,
        min_length=1,
        max_length=1000,
        title="Start from",
        description="Absolute path of a checkpoint folder of another run: its adapter or weights are where training begins, as version 0"
        " with a fresh optimizer. The reference policy of a KL term stays the model itself. Empty: the model as it is.",
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


class Rewards(Block):
    """What becomes of groups and samples that teach nothing, fail or are cut."""

    zero_variance: Literal["keep", "drop", "refill"] = Field(
        "keep",
        title="Groups of equal rewards",
        description="keep: they stay, with advantage 0. drop: they are dropped and their batch is smaller. refill: they are dropped"
        " and replaced, so that every batch is full (DAPO's dynamic sampling).",
    )
    refill_max: int = Field(
        64,
        ge=1,
        le=100_000,
        title="Refills a batch",
        description="With refill: so many groups may be replaced for one batch; further ones are kept, with advantage 0.",
        json_schema_extra={"unit": "groups"},
    )
    group_completeness: Literal["survivors", "complete"] = Field(
        "survivors",
        title="Groups with failed samples",
        description="survivors: the other samples are compared, if there are at least two. complete: the group is dropped.",
    )
    timeout_s: float = Field(
        10.0,
        gt=0,
        le=3600,
        title="Verifier's deadline",
        description="A sample judged for longer than this counts as failed.",
        json_schema_extra={"unit": "s"},
    )
    on_truncated: Literal["keep", "mask", "penalise", "drop"] = Field(
        "keep",
        title="Truncated samples",
        description="keep: judged as they are. mask: compared, but their tokens are left out of the loss. penalise: the reward falls"
        " linearly over the last tokens (DAPO's overlong shaping). drop: they leave their group, counted.",
    )
    overlong_tokens: int = Field(
        8,
        ge=1,
        le=131_072,
        title="Overlong zone",
        description="With penalise: over this many tokens before the limit the reward falls by up to 1; at the limit by 1.",
        json_schema_extra={"unit": "tokens"},
    )


class Curriculum(Block):
    """Which prompts come when. Effects are counted: passed-over prompts were never dispatched."""

    order: Literal["shuffle", "sequential", "easy_first", "hard_first"] = Field(
        "shuffle",
        title="Order of prompts",
        description="shuffle: anew in every epoch. sequential: as they stand. easy_first, hard_first: by the pass rate seen so far.",
    )
    window_low: float = Field(
        0.0, ge=0, le=1, title="Lowest pass rate", description="Prompts whose running pass rate is below are passed over."
    )
    window_high: float = Field(
        1.0, ge=0, le=1, title="Highest pass rate", description="Prompts whose running pass rate is above are passed over."
    )
    memory: float = Field(
        0.7,
        ge=0,
        lt=1,
        title="Memory of the pass rate",
        description="Weight of the past in the running pass rate; the newest group has the rest.",
    )
    revisit_every: int = Field(
        4,
        ge=1,
        le=10_000,
        title="Look again after",
        description="A prompt passed over this many times is given another chance: it may have become easier or harder.",
    )


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
