"""The whole story: generate -> score -> buffer -> train -> publish.

      dispatch ----> engines ----> scorer ----> buffer ----> trainer ----> publish
         ^             ^  each sample alone       |  whole      |             |
         |             |                          |  groups     |             |
         |             +---- new weights, between two forward passes <--------+
         +---- waits for: a free slot; room in the buffer; the depth bound

Three loops. `dispatch` waits for room and starts a group; it is freed by a finished sample, a group taken from the
buffer, a trained batch. `train` waits for a batch of admitted groups; it is freed by the buffer. `pulse` waits a second
and tells the state. A group's own task waits in `buffer.put` while the buffer is full: that is the backpressure.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from workers import report
from workers.axes.buffer.base import Buffer
from workers.axes.orchestration.base import TrainerClient
from workers.axes.staleness.base import Staleness
from workers.clock import Clock
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.emit import Emitter
from workers.environments.base import Environment
from workers.ledger import SampleLedger, TimeLedger
from workers.pool import Blocked, Pool
from workers.progress import Progress
from workers.rates import Rates
from workers.records import Batch, Group, Prompt, Sample, SampleRequest
from workers.requests import evaluation_request, training_requests
from workers.scoring.base import Scorer

TRAINER = "trainer"


@dataclass
class Parts:
    """Everything the flow needs, each behind its door."""

    config: RunConfig
    clock: Clock
    environment: Environment
    scorer: Scorer
    pool: Pool
    buffer: Buffer
    staleness: Staleness
    trainer: TrainerClient
    emit: Emitter
    samples: SampleLedger
    time: TimeLedger
    progress: Progress
    save: Callable[[dict[str, Group]], Awaitable[None]]  # writes a checkpoint of this very state
    stop_requested: Callable[[], bool] = field(default=lambda: False)  # asked between steps
    waiting_for_batch: bool = False


class Pipeline:
    """One attempt of a run, from the first dispatch to the last step."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.under_way: dict[str, Group] = {}  # dispatched, not yet in the buffer; saved by checkpoints
        self._moved = asyncio.Event()  # set whenever the answer of `_blocked` may have changed
        self._running: set[asyncio.Task[None]] = set()
        self._generating = 0  # samples dispatched to engines and not yet back
        self._waiting = 0  # complete groups that wait for room in the buffer
        self._rates = Rates()
        self._stepped_at = parts.clock.now()
        self._unpublished = 0  # samples trained whose publish is still to come

    async def run(self) -> None:
        """Returns when the budget is spent or a stop was requested. Raises the first failure of any loop."""
        async with asyncio.TaskGroup() as tasks:
            loops = {tasks.create_task(self._dispatch(tasks)), tasks.create_task(self._pulse())}
            await self._train()
            for task in loops | self._running:
                task.cancel()
            self._settle()

    async def _dispatch(self, tasks: asyncio.TaskGroup) -> None:
        for group in self.parts.progress.take_unfinished():
            self._start(tasks, group)
        while True:
            await self._room()
            prompt = self.parts.environment.source.next()
            group = Group(id=self.parts.progress.next_group_id(), prompt=prompt, dispatched_version=self.parts.progress.version)
            self.parts.samples.dispatch(self.parts.config.batch.group_size)
            self._start(tasks, group)

    def _start(self, tasks: asyncio.TaskGroup, group: Group) -> None:
        self.under_way[group.id] = group
        self._generating += self.parts.config.batch.group_size
        task = tasks.create_task(self._generate(group))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _room(self) -> None:
        """Waits until one more group may be dispatched, and says meanwhile what holds it back."""
        while (reason := self._blocked()) is not None:
            self.parts.pool.block(reason)
            self._moved.clear()
            await self._moved.wait()
        self.parts.pool.block(None)

    def _blocked(self) -> Blocked | None:
        config, samples = self.parts.config, self.parts.samples
        batch_samples = config.batch.prompts * config.batch.group_size
        under_way = samples.in_flight + samples.buffered
        if under_way >= (config.budget.steps - self.parts.progress.step) * batch_samples:
            return "enough"
        bound = config.staleness.depth_bound
        if bound is not None:
            limit = bound.value * (batch_samples if bound.unit == "batches" else 1)
            if under_way + self._unpublished + config.batch.group_size > limit:
                return "wait_depth_bound"
        if len(self.parts.buffer.contents()) + self._waiting >= config.buffer.depth:
            return "wait_buffer_full"
        return "slots_full" if self._generating >= self.parts.pool.slots else None

    async def _generate(self, group: Group) -> None:
        requests = training_requests(self.parts.config, group, self.parts.environment.stop_ids)
        group.samples = list(await asyncio.gather(*(self._fill(group.prompt, request) for request in requests)))
        await self._admit(group)

    async def _fill(self, prompt: Prompt, request: SampleRequest) -> Sample:
        rollout = await self.parts.pool.generate(request)
        self._generating -= 1
        self._moved.set()
        return await self.parts.scorer.score(prompt, rollout)

    async def _admit(self, group: Group) -> None:
        """Failed samples leave the group, counted; a group that can teach goes to the buffer."""
        ledger, failed = self.parts.samples, [sample for sample in group.samples if sample.reward is None]
        group.samples = [sample for sample in group.samples if sample.reward is not None]
        reason = None
        if len(group.samples) < 2:
            reason = "group_incomplete"
        elif self.parts.config.rewards.zero_variance == "drop" and len(set(group.rewards)) == 1:
            reason = "zero_variance"
        if reason is None:
            self._waiting += 1
            await self.parts.buffer.put(group)
            self._waiting -= 1
            ledger.buffer(len(group.samples))
        else:
            ledger.drop(len(group.samples), reason, buffered=False)
            report.dropped(self.parts, group, reason)
        if failed:
            ledger.drop(len(failed), "scoring_failed", buffered=False)
            report.failed(self.parts, group, failed)
        del self.under_way[group.id]
        self._moved.set()

    async def _train(self) -> None:
        parts, progress = self.parts, self.parts.progress
        if parts.config.evaluation.at_start and progress.step == 0:
            await self._evaluate()
        while progress.step < parts.config.budget.steps and not parts.stop_requested():
            began = parts.clock.now()
            batch = Batch(step=progress.step + 1, version=progress.version, groups=await self._batch())
            waited = parts.clock.now() - began
            with parts.time.during(TRAINER, "train"):
                result = await parts.trainer.train(batch)
            self._account(batch)
            report.step(parts, batch, result, waited, parts.clock.now() - self._stepped_at)
            self._stepped_at = parts.clock.now()
            if report.due(progress.step, parts.config.sync.every_steps):
                await self._publish()
            last = progress.step >= parts.config.budget.steps or parts.stop_requested()
            if report.due(progress.step, parts.config.evaluation.every_steps) or (last and parts.config.evaluation.at_end):
                await self._evaluate()
            if report.due(progress.step, parts.config.checkpoint.every_steps) or last:
                with parts.time.during(TRAINER, "checkpoint"):
                    await parts.save(self.under_way)
            parts.samples.check()
            report.state(parts, "running", self._rates.values)

    def _account(self, batch: Batch) -> None:
        count = sum(len(group.samples) for group in batch.groups)
        self.parts.samples.train(count)
        self.parts.progress.stepped(batch)
        # Until a due publish is done, the synchronous design must not dispatch at the old version.
        self._unpublished = count if report.due(batch.step, self.parts.config.sync.every_steps) else 0
        self._moved.set()

    async def _batch(self) -> list[Group]:
        """Takes admitted groups until they make a batch. What the staleness policy refuses is counted and replaced."""
        parts = self.parts
        parts.waiting_for_batch = True
        with parts.time.during(TRAINER, "wait_buffer_empty"):
            while len(parts.progress.batch) < parts.config.batch.prompts:
                group = await parts.buffer.take()
                self._moved.set()
                reason = parts.staleness.refuse(group, parts.progress.version)
                if reason is None:
                    parts.progress.batch.append(group)
                else:
                    parts.samples.drop(len(group.samples), reason, buffered=True)
                    report.dropped(parts, group, reason)
        parts.waiting_for_batch = False
        return sorted(parts.progress.batch, key=lambda group: (len(group.id), group.id))

    async def _publish(self) -> None:
        """A version advances only after every engine has answered with the published digest."""
        parts, began = self.parts, self.parts.clock.now()
        with parts.time.during(TRAINER, "sync_pause"):
            manifest = await parts.trainer.publish(parts.progress.version + 1)
            updates = await parts.pool.update(manifest)
        parts.progress.version = manifest.version
        self._unpublished = 0
        self._moved.set()
        report.sync(parts, manifest, updates, parts.clock.now() - began)

    async def _evaluate(self) -> None:
        """Held-out prompts at one pinned version: nothing is published while this waits."""
        parts, began = self.parts, self.parts.clock.now()
        prompts = parts.environment.evaluation_prompts
        with parts.time.during(TRAINER, "evaluation"):
            requests = [evaluation_request(parts.config, prompt, parts.environment.stop_ids) for prompt in prompts]
            rollouts = await asyncio.gather(*(parts.pool.generate(request) for request in requests))
            scored = [await parts.scorer.score(prompt, rollout) for prompt, rollout in zip(prompts, rollouts, strict=True)]
        if any(set(sample.rollout.versions) != {parts.progress.version} for sample in scored):
            raise EngineError("an evaluation mixed policy versions", field="evaluation", value=parts.progress.version)
        report.evaluation(parts, prompts, scored, parts.clock.now() - began)

    async def _pulse(self) -> None:
        while True:
            await self.parts.pool.refresh()
            self._rates.update(self.parts)
            report.pulse_metrics(self.parts, self._rates.values)
            report.state(self.parts, "running", self._rates.values)
            await self.parts.clock.sleep(1.0)

    def _settle(self) -> None:
        """The budget is spent: what is still under way is counted as dropped and ends."""
        ledger = self.parts.samples
        if ledger.in_flight:
            ledger.drop(ledger.in_flight, "run_ended", buffered=False)
        if ledger.buffered:
            ledger.drop(ledger.buffered, "run_ended", buffered=True)
        ledger.check()
