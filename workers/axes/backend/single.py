"""One trainer process: a frozen base model, adapters that learn, micro-batches by token budget."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from workers import models, registry
from workers.axes.backend import saving
from workers.axes.backend.attention import install
from workers.axes.backend.layout import Item, MicroBatch, Row, build, micro_batches, rows_of
from workers.axes.backend.objective import Objective
from workers.axes.backend.optimizer import Stepper
from workers.axes.backend.passes import check_layout, forward
from workers.axes.backend.prepare import Prepared, prepare
from workers.axes.backend.reference import Others
from workers.axes.backend.routing import check_replay, choices, recalled, recorded
from workers.axes.backend.spread import Alone, Spread
from workers.axes.backend.tally import Tally, by_item
from workers.axes.backend.threads import share
from workers.axes.lora.base import Adapters, as_it_is, child_generator
from workers.axes.payload.base import Payload
from workers.axes.transport.base import Transport
from workers.contract.config import RunConfig
from workers.contract.errors import Cancelled
from workers.records import Batch, Manifest, StepResult


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
        self._keeps_choice = config.replay.routing == "r2"
        transformers: Any = import_module("transformers")
        dtype = torch.float32 if strict else getattr(torch, config.model.dtype)
        folder = models.locate(config.model.path)
        transformers.utils.logging.disable_progress_bar()
        self._model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, attn_implementation=install())
        self._model.eval()  # no dropout: log-probs are of the policy that samples
        check_layout(self._model, config.model.path)
        check_replay(self._model, config.replay.routing)
        self._adapters: Adapters = registry.resolve("lora", config.lora.kind)(self._model, config.lora, config.seed)
        self._payload: Payload = registry.resolve("payload", config.transport.payload)(config.transport.payload)
        self._objective = Objective(config)
        self._others = Others(config, self._model, self._adapters)
        batch = config.batch
        self._spread = self._distribute()
        steps = config.budget.steps * batch.epochs * batch.minibatches
        self._stepper = Stepper(self._adapters.masters, config.optimizer, steps, self._spread)
        if config.model.init_from is not None:
            saving.begin(Path(config.model.init_from), self._adapters, self._spread)

    def train(self, batch: Batch) -> StepResult:
        """One batch: `epochs` x `minibatches` optimizer steps. With one step, old log-probs are those of its own forward pass."""
        started = time.perf_counter()
        torch.set_num_threads(self._threads)  # OpenMP counts threads for each calling thread apart
        prepared = prepare(batch, self._config)
        items = [item for group in prepared.groups for item in group]
        tally = Tally()
        if items:
            plan = self._plan(prepared, batch.step)
            self._deal(prepared, plan)
            self._score(items, tally)
            objective = self._objective
            if objective.counts_survivors or (len(plan) > 1 and (self._keeps_choice or not objective.interpolates)):
                self._recompute(items, tally)
            for number, chosen in enumerate(plan):
                self._optimizer_step(prepared, chosen, tally, first=number == 0)
            self._collect(tally)
        self._steps += 1
        return StepResult(
            step=batch.step,
            metrics={
                **tally.metrics(items, self._config.loss),
                **({"loss/masked_share": prepared.masked_share} if prepared.advantages else {}),
                "loss/skipped_steps": float(self._stepper.skipped),
            },
            advantages=prepared.advantages,
            logprobs={item.id: tally.logprobs[item.index].tolist() for item in items},
            masks=tally.masks(items),
            skipped=not tally.stepped,
            seconds=time.perf_counter() - started,
        )

    def publish(self, version: int, receivers: list[str]) -> Manifest:
        """What learns, in the model's type, packed as the config's payload says."""
        spread = self._spread
        weights = self._adapters.payload((lambda name, piece: spread.whole("part", name, piece)) if spread.cuts else as_it_is)
        packed = self._payload.pack(weights, version, receivers)
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

    def close(self) -> None:
        """One process has started no other."""

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

    def _agree(self, counted: dict[int, int]) -> dict[int, int]:
        """Called before each optimizer step whose denominators are those of a correction's survivors: every rank's counts."""
        return counted

    def _heed(self) -> None:
        """Called before each micro-batch. Raises Cancelled, with no gradient left behind, where `interrupt` was called."""
        if self._interrupted.is_set():
            self._stepper.clear()
            raise Cancelled("training was interrupted between two micro-batches")

    def _combine(self, loss: float) -> float:
        """Called before each optimizer step: adds up the ranks' gradients, and their shares of the loss."""
        return loss

    def _collect(self, tally: Tally) -> None:
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

    def _score(self, items: Sequence[Item], tally: Tally) -> None:
        """Other models' log-probs of the batch's tokens, where the loss reads them. Before the batch's first optimizer step."""
        rows = rows_of(self._mine(items), self._config.batch.micro_tokens)
        for name in self._others.scored:
            kept = tally.others.setdefault(name, {})
            switch = self._others.switch(name)
            if switch is None:
                for micro in self._built(rows):
                    kept.update(by_item(micro, self._others.logprobs(name, micro)))
                continue
            with torch.no_grad(), switch:
                for micro in self._micro_batches(rows):
                    kept.update(by_item(micro, self._pass(micro)[0]))

    def _recompute(self, items: Sequence[Item], tally: Tally) -> None:
        """Old log-probs of the whole batch, before its first of several optimizer steps."""
        for micro in self._micro_batches(rows_of(self._mine(items), self._config.batch.micro_tokens)):
            with torch.no_grad(), recorded(self._model, self._keeps_choice) as seen:
                tally.remember(micro, *self._pass(micro))
            tally.routing.update(choices(micro, seen))

    def _optimizer_step(self, prepared: Prepared, chosen: list[int], tally: Tally, first: bool) -> None:
        config = self._config
        items = recalled(self._mine([item for number in chosen for item in prepared.groups[number]]), tally.routing)
        rows = rows_of(items, config.batch.micro_tokens)
        counted = self._counted(prepared, rows, tally, first) if self._objective.counts_survivors else None
        weights = prepared.weights(chosen, config.loss, config.sampling.max_new_tokens, counted)
        # Rows of equal rewards have no gradient: their log-probs are wanted once, a backward pass never.
        teaches = [self._objective.always_teaches or any(item.advantage != 0 for item in row.items) for row in rows]
        silent = [row for row, flag in zip(rows, teaches, strict=True) if not flag]
        loss = 0.0
        for micro in self._micro_batches([row for row in silent if row.items[0].index not in tally.logprobs]):
            with torch.no_grad():
                tally.remember(micro, *self._pass(micro))
        for micro in self._micro_batches([row for row, flag in zip(rows, teaches, strict=True) if flag], learn=True):
            with self._others.watched() as seen:
                flat, entropy = self._pass(micro)
            if micro.items[0].index not in tally.logprobs:
                tally.remember(micro, flat.detach(), entropy)
            share = self._objective.loss(
                micro,
                micro.spread(flat),
                tally.known(prepared, micro),
                torch.tensor([weights[item.index] for item in micro.items], dtype=torch.float64),
                self._others.divergence(micro, seen),
            )
            tally.add(micro, share)
            share.loss.backward()  # type: ignore[no-untyped-call]
            self._adapters.gather()
            loss += float(share.loss.detach())
        tally.judged += prepared.tokens(chosen)
        loss = self._combine(loss)
        stepped = self._stepper.step(loss)
        if stepped:
            self._adapters.refresh()
            tally.losses.append(loss)
            tally.stepped = stepped

    def _counted(self, prepared: Prepared, rows: Sequence[Row], tally: Tally, first: bool) -> dict[int, int]:
        """Tokens in the denominator, by item index. Where a gate looks at today's policy and steps were taken since the recompute
        pass, that takes a forward pass of its own."""
        found: dict[int, int] = {}
        anew = self._objective.counts_anew and not first
        with torch.no_grad():
            for micro in self._micro_batches(rows) if anew else self._built(rows):
                known = tally.known(prepared, micro)
                current = micro.spread(self._pass(micro)[0]) if anew else known.old
                for item, count in zip(micro.items, self._objective.survivors(micro, current, known).tolist(), strict=True):
                    found[item.index] = int(count)
        return self._agree(found)

    def _micro_batches(self, rows: Sequence[Row], learn: bool = False) -> Iterator[MicroBatch]:
        """For each, the caller makes exactly one `_pass`, and where it is to `learn`, one backward pass: ranks of a sharded model
        must agree on their number."""
        yield from self._built(rows)

    def _built(self, rows: Sequence[Row]) -> Iterator[MicroBatch]:
        """Micro-batches, built one at a time; between two of them a cancel is heard."""
        pad = self._model.config.pad_token_id or 0
        for some in micro_batches(rows, self._config.batch.micro_tokens):
            self._heed()
            yield build(some, pad)
