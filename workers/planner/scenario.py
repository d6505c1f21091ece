"""What a plan is made for: a workload, the speed of its hardware, and what it costs. Data, read from TOML or JSON."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from workers.contract.block import Block
from workers.planner.lengths import Chain, Distribution, Fixed, Lognormal
from workers.planner.speeds import Roofline, Shape, Speed

GRAINS = 60  # simulated tokens of a sample of median length


class Batch(Block):
    """Of the trainer."""

    prompts: int = Field(64, ge=1, le=4096)
    group_size: int = Field(8, ge=2, le=256)


class Generation(Block):
    """The inference pool. prefill_s: seconds of one replica for one prompt token."""

    speed: Speed
    replicas: int = Field(1, ge=1, le=1024)
    gpus_per_replica: int = Field(1, ge=1, le=1024)
    slots: int = Field(64, ge=1, le=4096, description="Samples that one replica decodes at the same time.")
    prefill_s: float = Field(0.0, ge=0)
    message_s: float = Field(0.0, ge=0, description="One way between driver and pools.")


class Peak(Block):
    """Training from the hardware: 6 x params operations a token, forward and backward, at a share of the peak."""

    flops_per_s: float = Field(gt=0, description="Of one GPU.")
    mfu: float = Field(gt=0, le=1)


class Training(Block):
    """The training pool as a whole: `batch_s` + `token_s` for each completion token. `peak` takes the place of `token_s`."""

    token_s: float | None = Field(None, ge=0)
    batch_s: float = Field(0.0, ge=0)
    gpus: int = Field(1, ge=1, le=100_000)
    peak: Peak | None = None


class Sync(Block):
    """A publish: `export_s` in the trainer, then the road to the engines, then `apply_s` in each of them.

    seconds: by "payload/transport", "payload", "transport" or "any"; the first of these that is named decides. Otherwise the bytes of
    the payload, over `bytes_per_s`, or over what `planner.costs` declares for the transport. weight_bytes: by default the model's.
    """

    seconds: dict[str, float] = Field(default_factory=dict)
    weight_bytes: float | None = Field(None, gt=0)
    bytes_per_s: float | None = Field(None, gt=0)
    export_s: float | None = Field(None, ge=0)
    apply_s: float = Field(0.0, ge=0)
    load_s: float = Field(5.0, ge=0, description="Of an engine that starts anew, where the transport is restart.")

    @model_validator(mode="after")
    def _positive(self) -> Sync:
        if any(value < 0 for value in self.seconds.values()):
            raise ValueError("seconds are at least 0")
        return self


class Judging(Block):
    """Beside generation, and holding no slot: what the environment takes, then what the scorer takes. Seconds a sample."""

    environment_s: Distribution | None = None
    scoring_s: Distribution | None = None
    equal_groups: float = Field(0.0, ge=0, le=1, description="Share of groups whose rewards are all equal.")


class Failures(Block):
    """request: share of requests that fail on the way and are generated again from the start; scoring: of samples without a reward."""

    request: float = Field(0.0, ge=0, lt=1)
    scoring: float = Field(0.0, ge=0, lt=1)


class Memory(Block):
    """Of one GPU, and what a parameter takes in the trainer beside its weight. activation_bytes: of one GPU's micro-batch."""

    gpu_bytes: float = Field(gt=0)
    usable: float = Field(0.9, gt=0, le=1)
    gradient_bytes: float = Field(2.0, ge=0, description="A parameter.")
    optimizer_bytes: float = Field(12.0, ge=0, description="A parameter: master weight and two moments in float32.")
    activation_bytes: float = Field(0.0, ge=0)


class Published(Block):
    """A figure that somebody printed, shown beside the predicted one. figure: a key of the plan, e.g. step_s."""

    figure: str = Field(min_length=1)
    value: float
    unit: str = ""
    preset: str | None = None
    source: str = Field(min_length=1)
    note: str = ""


class Scenario(Block):
    """The whole of it. Tokens are those of a tokenizer, seconds are of the wall, GPUs are whole ones."""

    name: str = Field(min_length=1, max_length=100)
    title: str = ""
    notes: list[str] = Field(default_factory=list)
    seed: int = Field(7, ge=0, le=2**31 - 1)
    steps: int = Field(30, ge=1, le=10_000, description="Measured, after the warm-up.")
    warmup_steps: int = Field(10, ge=0, le=1000)
    prompt_tokens: int = Field(256, ge=1, le=131_072)
    max_new_tokens: int = Field(131_072, ge=1, le=1_000_000)
    lengths: Distribution
    batch: Batch = Field(default_factory=Batch)
    generation: Generation
    training: Training
    sync: Sync = Field(default_factory=Sync)
    judging: Judging = Field(default_factory=Judging)
    failures: Failures = Field(default_factory=Failures)
    shape: Shape | None = None
    memory: Memory | None = None
    gpu_hour: float | None = Field(None, ge=0, description="Price of one GPU for an hour, in any currency.")
    coarse: Literal["auto", "off"] = Field("auto", description="Whether one simulated token may stand for several.")
    run: list[str] = Field(default_factory=list, description="Overrides of the run, path=value: what an experiment set beside its preset.")
    published: list[Published] = Field(default_factory=list)

    @model_validator(mode="after")
    def _whole(self) -> Scenario:
        if (self.training.token_s is None) == (self.training.peak is None):
            raise ValueError("training takes either token_s or peak")
        needs = [
            ("generation.speed of kind roofline", isinstance(self.generation.speed, Roofline)),
            ("training.peak", self.training.peak is not None),
            ("memory", self.memory is not None),
        ]
        if self.shape is None and any(needed for _, needed in needs):
            raise ValueError(f"{next(name for name, needed in needs if needed)} needs the model's [shape]")
        return self

    @property
    def token_s(self) -> float:
        """Seconds of the training pool for one completion token."""
        peak = self.training.peak
        if peak is None or self.shape is None:
            return self.training.token_s or 0.0
        return 6 * self.shape.params / (peak.flops_per_s * peak.mfu * self.training.gpus)

    @property
    def gpus(self) -> int:
        return self.generation.replicas * self.generation.gpus_per_replica + self.training.gpus

    @property
    def grain(self) -> int:
        """How many tokens one simulated token stands for: a sample of median length is `GRAINS` of them, or shorter.

        Lengths are rounded to the nearest grain, so that a sample is off by half a grain at most, 0.8 % of the median, and as often
        too long as too short.
        """
        if self.coarse == "off":
            return 1
        parts = self.lengths.parts if isinstance(self.lengths, Chain) else [self.lengths]
        middle = sum(
            part.value if isinstance(part, Fixed) else part.median if isinstance(part, Lognormal) else part.quantile(0.5) for part in parts
        )
        return max(1, int(min(middle, self.max_new_tokens) / GRAINS))
