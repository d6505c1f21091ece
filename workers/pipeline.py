"""The whole story: generate -> score -> buffer -> train -> publish.

      dispatch ----> engines ----> scorer ----> buffer ----> trainer ----> publish
         ^             ^  each sample alone       |  whole      |             |
         |             |                          |  groups     |             |
         |             +---- new weights, between two forward passes <--------+
         +---- waits for: a free slot; room in the buffer; the depth bound

Three loops. `dispatch` waits for room and starts a group; it is freed by a finished sample, a group taken from the
buffer, a publish. `train` waits for a batch of admitted groups; it is freed by the buffer. `pulse` waits a second
and tells the state. A group's own task waits in `buffer.put` while the buffer is full: that is the backpressure.
"""

from __future__ import annotations

import asyncio
from collections import Counter

from workers import report
from workers.evaluate import evaluate
from workers.parts import TRAINER, Parts
from workers.records import Batch, Group, Prompt, Sample, SampleRequest
from workers.requests import training_requests
from workers.throttle import blocked

LOOK_AROUND_S = 1.0  # how often a waiting trainer asks whether it is to stop
REFUSED_BATCHES = 20  # so many batches' worth of groups dropped in a row, with none trained, is no progress


class Pipeline:
    """One attempt of a run, from the first dispatch to the last step."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self.under_way: dict[str, Group] = {}  # dispatched, not yet in the buffer; saved by checkpoints
        self._moved = asyncio.Event()  # set whenever the answer of `blocked` may have changed
        self._running: set[asyncio.Task[None]] = set()
        self._groups = len(parts.buffer.contents()) + len(parts.progress.batch)  # from dispatch until trained or dropped
        self._generating = 0  # samples dispatched to engines and not yet back
        self._waiting = 0  # complete groups that wait for room in the buffer
        self._unpublished = 0  # groups trained whose publish is still to come
        self._refused: Counter[str] = Counter()  # groups dropped since the last step, by reason
        self._done = dict.fromkeys(("publish", "evaluate", "save"), parts.progress.step)  # the step each was last done at
        self._stepped_at = parts.clock.now()

    async def run(self) -> None:
        """Returns when the budget is spent or a stop was requested. Raises the first failure of any loop."""
        async with asyncio.TaskGroup() as tasks:
            loops = {tasks.create_task(self._dispatch(tasks)), tasks.create_task(report.pulse(self.parts))}
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
        self._groups += 1
        self._generating += self.parts.config.batch.group_size
        task = tasks.create_task(self._generate(group))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def _room(self) -> None:
        """Waits until one more group may be dispatched, and says meanwhile what holds it back."""
        parts = self.parts
        while True:
            buffered = len(parts.buffer.contents())
            reason = blocked(
                parts.config,
                steps_done=parts.progress.step,
                groups=self._groups,
                unpublished=self._unpublished,
                waiting=buffered + self._waiting,
                generating=self._generating,
                slots=parts.pool.slots,
            )
            parts.pool.block(reason)
            if reason is None:
                return
            self._moved.clear()
            await self._moved.wait()

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
            self._refuse(group, reason, buffered=False)
        if failed:
            ledger.drop(len(failed), "scoring_failed", buffered=False)
            report.failed(self.parts, group, failed)
        del self.under_way[group.id]
        self._moved.set()

    def _refuse(self, group: Group, reason: str, *, buffered: bool) -> None:
        """Drops a whole group, counted and told. Too many in a row with nothing trained is a failure, not a wait."""
        self.parts.samples.drop(len(group.samples), reason, buffered=buffered)
        report.dropped(self.parts, group, reason)
        self._groups -= 1
        self._refused[reason] += 1
        if self._refused.total() >= REFUSED_BATCHES * self.parts.config.batch.prompts:
            raise report.no_progress(self._refused)

    async def _train(self) -> None:
        if self.parts.config.evaluation.at_start and self.parts.progress.step == 0:
            await self._evaluate()
        while not self._over() and (groups := await self._batch()):
            await self._step(groups)
            await self._after_step()
        await self._conclude()

    def _over(self) -> bool:
        return self.parts.progress.step >= self.parts.config.budget.steps or self.parts.stop_requested()

    async def _step(self, groups: list[Group]) -> None:
        parts, progress = self.parts, self.parts.progress
        batch = Batch(step=progress.step + 1, version=progress.version, groups=groups)
        waited = parts.clock.now() - self._stepped_at
        with parts.time.during(TRAINER, "train"):
            result = await parts.trainer.train(batch)
        parts.samples.train(sum(len(group.samples) for group in groups))
        progress.stepped(batch)
        self._groups -= len(groups)
        self._refused.clear()
        # Until a due publish is done, the synchronous design must not dispatch at the old version.
        self._unpublished = len(groups) if report.due(batch.step, parts.config.sync.every_steps) else 0
        self._moved.set()
        report.step(parts, batch, result, waited, parts.clock.now() - self._stepped_at)
        self._stepped_at = parts.clock.now()

    async def _after_step(self) -> None:
        config, step = self.parts.config, self.parts.progress.step
        evaluate = report.due(step, config.evaluation.every_steps)
        save = report.due(step, config.checkpoint.every_steps) or self.parts.save_requested()
        # A score and a checkpoint are of a published version, so that a version never means two sets of weights.
        if report.due(step, config.sync.every_steps) or evaluate or save:
            await self._publish()
        if evaluate:
            await self._evaluate()
        if save:
            await self._save()
        self.parts.samples.check()
        report.state(self.parts, "running")

    async def _conclude(self) -> None:
        """The end, by budget or on request: the last weights are published, measured and saved."""
        step = self.parts.progress.step
        if self._done["publish"] < step:
            await self._publish()
        if self._done["evaluate"] < step and self.parts.config.evaluation.at_end:
            await self._evaluate()
        if self._done["save"] < step:
            await self._save(last=True)

    async def _batch(self) -> list[Group]:
        """Takes admitted groups until they make a batch; what the staleness policy refuses is counted and replaced.

        Empty when a stop was requested meanwhile; what was taken stays in `progress.batch`.
        """
        parts, gathered = self.parts, self.parts.progress.batch
        parts.waiting_for_batch = True
        with parts.time.during(TRAINER, "wait_buffer_empty"):
            while len(gathered) < parts.config.batch.prompts:
                group = await self._take()
                if group is None:
                    return []
                self._moved.set()
                reason = parts.staleness.refuse(group, parts.progress.version)
                if reason is None:
                    gathered.append(group)
                else:
                    self._refuse(group, reason, buffered=True)
        parts.waiting_for_batch = False
        return sorted(gathered, key=lambda group: (len(group.id), group.id))

    async def _take(self) -> Group | None:
        """The next group of the buffer, None when a stop was requested first."""
        taking = asyncio.create_task(self.parts.buffer.take())
        try:
            while not taking.done():
                await asyncio.wait({taking}, timeout=LOOK_AROUND_S)
                if not taking.done() and self.parts.stop_requested():
                    return None
            return taking.result()
        finally:
            taking.cancel()

    async def _publish(self) -> None:
        """A version advances only after every engine has answered with the published digest."""
        parts, began = self.parts, self.parts.clock.now()
        with parts.time.during(TRAINER, "sync_pause"):
            manifest = await parts.trainer.publish(parts.progress.version + 1)
            updates = await parts.pool.update(manifest)
        parts.progress.version = manifest.version
        self._done["publish"] = parts.progress.step
        self._unpublished = 0
        self._moved.set()
        report.sync(parts, manifest, updates, parts.clock.now() - began)

    async def _evaluate(self) -> None:
        await evaluate(self.parts)
        self._done["evaluate"] = self.parts.progress.step

    async def _save(self, last: bool = False) -> None:
        """A save that finds no room is told and tried again at the next due step; only the last one must succeed."""
        try:
            with self.parts.time.during(TRAINER, "checkpoint"):
                await self.parts.save(self.under_way)
            self._done["save"] = self.parts.progress.step
        except OSError as error:
            self.parts.emit.log("error", f"the checkpoint of step {self.parts.progress.step} was not written: {error}", "checkpoint")
            if last:
                raise

    def _settle(self) -> None:
        """What is still under way is counted as dropped and ends."""
        ledger = self.parts.samples
        if ledger.in_flight:
            ledger.drop(ledger.in_flight, "run_ended", buffered=False)
        if ledger.buffered:
            ledger.drop(ledger.buffered, "run_ended", buffered=True)
        ledger.check()
