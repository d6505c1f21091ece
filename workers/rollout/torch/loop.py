"""The decode loop: swap, admit, prefill, decode, in a thread of its own. It sleeps when there is nothing to do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

from workers.axes.interrupt.base import Interrupt
from workers.contract.errors import EngineError, HeadraceError
from workers.rollout.torch.adapter import Adapter, no_adapter
from workers.rollout.torch.cache import Prefilled, PromptCache, SlotCache
from workers.rollout.torch.model import Model
from workers.rollout.torch.sampling import Plan, draw
from workers.rollout.torch.scheduler import Scheduler, Sequence

_PREFILL_TOKENS = 2048  # padded tokens of one prefill pass: bounds its memory


@dataclass(slots=True)
class Staged:
    """New weights, ready to serve, and whom to tell. `flipped(seconds since staged, pause seconds)`."""

    adapter: Adapter
    staged_at: float
    flipped: Callable[[float, float], None]
    failed: Callable[[BaseException], None]


@dataclass(slots=True)
class Counters:
    """Read by other threads without a lock: each is written by the decode thread alone."""

    generated_tokens: int = 0
    decode_steps: int = 0
    decode_s: float = 0.0
    prefill_tokens: int = 0
    prefill_s: float = 0.0


class DecodeLoop:
    """One engine's inner life. `isolated` computes every sample alone, so that no bit depends on what else runs."""

    def __init__(self, model: Model, scheduler: Scheduler, interrupt: Interrupt, name: str, isolated: bool) -> None:
        self.counters = Counters()
        self.adapter = no_adapter(model.shape)
        self._model = model
        self._scheduler = scheduler
        self._interrupt = interrupt
        self._name = name
        self._isolated = isolated
        self._slots = SlotCache(model.shape, model.dtype)
        self._prompts = PromptCache()
        self._threads = torch.get_num_threads()
        self._wake = threading.Condition()
        self._staged: Staged | None = None
        self._flipping = self.adapter  # what `flip` puts in place
        self._stopping = False
        self._failure: BaseException | None = None
        self._cancellations = False
        self._thread = threading.Thread(target=self._run, name=f"decode-{name}", daemon=True)

    # -- called by other threads ------------------------------------------------------------------

    def start(self) -> None:
        self._thread.start()

    def submit(self, sequence: Sequence) -> None:
        """Queues a request. Raises EngineError when the engine has stopped or failed."""
        with self._wake:
            self._refuse_if_over()
            self._scheduler.submit(sequence)
            self._wake.notify()

    def cancel(self, sequence: Sequence) -> None:
        """The caller has gone: the sample leaves its slot before the next decode step."""
        with self._wake:
            sequence.cancelled = True
            self._cancellations = True
            self._wake.notify()

    def stage(self, staged: Staged) -> None:
        """Hands over weights that are ready. The newest wins if an older one has not been taken yet."""
        with self._wake:
            self._refuse_if_over()
            self._staged = staged
            self._wake.notify()

    def stop(self, timeout: float | None = None) -> bool:
        """Ends the thread between two decode steps. Returns whether it has ended."""
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.ident is not None:
            self._thread.join(timeout)
        return not self._thread.is_alive()

    def check(self) -> None:
        """Raises EngineError where the decode loop has failed: an engine that cannot decode is not alive."""
        if self._failure is not None:
            raise _as_engine_error(self._failure) from self._failure

    def _refuse_if_over(self) -> None:
        self.check()
        if self._stopping:
            raise EngineError("the engine has stopped", field="rollout", value=self._name, cure="start a new one")

    # -- the decode thread ------------------------------------------------------------------------

    def _run(self) -> None:
        torch.set_num_threads(self._threads)  # OpenMP counts threads for each calling thread apart
        try:
            with torch.inference_mode():
                while self._turn():
                    pass
        except BaseException as error:  # whatever it was, every waiting caller must hear of it
            self._fail(error)
            return
        self._end()

    def _turn(self) -> bool:
        """One round: at most one forward pass over the running samples. False: stop was asked for."""
        with self._wake:
            while not (self._stopping or self._staged or self._scheduler.running or self._scheduler.waiting):
                self._wake.wait()
            if self._stopping:
                return False
            staged = self._staged
            cancelled, self._cancellations = self._cancellations, False
        if cancelled:
            for sequence in [sequence for sequence in self._scheduler.running if sequence.cancelled]:
                self._leave(sequence, "abort")
        if staged is not None:
            self._swap(staged)
        with self._wake:
            admitted = self._scheduler.admit()
        if admitted:
            self._prefill(admitted)
        if self._scheduler.running:
            self._decode()
        return True

    def _swap(self, staged: Staged) -> None:
        """Between two forward passes: the pause is all the time until the next one may start."""
        started = time.perf_counter()
        busy = bool(self._scheduler.running)
        self._flipping = staged.adapter
        self.adapter = self._flipping
        self._prompts.clear()
        self._interrupt.flipped(self)
        with self._wake:
            if self._staged is staged:
                self._staged = None
        now = time.perf_counter()
        staged.flipped(now - staged.staged_at, now - started if busy else 0.0)

    @property
    def running(self) -> int:
        return len(self._scheduler.running)

    @property
    def waiting(self) -> int:
        return self._scheduler.waiting

    def hold_admission(self) -> None:
        raise NotImplementedError

    def retract(self) -> None:
        raise NotImplementedError

    def abort(self) -> None:
        raise NotImplementedError

    def recompute_cache(self) -> None:
        """Called by the interrupt: keys and values of all running samples under the adapter that serves."""
        running = list(self._scheduler.running)
        for batch in self._batches([sequence.cached_tokens for sequence in running]):
            kept, _ = self._model.prefill([running[index].cached_tokens for index in batch], self.adapter)
            self._model.take_routing()  # what is recorded stays as it was when the tokens were drawn
            for index, keys_values in zip(batch, kept, strict=True):
                self._slots.load(running[index].slot, keys_values)

    def _prefill(self, admitted: list[Sequence]) -> None:
        """Each distinct prompt is computed once, its keys and values copied to every sample of it; then the first tokens."""
        started = time.perf_counter()
        needed = max(len(sequence.request.prompt_ids) + sequence.request.max_new_tokens for sequence in admitted)
        self._slots.reserve(len(self._scheduler.running), needed)
        prompts = {tuple(sequence.request.prompt_ids): None for sequence in admitted}
        found = {prompt: known for prompt in prompts if (known := self._prompts.find(prompt)) is not None}
        missing = [prompt for prompt in prompts if prompt not in found]
        for batch in self._batches([list(prompt) for prompt in missing]):
            kept, hidden = self._model.prefill([list(missing[index]) for index in batch], self.adapter)
            routing: list[torch.Tensor | None] = [*self._model.take_routing()] or [None] * len(batch)
            for row, (index, keys_values) in enumerate(zip(batch, kept, strict=True)):
                found[missing[index]] = Prefilled(keys_values, hidden[row], routing[row])
                self._prompts.keep(missing[index], found[missing[index]])
                self.counters.prefill_tokens += len(missing[index])
        rows = []
        for sequence in admitted:
            prefilled = found[tuple(sequence.request.prompt_ids)]
            self._slots.load(sequence.slot, prefilled.keys_values)
            if sequence.routing is not None and prefilled.routing is not None:
                sequence.routing.add(0, prefilled.routing)
            sequence.length = len(sequence.request.prompt_ids)
            rows.append(prefilled.hidden)
        self._draw(admitted, torch.stack(rows))
        self.counters.prefill_s += time.perf_counter() - started

    def _batches(self, sequences: list[list[int]]) -> list[list[int]]:
        """Indices of sequences to prefill together: like lengths together, within the token bound."""
        order = sorted(range(len(sequences)), key=lambda index: len(sequences[index]))
        batches: list[list[int]] = []
        for index in order:
            fits = batches and not self._isolated and (len(batches[-1]) + 1) * len(sequences[index]) <= _PREFILL_TOKENS
            if fits:
                batches[-1].append(index)
            else:
                batches.append([index])
        return batches

    def _decode(self) -> None:
        """One token for every running sample."""
        started = time.perf_counter()
        running = list(self._scheduler.running)
        tokens = torch.tensor([sequence.tokens[-1] for sequence in running])
        positions = torch.tensor([sequence.length for sequence in running])
        width = 1 if self._isolated else len(running)
        hidden = torch.cat(
            [
                self._model.decode(tokens[first : first + width], positions[first : first + width], first, self._slots, self.adapter)
                for first in range(0, len(running), width)
            ]
        )
        for sequence, routing in zip(running, self._model.take_routing(), strict=False):  # none where it is not recorded
            if sequence.routing is not None:
                sequence.routing.add(sequence.length, routing)
        for sequence in running:
            sequence.length += 1
        self._draw(running, hidden)
        self.counters.decode_steps += 1
        self.counters.decode_s += time.perf_counter() - started

    def _draw(self, sequences: list[Sequence], hidden: torch.Tensor) -> None:
        """One token for each row; who is done leaves."""
        width = 1 if self._isolated else len(sequences)
        for first in range(0, len(sequences), width):
            part = sequences[first : first + width]
            supports: list[list[int]] | None = None
            if any(sequence.support is not None for sequence in part):
                supports = [[] for _ in part]
            tokens, logprobs = draw(self._model.logits(hidden[first : first + width]), _plan(part), supports)
            if not bool(logprobs.isfinite().all()):
                raise EngineError(
                    "the model's log-probs are not finite",
                    field="model",
                    value=f"version {self.adapter.version}",
                    cure="look at the gradient norm of the last steps; a lower optimizer.learning_rate helps",
                )
            drawn = zip(part, tokens.tolist(), logprobs.tolist(), supports or [[]] * len(part), strict=True)
            for sequence, token, logprob, kept in drawn:
                sequence.append(token, logprob, self.adapter.version, kept)
        self.counters.generated_tokens += len(sequences)
        for sequence in sequences:
            if sequence.ended is not None:
                self._leave(sequence, None)

    def _leave(self, sequence: Sequence, reason: str | None) -> None:
        if reason == "abort":
            sequence.ended = "abort"
        move = self._scheduler.leave(sequence)
        if move is not None:
            self._slots.move(move[0], move[1], self._scheduler.running[move[1]].length)
        sequence.answer(sequence.rollout(self._name))

    def _end(self) -> None:
        """Stop: running samples go out as they are, waiting ones have nothing to show and are refused."""
        with self._wake:
            left = self._scheduler.empty()
            staged, self._staged = self._staged, None
        stopped = EngineError(
            "the engine was stopped", field="rollout", value=self._name, cure="dispatch the request again", retryable=True
        )
        for sequence in left:
            if sequence.tokens:
                sequence.ended = "abort"
                sequence.answer(sequence.rollout(self._name))
            else:
                sequence.answer(stopped)
        if staged is not None:
            staged.failed(stopped)

    def _fail(self, error: BaseException) -> None:
        with self._wake:
            self._failure = error
            left = self._scheduler.empty()
            staged, self._staged = self._staged, None
        for sequence in left:
            sequence.answer(_as_engine_error(error))
        if staged is not None:
            staged.failed(_as_engine_error(error))


def _plan(sequences: list[Sequence]) -> Plan:
    requests = [sequence.request for sequence in sequences]
    return Plan(
        keys=[request.key for request in requests],
        positions=[len(sequence.tokens) for sequence in sequences],
        temperatures=[request.temperature for request in requests],
        top_ks=[request.top_k for request in requests],
        top_ps=[request.top_p for request in requests],
        min_ps=[request.min_p for request in requests],
    )


def _as_engine_error(error: BaseException) -> HeadraceError:
    """A fresh error for each caller: one exception object must not be raised in several tasks."""
    if isinstance(error, HeadraceError):
        return type(error)(error.message, field=error.field, value=error.value, cure=error.cure, retryable=error.retryable)
    message = f"the decode loop failed: {type(error).__name__}: {error}"
    return EngineError(message, field="rollout", cure="see the engine's log; a smaller rollout.max_running needs less memory")
