"""The forward passes of one engine: prefill, decode step, recomputation. It holds the model, the caches and the adapter that serves."""

from __future__ import annotations

import time
from collections.abc import Sequence as Series
from dataclasses import dataclass

import torch

from workers.contract.errors import EngineError
from workers.rollout.torch.adapter import no_adapter
from workers.rollout.torch.cache import Prefilled, PromptCache, SlotCache
from workers.rollout.torch.model import Model
from workers.rollout.torch.parked import ParkedCaches
from workers.rollout.torch.sampling import Plan, draw
from workers.rollout.torch.scheduler import Sequence
from workers.rollout.torch.update import Served
from workers.rollout.torch.weights import Weights

_PREFILL_TOKENS = 2048  # padded tokens of one prefill pass: bounds its memory


@dataclass(slots=True)
class Counters:
    """Read by other threads without a lock: each is written by the decode thread alone."""

    generated_tokens: int = 0
    decode_steps: int = 0
    decode_s: float = 0.0
    longest_decode_s: float = 0.0
    prefill_tokens: int = 0
    prefill_s: float = 0.0
    recomputed_tokens: int = 0  # prefilled again under new weights, or after an abort
    unparked: int = 0  # samples taken up again from the cache they were parked with


class Decoder:
    """Used by the decode thread alone. `isolated` computes every sample alone, so that no bit depends on what else runs."""

    def __init__(self, model: Model, name: str, isolated: bool, parks: bool) -> None:
        self.counters = Counters()
        self.adapter = no_adapter(model.shape)
        self.parked = ParkedCaches() if parks else None
        self._model = model
        self._name = name
        self._isolated = isolated
        self._slots = SlotCache(model.shape, model.dtype)
        self._prompts = PromptCache()

    @property
    def weights(self) -> Weights:
        return self._model.weights

    @property
    def kv_capacity(self) -> int:
        """Positions that the slots have room for now; they grow with what is admitted."""
        return self._slots.slots * self._slots.positions

    def serve(self, served: Served) -> Served:
        """Called between two passes: from now on this serves. Returns what it replaced."""
        replaced = Served(self.adapter, self._model.install(served.weights) if served.weights is not None else None)
        self.adapter = served.adapter
        self._prompts.clear()
        return replaced

    def moved(self, source: int, target: int, length: int) -> None:
        """Called when the sample in slot `source` takes the place of one that left."""
        self._slots.move(source, target, length)

    def park(self, sequence: Sequence) -> None:
        """Called at an abort, before a running sample leaves its slot."""
        if self.parked is not None:
            self.parked.park(sequence.request.id, sequence.cached_tokens, self._slots.copy(sequence.slot, sequence.length))

    def recompute(self, running: list[Sequence]) -> None:
        """Keys and values of running samples under the weights that serve."""
        contexts = [sequence.cached_tokens for sequence in running]
        for batch in self._batches(contexts):
            kept, _ = self._model.prefill([contexts[index] for index in batch], self.adapter)
            self._model.take_routing()  # what is recorded stays as it was when the tokens were drawn
            for index, keys_values in zip(batch, kept, strict=True):
                self._slots.load(running[index].slot, keys_values)
                self.counters.recomputed_tokens += len(contexts[index])

    def prefill(self, admitted: list[Sequence], slots: int) -> None:
        """Called with those just admitted; `slots` are in use. Then each has drawn a token, but for those taken up from a parked
        cache, which join the next decode step."""
        started = time.perf_counter()
        self._slots.reserve(slots, max(len(sequence.request.prompt_ids) + sequence.request.max_new_tokens for sequence in admitted))
        fresh = [sequence for sequence in admitted if not self._unpark(sequence)]
        found = self._prefilled(fresh)
        for sequence in fresh:
            prefilled = found[tuple(sequence.context)]
            self._slots.load(sequence.slot, prefilled.keys_values)
            if sequence.routing is not None and prefilled.routing is not None:
                sequence.routing.add(0, prefilled.routing)
            sequence.length = len(sequence.context)
        if fresh:
            self._draw(fresh, torch.stack([found[tuple(sequence.cached_tokens)].hidden for sequence in fresh]))
        self.counters.prefill_s += time.perf_counter() - started

    def _prefilled(self, sequences: list[Sequence]) -> dict[tuple[int, ...], Prefilled]:
        """Each distinct context is computed once; prompts without tokens of a sample are kept for the rest of their group."""
        prompts = {tuple(sequence.context): not sequence.tokens for sequence in sequences}
        found = {prompt: known for prompt in prompts if (known := self._prompts.find(prompt)) is not None}
        missing = [prompt for prompt in prompts if prompt not in found]
        for batch in self._batches(missing):
            kept, hidden = self._model.prefill([list(missing[index]) for index in batch], self.adapter)
            routing: list[torch.Tensor | None] = [*self._model.take_routing()] or [None] * len(batch)
            for row, (index, keys_values) in enumerate(zip(batch, kept, strict=True)):
                prompt = missing[index]
                found[prompt] = Prefilled(keys_values, hidden[row], routing[row])
                self.counters.prefill_tokens += len(prompt)
                if prompts[prompt]:
                    self._prompts.keep(prompt, found[prompt])
                else:
                    self.counters.recomputed_tokens += len(prompt)
        return found

    def _unpark(self, sequence: Sequence) -> bool:
        """Whether the sample goes on from the cache it was parked with."""
        if self.parked is None or not sequence.tokens:
            return False
        cached = sequence.context[:-1]  # the last token drawn has no keys and values yet: the next decode step makes them
        request = sequence.request
        whole = request.parked_on == self._name and (sequence.routing is None or request.prefix_routing is not None)
        keys_values = self.parked.take(request.id, cached) if whole else None
        if keys_values is None:
            return False
        self._slots.load(sequence.slot, keys_values)
        sequence.length = len(cached)
        self.counters.unparked += 1
        return True

    def _batches(self, contexts: Series[Series[int]]) -> list[list[int]]:
        """Indices of contexts to prefill together: like lengths together, within the token bound."""
        order = sorted(range(len(contexts)), key=lambda index: len(contexts[index]))
        batches: list[list[int]] = []
        for index in order:
            fits = batches and not self._isolated and (len(batches[-1]) + 1) * len(contexts[index]) <= _PREFILL_TOKENS
            if fits:
                batches[-1].append(index)
            else:
                batches.append([index])
        return batches

    def decode(self, running: list[Sequence]) -> None:
        """One token for every running sample; running[i] lives in slot i."""
        started = time.perf_counter()
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
        took = time.perf_counter() - started
        self.counters.decode_s += took
        self.counters.longest_decode_s = max(self.counters.longest_decode_s, took)

    def _draw(self, sequences: list[Sequence], hidden: torch.Tensor) -> None:
        """One token for each row."""
        width = 1 if self._isolated else len(sequences)
        for first in range(0, len(sequences), width):
            part = sequences[first : first + width]
            supports: list[list[int]] | None = None
            if any(sequence.support is not None for sequence in part):
                supports = [[] for _ in part]
            tokens, logprobs = draw(self._model.logits(hidden[first : first + width]), _plan(part), supports, self._model.draw)
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


def _plan(sequences: list[Sequence]) -> Plan:
    """A token's place in its random stream is its place in the completion, however often the sample was taken up again."""
    requests = [sequence.request for sequence in sequences]
    return Plan(
        keys=[request.key for request in requests],
        positions=[len(sequence.tokens) for sequence in sequences],
        temperatures=[request.temperature for request in requests],
        top_ks=[request.top_k for request in requests],
        top_ps=[request.top_p for request in requests],
        min_ps=[request.min_p for request in requests],
    )
