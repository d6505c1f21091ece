"""The nouns of the flow: Prompt -> SampleRequest -> Rollout -> Sample -> Group -> Batch -> StepResult, and Manifest.

Plain data without torch: every record crosses process borders as a dictionary of JSON-like values (`to_wire`/`from_wire`).
Ids are stable: a sample keeps (group id, index) through resubmission, recycling and resume.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar

# deadline: no engine returned it in time; failed: engines raised. Neither has tokens.
FinishReason = Literal["stop", "length", "abort", "deadline", "failed"]
Purpose = Literal["train", "evaluation"]
T = TypeVar("T")


def to_wire(record: Any) -> Any:
    """A record as nested dictionaries and lists."""
    if hasattr(record, "__dataclass_fields__"):
        return {item.name: to_wire(getattr(record, item.name)) for item in fields(record)}
    if isinstance(record, list | tuple):
        return record if not record or isinstance(record[0], int | float | str) else [to_wire(item) for item in record]
    return record


@dataclass(frozen=True, slots=True)
class Prompt:
    """One question, rendered and tokenised once, at dispatch. From here on only token ids travel."""

    id: str  # "<dataset>:<index>"; evaluation prompts "<dataset>:eval:<index>"
    index: int
    text: str  # the user's turn, for people to read
    token_ids: list[int]  # chat template applied, generation prompt added
    answer: Any = None  # what the verifier compares with, for people to read


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """One completion slot to be filled by an engine. `key` seeds the slot's private stream of random numbers."""

    id: str  # "<group id>/<index>"
    group_id: str
    index: int
    prompt_ids: list[int]
    key: int
    max_new_tokens: int
    temperature: float
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    stop_ids: list[int] = field(default_factory=list)
    purpose: Purpose = "train"
    # A sample taken up again after an abort: what it has so far, token by token. The rollout that comes back holds it, too.
    prefix_ids: list[int] = field(default_factory=list)
    prefix_logprobs: list[float] = field(default_factory=list)
    prefix_versions: list[int] = field(default_factory=list)
    prefix_support: list[list[int]] | None = None
    prefix_routing: str | None = None
    parked_on: str = ""  # the engine that may still hold this sample's cache; any other prefills


@dataclass(frozen=True, slots=True)
class Rollout:
    """What an engine returns. The three lists have one entry per generated token (end-of-sequence included).

    logprobs: natural log of the sampling distribution (after temperature and truncation) at the token drawn;
    versions: the policy version whose forward pass produced the token's logits.
    """

    id: str
    group_id: str
    index: int
    token_ids: list[int]
    logprobs: list[float]
    versions: list[int]
    finish_reason: FinishReason
    engine: str = ""
    seconds: float = 0.0  # from admission to the last token
    error: str = ""  # what the engine raised, where it failed
    # replay.sampling_mask: by token, the ids that truncated sampling had left to choose from (the drawn one among them); an empty
    # list where it left all.
    support: list[list[int]] | None = None
    # replay.routing: base64 of uint8 expert ids (positions, sparse layers, experts a token); position p belongs to the p-th input token,
    # prompt included, so there are len(prompt) + len(token_ids) - 1 of them.
    routing: str | None = None

    @property
    def of_one_version(self) -> bool:
        """Most that have tokens are: found several times faster than what their tokens tell one by one."""
        return bool(self.versions) and self.versions.count(self.versions[0]) == len(self.versions)

    @property
    def oldest_version(self) -> int:
        return self.versions[0] if self.of_one_version else min(self.versions)

    @property
    def versions_count(self) -> int:
        return 1 if self.of_one_version else len(set(self.versions))


@dataclass(slots=True)
class Sample:
    """A rollout with its judgement. reward None: scoring failed (see `error`); it is never 0 for that."""

    rollout: Rollout
    text: str = ""
    answer: str | None = None
    reward: float | None = None
    error: str | None = None
    advantage: float | None = None

    @property
    def truncated(self) -> bool:
        return self.rollout.finish_reason == "length"


@dataclass(slots=True)
class Group:
    """All samples of one prompt; the unit that the buffer holds. Complete when every slot has a scored sample."""

    id: str
    prompt: Prompt
    dispatched_version: int
    samples: list[Sample] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)  # the completion slots to be filled; empty: all of them

    @property
    def oldest_version(self) -> int:
        return min(sample.rollout.oldest_version for sample in self.samples if sample.rollout.versions)

    @property
    def rewards(self) -> list[float]:
        return [sample.reward for sample in self.samples if sample.reward is not None]


@dataclass(slots=True)
class Batch:
    """What one call of the trainer consumes: whole groups, in a fixed order."""

    step: int  # the step this batch will finish
    version: int  # the version of the weights being trained
    groups: list[Group]


@dataclass(slots=True)
class StepResult:
    """What the trainer says of one batch. `advantages`, `logprobs` and `masks` are by sample id; logprobs are the trainer's, recomputed;
    masks: of each completion token, 1 in the loss, 2 cut by the clip, 3 taken out by a correction. A sample without loss has none."""

    step: int
    metrics: dict[str, float]
    advantages: dict[str, float]
    logprobs: dict[str, list[float]]
    skipped: bool = False  # non-finite loss or gradient: no optimizer step was taken
    seconds: float = 0.0
    masks: dict[str, list[int]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Manifest:
    """One published payload. digest: BLAKE3 over the tensors' bytes in canonical name order; handle: where to read it."""

    version: int
    digest: str
    bytes: int
    payload: str
    transport: str
    handle: dict[str, Any]
    export_s: float = 0.0
    base: int | None = None  # a delta's base version: only an engine that serves it may apply the payload
    note: dict[str, float] = field(default_factory=dict)  # what the payload says of itself, e.g. {"changed_share": 0.03}


@dataclass(frozen=True, slots=True)
class UpdateReport:
    """An engine's answer to an update, given only after its digest agreed and the pointer was flipped. Seconds."""

    version: int
    digest: str
    transfer_s: float
    apply_s: float
    pause_s: float  # extra gap between two decode steps


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """An engine's load, for routing and the page."""

    version: int
    running: int
    waiting: int
    slots: int
    generated_tokens: int  # since start
    decode_s: float  # seconds spent in decode steps since start
    rss: int
    decode_steps: int = 0  # since start
    longest_decode_s: float = 0.0  # one decode step, since start: what a pause is measured by
    kv_tokens: int | None = None  # positions of running samples whose keys and values are held; None: the engine cannot tell
    kv_capacity: int | None = None  # positions that there is room for now
    failed_calls: int | None = None  # to a server elsewhere, since start, those that were made good included; None: there is no such server


_NESTED: dict[type, dict[str, type]] = {
    Sample: {"rollout": Rollout},
    Group: {"prompt": Prompt, "samples": Sample},
    Batch: {"groups": Group},
}


def from_wire(kind: type[T], data: dict[str, Any]) -> T:
    """The record that `to_wire` took apart. Raises TypeError on unknown or missing fields."""
    values = dict(data)
    for name, inner in _NESTED.get(kind, {}).items():
        given = values[name]
        values[name] = [from_wire(inner, item) for item in given] if isinstance(given, list) else from_wire(inner, given)
    return kind(**values)
