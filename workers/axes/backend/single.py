"""One trainer process: a frozen base model, adapters that learn, micro-batches by token budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from workers import models, registry
from workers.axes.backend import saving
from workers.axes.backend.layout import Item, MicroBatch, Row, build, micro_batches, rows_of
from workers.axes.backend.objective import Objective
from workers.axes.backend.optimizer import Stepper
from workers.axes.backend.passes import check_layout, forward
from workers.axes.backend.prepare import Prepared, prepare
from workers.axes.backend.spread import Alone, Spread
from workers.axes.backend.threads import share
from workers.axes.lora.base import Adapters, child_generator
from workers.axes.payload.base import Payload
from workers.axes.transport.base import Transport
from workers.contract.config import RunConfig
from workers.contract.errors import Cancelled
from workers.learn.diagnostics import masked_mean, mismatch
from workers.records import Batch, Manifest, StepResult


@dataclass
class _Tally:
    """What one batch gathers while it is trained. By item index: the trainer's log-probs before the update, and entropies."""

    logprobs: dict[int, Tensor] = field(default_factory=dict)
    entropy: dict[int, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    clipped: int = 0
    judged: int = 0
    stepped: dict[str, float] = field(default_factory=dict)
    SUMMED: ClassVar[tuple[str, ...]] = ("clipped",)  # counters that each rank keeps for its own rows; added up at the end of a batch


class SingleProcessTrainer:
    """See workers.axes.backend.base.Trainer. Adapters are float32, whatever the model's type."""

    def __init__(self, config: RunConfig, scratch: Path, transport: Transport) -> None:
        strict = config.determinism == "strict"
        self._threads = share(config, config.backend.threads)
        torch.set_num_threads(self._threads)
        self._config = config
        self._transport = transport
        self._interrupted = threading.Event()
        self._steps = 0  # batches trained
        transformers: Any = import_module("transformers")
        dtype = torch.float32 if strict else getattr(torch, config.model.dtype)
        folder = models.locate(config.model.path)
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation="sdpa")
        self._model.eval()  # no dropout: log-probs are of the policy that samples
        check_layout(self._model, config.model.path)
        self._adapters: Adapters = registry.resolve("lora", config.lora.kind)(self._model, config.lora, config.seed)
        self._payload: Payload = registry.resolve("payload", config.transport.payload)(config.transport.payload)
        self._objective = Objective(config)
        batch = config.batch
        self._spread = self._distribute()
        steps = config.budget.steps * batch.epochs * batch.minibatches
        self._stepper = Stepper(self._adapters.masters, config.optimizer, steps, self._spread)

    def train(self, batch: Batch) -> StepResult:
        """One batch: `epochs` x `minibatches` optimizer steps. With one step, old log-probs are those of its own forward pass."""
        started = time.perf_counter()
        torch.set_num_threads(self._threads)  # OpenMP counts threads for each calling thread apart
        prepared = prepare(batch, self._config)
        items = [item for group in prepared.groups for item in group]
        tally = _Tally()
        if items:
            plan = self._plan(prepared, batch.step)
            self._deal(prepared, plan)
            if len(plan) > 1:
                self._recompute(items, tally)
            for chosen in plan:
                self._optimizer_step(prepared, chosen, tally)
            self._collect(tally)
        self._steps += 1
        return StepResult(
            step=batch.step,
            metrics=self._metrics(items, tally),
            advantages=prepared.advantages,
            logprobs={item.id: tally.logprobs[item.index].tolist() for item in items},
            skipped=not tally.stepped,
            seconds=time.perf_counter() - started,
        )

    def publish(self, version: int, receivers: list[str]) -> Manifest:
        """What learns, in the model's type, packed as the config's payload says."""
        spread = self._spread
        weights = self._adapters.payload(lambda name, piece: spread.whole("part", name, piece))
        packed = self._payload.pack(weights, version)
        manifest = self._transport.send(packed.tensors, version, packed.kind, receivers)
        return replace(manifest, base=packed.base, note={**packed.note, **self._adapters.note()})

    def checkpoint(self, folder: Path, restore: bool = False) -> dict[str, Any]:
        """Saves or restores adapters, optimizer and counters. Random streams are counted, not stateful: steps name them."""
        if restore:
            counters = saving.restore(folder, self._adapters, self._stepper)
            self._steps = int(counters["steps"])
            return counters
        return saving.save(folder, self._adapters, self._stepper, self._config.model.path, {"steps": self._steps})

    def interrupt(self) -> None:
        """`train` raises Cancelled before its next micro-batch; the adapters stay as the last optimizer step left them."""
        self._interrupted.set()

    # -- what a backend of several ranks does otherwise ----------------------------------------------

    def _distribute(self) -> Spread:
        """Called once, when model and adapters are made: lays them out over the ranks."""
        return Alone()

    def _pass(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        """The forward pass of a micro-batch: log-probs and entropies, see `forward`."""
        return forward(self._model, micro, self._config.sampling.temperature)

    def _deal(self, prepared: Prepared, plan: list[list[int]]) -> None:
        """Called with each batch before its first pass: settles which items are this rank's, for the whole batch."""

    def _mine(self, items: Sequence[Item]) -> Sequence[Item]:
        """Those of `items` that this rank computes."""
        return items

    def _combine(self, loss: float) -> float:
        """Called before each optimizer step: adds up the ranks' gradients, and their shares of the loss."""
        return loss

    def _collect(self, tally: _Tally) -> None:
        """Called at the end of a batch: afterwards the tally speaks of every rank's items."""

    # -- one batch ---------------------------------------------------------------------------------

    def _plan(self, prepared: Prepared, step: int) -> list[list[int]]:
        """Which groups each optimizer step takes. Groups stay whole; several minibatches are dealt anew in every epoch."""
        count = len(prepared.groups)
        parts = min(self._config.batch.minibatches, count)
        plan: list[list[int]] = []
        for epoch in range(self._config.batch.epochs):
            order = list(range(count))
            if parts > 1:
                order = torch.randperm(count, generator=child_generator(self._config.seed, f"minibatch/{step}/{epoch}")).tolist()
            dealt = [sorted(order[part::parts]) for part in range(parts)]
            plan.extend(chosen for chosen in dealt if any(prepared.groups[number] for number in chosen))
        return plan

    def _recompute(self, items: Sequence[Item], tally: _Tally) -> None:
        """Old log-probs of the whole batch, before its first of several optimizer steps."""
        for micro in self._micro_batches(rows_of(self._mine(items), self._config.batch.micro_tokens)):
            with torch.no_grad():
                self._remember(micro, *self._pass(micro), tally)

    def _optimizer_step(self, prepared: Prepared, chosen: list[int], tally: _Tally) -> None:
        config = self._config
        items = self._mine([item for number in chosen for item in prepared.groups[number]])
        counts = prepared.denominators(chosen, config.sampling.max_new_tokens)
        rows = rows_of(items, config.batch.micro_tokens)
        # Rows of equal rewards have no gradient: their log-probs are wanted once, a backward pass never.
        silent = [row for row in rows if all(item.advantage == 0 for item in row.items)]
        teaching = [row for row in rows if any(item.advantage != 0 for item in row.items)]
        loss = 0.0
        for micro in self._micro_batches([row for row in silent if row.items[0].index not in tally.logprobs]):
            with torch.no_grad():
                self._remember(micro, *self._pass(micro), tally)
        for micro in self._micro_batches(teaching, learn=True):
            flat, entropy = self._pass(micro)
            if micro.items[0].index not in tally.logprobs:
                self._remember(micro, flat.detach(), entropy, tally)
            old = micro.spread(torch.cat([tally.logprobs[item.index] for item in micro.items]))
            share, clipped = self._objective.loss(micro, micro.spread(flat), old, counts)
            tally.clipped += clipped
            share.backward()  # type: ignore[no-untyped-call]
            self._adapters.gather()
            loss += float(share.detach())
        tally.judged += counts.tokens
        loss = self._combine(loss)
        stepped = self._stepper.step(loss)
        if stepped:
            self._adapters.refresh()
            tally.losses.append(loss)
            tally.stepped = stepped

    def _micro_batches(self, rows: Sequence[Row], learn: bool = False) -> Iterator[MicroBatch]:
        """Built one at a time; between two of them a cancel is heard. For each, the caller makes exactly one `_pass`, and where
        it is to `learn`, one backward pass: ranks of a sharded model must agree on their number."""
        pad = self._model.config.pad_token_id or 0
        for some in micro_batches(rows, self._config.batch.micro_tokens):
            if self._interrupted.is_set():
                self._stepper.clear()
                raise Cancelled("training was interrupted between two micro-batches")
            yield build(some, pad)

    def _remember(self, micro: MicroBatch, flat: Tensor, entropy: Tensor, tally: _Tally) -> None:
        lengths = [len(item.tokens) for item in micro.items]
        for item, logprobs, entropies in zip(micro.items, torch.split(flat, lengths), torch.split(entropy, lengths), strict=True):
            tally.logprobs[item.index] = logprobs
            tally.entropy[item.index] = entropies

    def _metrics(self, items: Sequence[Item], tally: _Tally) -> dict[str, float]:
        """Named as in workers.contract.metrics. What was not measured is left out."""
        values = dict(tally.stepped)
        values["loss/skipped_steps"] = float(self._stepper.skipped)
        if tally.losses:
            values["loss/policy"] = sum(tally.losses) / len(tally.losses)
        if items:
            pad = torch.nn.utils.rnn.pad_sequence
            trainer = pad([tally.logprobs[item.index] for item in items], batch_first=True).double()
            entropy = pad([tally.entropy[item.index] for item in items], batch_first=True)
            engine = pad([torch.tensor(item.rollout, dtype=torch.float64) for item in items], batch_first=True)
            lengths = torch.tensor([len(item.tokens) for item in items])
            mask = torch.arange(trainer.shape[1]) < lengths[:, None]
            values.update({f"loss/{name}": value for name, value in mismatch(trainer, engine, mask).items()})
            mean_entropy = masked_mean(entropy, mask)
            if mean_entropy is not None:
                values["loss/entropy"] = mean_entropy
            values["loss/clip_share"] = tally.clipped / tally.judged
        return values
