"""The whole story: generate -> score -> buffer -> train -> publish.

      dispatch ----> engines ----> scorer ----> buffer ----> trainer ----> publish
         ^             ^  each sample alone       |  whole      |             |
         |             |                          |  groups     |             |
         |             +---- new weights, as the interrupt says <--------------+
         +---- waits for: a free slot; room in the buffer; the depth bound; a swap

Three loops. `dispatch` waits for room and starts a group; it is freed by a finished sample, a group taken from the
buffer, a publish. `train` waits for a batch of admitted groups; it is freed by the buffer. `pulse` waits a second
and tells the state. A group's own task (see `flight`) waits in `buffer.put` while the buffer is full: that is the backpressure.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter

from workers import admission, gauges, report, steering
from workers.contract.failpoints import reached
from workers.evaluate import evaluate
from workers.fates import indices
from workers.flight import Flight
from workers.gather import Gather
from workers.parts import TRAINER, Parts
from workers.progress import slots_of
from workers.publish import publish
from workers.records import Batch, Group
from workers.throttle import Load, blocked

REFUSED_BATCHES = 20  # so many batches' worth of groups refused in a row, with none trained, is no progress


class Pipeline:
    """One attempt of a run, from the first dispatch to the last step."""

    def __init__(self, parts: Parts) -> None:
        self.parts = parts
        self._moved = asyncio.Event()  # set whenever the answer of `blocked` may have changed
        self.flight = Flight(parts, self._admit, self._returned)
        self._gather = Gather(parts, self._moved.set, self._refuse, self._recycle, lambda: self._over() or parts.steering.pause)
        self._tasks = asyncio.TaskGroup()
        self._groups = len(parts.buffer.contents()) + len(parts.progress.batch)  # from dispatch until trained or dropped
        self._door: list[Group] = []  # complete groups that wait for room in the buffer
        self._unpublished = 0  # groups trained whose publish is still to come
        self._swapping = False
        self._refused: Counter[str] = Counter()  # groups refused since the last step, by reason
        self._pending: set[str] = set()  # publish, evaluate, save: due, and not done yet
        self._done = dict.fromkeys(("publish", "evaluate", "save"), parts.progress.step)  # the step each was last done at
        self._stepped_at = parts.clock.now()

    async def run(self) -> None:
        """Returns when the budget is spent or a stop was requested. Raises the first failure of any loop."""
        async with self._tasks as tasks:
            loops = {tasks.create_task(self._dispatch()), tasks.create_task(self._pulse())}
            await self._train()
            for task in loops:
                task.cancel()
            self.flight.cancel()
            self._settle()

    async def _dispatch(self) -> None:
        for group in self.parts.progress.take_unfinished():
            self._start(group)
        while True:
            await self._room()
            prompt = self.parts.environment.source.next()
            self.parts.samples.effects["prompts_passed_over"] = self.parts.environment.source.passed_over
            self.parts.samples.effects["prompts_let_through"] = self.parts.environment.source.let_through
            group = Group(id=self.parts.progress.next_group_id(), prompt=prompt, dispatched_version=self.parts.progress.version)
            self.parts.samples.dispatch(self.parts.config.batch.group_size)
            self._start(group)

    def _start(self, group: Group) -> None:
        self._groups += 1
        self.flight.start(self._tasks, group)

    async def _pulse(self) -> None:
        while self.parts.pulse_s is not None:
            await report.pulse(self.parts, self.parts.pulse_s)
            self._moved.set()  # the budget may have been changed from outside

    def _returned(self) -> None:
        """A sample is back: of all that holds dispatch back, it changes the slots alone."""
        if self.parts.pool.blocked == "slots_full" and self.flight.generating < self.parts.pool.slots:
            self._moved.set()

    async def _room(self) -> None:
        """Waits until one more group may be dispatched, and says meanwhile what holds it back."""
        while True:
            reason = blocked(self.parts.config, self._load())
            self.parts.pool.block(reason)
            if reason is None:
                return
            self._moved.clear()
            await self._moved.wait()

    def _load(self) -> Load:
        parts = self.parts
        capacity = parts.buffer.capacity if parts.config.buffer.kind != "stream" else None  # a full ring holds nothing back
        return Load(
            groups_left=steering.groups_left(parts),
            groups=self._groups + parts.progress.holes,
            unpublished=self._unpublished,
            units=0 if capacity is None else gauges.units(parts, [*parts.buffer.contents(), *self._door]),
            capacity=capacity,
            generating=self.flight.generating,
            slots=parts.pool.slots,
            swapping=self._swapping,
            delayed=self._delayed(),
            pausing=parts.held or parts.steering.pause,
        )

    async def _admit(self, group: Group) -> None:
        """All its samples are back: those that cannot teach leave it, counted; a group that can goes to the buffer."""
        parts = self.parts
        verdict = admission.judge(parts.config.rewards, group)
        group.samples, group.slots = verdict.kept, []
        if parts.config.rewards.on_truncated in ("mask", "penalise"):
            parts.samples.effects[f"truncated_{parts.config.rewards.on_truncated}"] += sum(sample.truncated for sample in group.samples)
        for reason, samples in verdict.left.items():
            parts.drop(group, indices(samples), reason, buffered=False)
            report.left(parts, group, samples, reason)
        if verdict.refuse is None or (verdict.refuse == "zero_variance" and self._keeps_equal()):
            reached("group.admitted")
            self._door.append(group)
            try:
                evicted = await parts.buffer.put(group)
            finally:
                self._door.remove(group)
            parts.samples.buffer(len(group.samples))
            for old in evicted:
                self._refuse(old, "overwritten", buffered=True)
        else:
            self._refuse(group, verdict.refuse, buffered=False)
        # Not while it waits at the door: a checkpoint names it as in flight, and a resume would see its rewards twice.
        parts.environment.source.observe(group.prompt, group.rewards)
        self._moved.set()

    def _keeps_equal(self) -> bool:
        """A group of equal rewards is to go: it leaves a hole in its batch, or is replaced while refills last. True: it stays."""
        progress, rewards = self.parts.progress, self.parts.config.rewards
        if rewards.zero_variance == "refill":
            if progress.refills >= rewards.refill_max:
                return True
            progress.refills += 1
            self.parts.samples.effects["groups_refilled"] += 1
        elif progress.holes < self.parts.config.batch.prompts - 1:  # at least one group is trained in every batch
            progress.holes += 1
            self._gather.hole()
            self.parts.samples.effects["groups_left_out"] += 1
        return False

    def _refuse(self, group: Group, reason: str, *, buffered: bool) -> None:
        """Drops a whole group, counted and told. Too many in a row with nothing trained is a failure, not a wait."""
        self.parts.drop(group, indices(group.samples), reason, buffered=buffered)
        report.dropped(self.parts, group, reason)
        self._groups -= 1
        if reason != "overwritten" or self.parts.waiting_for_batch:  # while the trainer works, a ring may turn as often as it likes
            self._count_refusal(reason)

    def _recycle(self, group: Group) -> None:
        """Generated again, in part or whole; it counts as under way all the time."""
        self.flight.start(self._tasks, group)
        self._count_refusal("recycled")

    def _count_refusal(self, reason: str) -> None:
        self._refused[reason] += 1
        if self._refused.total() >= REFUSED_BATCHES * self.parts.config.batch.prompts:
            raise report.no_progress(self._refused, self.parts.last_fault)

    async def _train(self) -> None:
        if self.parts.config.evaluation.at_start and self.parts.progress.step == 0:
            await self._evaluate()
        while not self._over():
            if self.parts.steering.pause:
                await self._hold()
            elif groups := await self._gather.batch():
                await self._step(groups)
                await self._after_step()
        await self._conclude()

    def _over(self) -> bool:
        return steering.spent(self.parts) or self.parts.stop_requested()

    async def _hold(self) -> None:
        """Paused: what engines have already is finished and waits; all else stands still. A checkpoint may be asked for meanwhile."""
        parts, began = self.parts, self.parts.clock.now()
        parts.held = True
        parts.pool.hold(True)
        with parts.time.during(TRAINER, "paused"):
            report.state(parts)
            while parts.steering.pause and not self._over():
                await self._settle_due()
                parts.steering.changed.clear()
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(parts.steering.changed.wait(), parts.pulse_s)
        parts.held = False
        parts.pool.hold(False)
        self._stepped_at += parts.clock.now() - began  # the pause is no part of a step
        self._moved.set()
        report.state(parts)

    async def _step(self, groups: list[Group]) -> None:
        parts, progress = self.parts, self.parts.progress
        batch = Batch(step=progress.step + 1, version=progress.version, groups=groups)
        reached("batch.gathered")
        waited = parts.clock.now() - self._stepped_at
        with parts.time.during(TRAINER, "train"):
            result = await parts.trainer.train(batch)
        reached("step.trained")
        parts.samples.train(sum(len(group.samples) for group in groups))
        progress.stepped(batch)
        self._groups -= len(groups)
        self._refused.clear()
        # Until a due publish is done, the synchronous design must not dispatch at the old version.
        bound, every = parts.config.staleness.depth_bound, parts.config.sync.every_steps
        if bound is not None and bound.unit == "fraction":  # it counts all that is trained until the next sync
            self._unpublished += len(groups)
        else:
            self._unpublished = len(groups) if report.due(batch.step, every) else 0
        self._moved.set()
        report.step(parts, batch, result, waited, parts.clock.now() - self._stepped_at)
        self._stepped_at = parts.clock.now()
        reached("step.counted")

    async def _after_step(self) -> None:
        config, step = self.parts.config, self.parts.progress.step
        every = {"publish": config.sync.every_steps, "evaluate": config.evaluation.every_steps, "save": config.checkpoint.every_steps}
        self._pending |= {name for name, steps in every.items() if report.due(step, steps)}
        await self._settle_due()
        self._moved.set()
        self.parts.samples.check()
        report.state(self.parts)

    async def _settle_due(self) -> None:
        """Publishes, evaluates and saves what is due and may be done now."""
        if self.parts.save_requested():
            self._pending.add("save")
        if self._pending and not self._delayed():
            # A score and a checkpoint are of a published version, so that a version never means two sets of weights.
            await self._publish()
            if "evaluate" in self._pending:
                await self._evaluate()
            if "save" in self._pending:
                await self._save()
            self._pending.clear()

    def _delayed(self) -> bool:
        """Whether a publish is due and has to wait: it would push over the limit what is still to be trained."""
        if not self._pending:
            return False
        parts, following = self.parts, self.parts.progress.version + 1
        return parts.staleness.delays((*self.flight.groups.values(), *parts.buffer.contents(), *parts.progress.batch), following)

    async def _conclude(self) -> None:
        """The end, by budget or on request: the last weights are published, measured and saved."""
        step = self.parts.progress.step
        if self._done["publish"] < step:
            await self._publish()
        if self._done["evaluate"] < step and (self.parts.config.evaluation.at_end or "evaluate" in self._pending):
            await self._evaluate()
        if self._done["save"] < step:
            await self._save(last=True)

    async def _publish(self) -> None:
        """A version advances only after every engine has answered with the published digest."""
        parts, began = self.parts, self.parts.clock.now()
        # What were dispatched now would be too old, or would keep the engines from running empty.
        self._swapping = parts.config.interrupt.kind == "batch" or parts.config.staleness.over_limit == "wait"
        try:
            manifest, updates = await publish(parts, parts.progress.version + 1)
        finally:
            self._swapping = False
        parts.progress.version = manifest.version
        for group in self.flight.give_up(manifest.version):
            given_up = slots_of(parts.config, group)
            parts.drop(group, given_up, "cancelled", buffered=False)
            parts.progress.told.count("cancelled", len(given_up))
            self._groups -= 1
        self._done["publish"] = parts.progress.step
        self._unpublished = 0
        self._moved.set()
        report.sync(parts, manifest, updates, parts.clock.now() - began)
        reached("publish.told")

    async def _evaluate(self) -> None:
        await evaluate(self.parts)
        self._done["evaluate"] = self.parts.progress.step

    async def _save(self, last: bool = False) -> None:
        """A save that finds no room is told and tried again at the next due step; only the last one must succeed."""
        try:
            with self.parts.time.during(TRAINER, "checkpoint"):
                await self.parts.save(self.flight.groups)
            self._done["save"] = self.parts.progress.step
        except OSError as error:
            self.parts.emit.log("error", f"the checkpoint of step {self.parts.progress.step} was not written: {error}", "checkpoint")
            if last:
                raise

    def _settle(self) -> None:
        """What is still under way is counted as dropped and ends."""
        parts = self.parts
        for group in (*self.flight.groups.values(), *parts.progress.unfinished):  # those, where dispatch had no turn before the end
            parts.drop(group, slots_of(parts.config, group), "run_ended", buffered=False)
        for group in (*parts.buffer.contents(), *parts.progress.batch):
            parts.drop(group, slots_of(parts.config, group), "run_ended", buffered=True)
        report.groups(parts)
        parts.samples.check()
