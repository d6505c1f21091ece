"""Who runs and who waits: requests join and leave at every decode step; the running ones fill the first slots."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from workers.contract.errors import EngineError
from workers.records import FinishReason, Rollout, SampleRequest
from workers.rollout.torch.experts import RoutingRecord

Answer = Callable[[Rollout | BaseException], None]


@dataclass(slots=True, eq=False)
class Sequence:
    """A request under way, begun with its prefix. `length` is how many of its tokens have keys and values: all but the last one
    drawn; 0 while it waits. `arrival` counts requests, so that those that go back to a queue keep their order.

    support, routing: see Rollout; None where they are not recorded.
    """

    request: SampleRequest
    answer: Answer
    slot: int = -1
    length: int = 0
    arrival: int = 0
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[int] = field(default_factory=list)
    admitted: float = 0.0
    cancelled: bool = False
    ended: FinishReason | None = None
    support: list[list[int]] | None = None
    routing: RoutingRecord | None = None

    def __post_init__(self) -> None:
        self.tokens = list(self.request.prefix_ids)
        self.logprobs = list(self.request.prefix_logprobs)
        self.versions = list(self.request.prefix_versions)
        if self.tokens:
            self._judge()

    def append(self, token: int, logprob: float, version: int, kept: list[int]) -> None:
        """One token was drawn, from the ids `kept` where that is recorded: keep it and see whether it was the last."""
        if self.support is not None:
            self.support.append(kept)
        self.tokens.append(token)
        self.logprobs.append(logprob)
        self.versions.append(version)
        self._judge()

    def _judge(self) -> None:
        if self.tokens[-1] in self.request.stop_ids:
            self.ended = "stop"
        elif len(self.tokens) >= self.request.max_new_tokens:
            self.ended = "length"

    @property
    def context(self) -> list[int]:
        """Prompt and tokens: what a prefill computes before the next token can be drawn."""
        return self.request.prompt_ids + self.tokens

    @property
    def cached_tokens(self) -> list[int]:
        """The tokens whose keys and values the slot holds."""
        return self.context[: self.length]

    def rollout(self, engine: str) -> Rollout:
        request = self.request
        seconds = time.perf_counter() - self.admitted if self.admitted else 0.0
        reason = self.ended or "abort"
        routing = None if self.routing is None else self.routing.encode()
        return Rollout(
            id=request.id,
            group_id=request.group_id,
            index=request.index,
            token_ids=self.tokens,
            logprobs=self.logprobs,
            versions=self.versions,
            finish_reason=reason,
            engine=engine,
            seconds=seconds,
            support=self.support,
            routing=routing,
        )


class Scheduler:
    """Slots and queues. Touched by the decode thread alone, but for `submit`; both under the loop's lock where
    queues change."""

    def __init__(self, max_running: int) -> None:
        self.max_running = max_running
        self.running: list[Sequence] = []  # running[i] lives in slot i
        self._evaluation: deque[Sequence] = deque()
        self._train: deque[Sequence] = deque()
        self._arrivals = 0

    @property
    def waiting(self) -> int:
        return len(self._evaluation) + len(self._train)

    def submit(self, sequence: Sequence) -> None:
        self._arrivals += 1
        sequence.arrival = self._arrivals
        self._queue(sequence).append(sequence)

    def admit(self) -> list[Sequence]:
        """Fills free slots: evaluation before training, each first come first served."""
        admitted = []
        while len(self.running) < self.max_running and self.waiting:
            sequence = (self._evaluation or self._train).popleft()
            sequence.slot = len(self.running)
            sequence.admitted = sequence.admitted or time.perf_counter()
            self.running.append(sequence)
            admitted.append(sequence)
        return admitted

    def retract(self) -> None:
        """Every running sample gives up its slot and goes back to the head of its queue; among them, first come first."""
        for sequence in sorted(self.running, key=lambda one: one.arrival, reverse=True):
            sequence.slot, sequence.length = -1, 0
            self._queue(sequence).appendleft(sequence)
        self.running = []

    def forget_cancelled(self) -> list[Sequence]:
        """Takes out of the queues whose caller has gone."""
        gone = [sequence for sequence in (*self._evaluation, *self._train) if sequence.cancelled]
        for sequence in gone:
            self._queue(sequence).remove(sequence)
        return gone

    def _queue(self, sequence: Sequence) -> deque[Sequence]:
        return self._evaluation if sequence.request.purpose == "evaluation" else self._train

    def leave(self, sequence: Sequence) -> tuple[int, int] | None:
        """Frees a slot. Returns (from, to) where the last running sample must move to keep the slots dense."""
        last = self.running.pop()
        if last is sequence:
            return None
        move = (last.slot, sequence.slot)
        last.slot = sequence.slot
        self.running[last.slot] = last
        return move

    def empty(self) -> list[Sequence]:
        """Takes everything out, running first."""
        everything = [*self.running, *self._evaluation, *self._train]
        self.running = []
        self._evaluation.clear()
        self._train.clear()
        return everything


def check_request(request: SampleRequest, vocabulary: int, max_positions: int) -> None:
    """Called before a request is queued. Raises EngineError naming what cannot be served."""
    total = len(request.prompt_ids) + request.max_new_tokens
    if not request.prompt_ids:
        raise EngineError("a request without prompt tokens", field="request.prompt_ids", value=request.id, cure="send at least one token")
    for field_name, ids in (("prompt_ids", request.prompt_ids), ("prefix_ids", request.prefix_ids)):
        if ids and (min(ids) < 0 or max(ids) >= vocabulary):
            raise EngineError(
                f"token id outside the model's vocabulary of {vocabulary}",
                field=f"request.{field_name}",
                value=next(token for token in ids if not 0 <= token < vocabulary),
                cure="use the model's tokenizer",
            )
    lengths = {len(request.prefix_ids), len(request.prefix_logprobs), len(request.prefix_versions)}
    if len(lengths) > 1 or len(request.prefix_ids) > request.max_new_tokens:
        raise EngineError(
            f"{len(request.prefix_ids)} prefix tokens with {len(request.prefix_logprobs)} log-probs and {len(request.prefix_versions)}"
            f" versions, for {request.max_new_tokens} new tokens",
            field="request.prefix_ids",
            value=request.id,
            cure="send one log-prob and one version a token, and no more tokens than max_new_tokens, which counts them",
        )
    if request.max_new_tokens < 1 or total > max_positions:
        raise EngineError(
            f"{len(request.prompt_ids)} prompt + {request.max_new_tokens} new tokens do not fit the {max_positions} positions of the model",
            field="sampling.max_new_tokens",
            value=request.max_new_tokens,
            cure=f"set it between 1 and {max(1, max_positions - len(request.prompt_ids))}",
        )
    if not (request.temperature >= 0 and request.top_k >= 0 and 0 < request.top_p <= 1 and 0 <= request.min_p <= 1):
        given = {"temperature": request.temperature, "top_k": request.top_k, "top_p": request.top_p, "min_p": request.min_p}
        raise EngineError(
            "sampling settings out of range", field="sampling", value=given, cure="temperature, top_k >= 0; 0 < top_p <= 1; 0 <= min_p <= 1"
        )
