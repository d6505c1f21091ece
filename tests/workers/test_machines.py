"""Machines that meddle with a running flow: whatever is done to it and when, bounds and books hold at every moment."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule, run_state_machine_as_test

from tests.workers.emulated import rig
from workers.clock import VirtualLoop
from workers.contract import axes
from workers.contract.config import RunConfig
from workers.pipeline import Pipeline
from workers.requests import stream_key
from workers.rollout.leaps import EngineCost

PROMPTS, GROUP, STEPS = 2, 3, 8


def length(identity: str) -> int:
    return 1 + stream_key(1, identity) % 14


class FlowMachine(RuleBasedStateMachine):
    """A flow on simulated time. Rules let time pass, cut transfers, lose engines, ask for checkpoints and for the end."""

    @initialize(
        kind=st.sampled_from(get_args(axes.BufferKind)),
        ring=st.one_of(st.none(), st.integers(2, 8)),
        unit=st.sampled_from(get_args(axes.BufferUnit)),
        order=st.sampled_from(get_args(axes.BufferOrder)),
        over_limit=st.sampled_from(get_args(axes.OverLimit)),
        lag_from=st.sampled_from(get_args(axes.LagFrom)),
        max_lag=st.integers(1, 3),
        interrupt=st.sampled_from([(kind, kv) for kind, (caches, _) in axes.INTERRUPTS.items() for kv in sorted(caches)]),
        choice=st.integers(0, 3),
        train_s=st.sampled_from([0.05, 0.4, 2.0]),
    )
    def make(
        self, interrupt: tuple[str, str], choice: int, kind: str, ring: int | None, unit: str, order: str, train_s: float, **limit: Any
    ) -> None:
        partials = sorted(axes.INTERRUPTS[interrupt[0]][1])
        self.config = RunConfig.model_validate(
            {
                "batch": {"prompts": PROMPTS, "group_size": GROUP},
                "rollout": {"max_running": 8, "engines": 3},
                "buffer": {"kind": kind, "ring": ring, "unit": unit, "order": order, "depth": PROMPTS * GROUP},
                "interrupt": {"kind": interrupt[0], "kv_after": interrupt[1]},
                "partial": [partials[choice % len(partials)]],
                "staleness": limit,
                "budget": {"steps": STEPS},
                "evaluation": {"every_steps": 0, "at_start": False, "at_end": False},
                "checkpoint": {"every_steps": 0},
            }
        )
        self.loop = VirtualLoop()
        self.saved: list[set[str]] = []
        self.wants_save = self.wants_stop = False
        self.loop.run_until_complete(self._begin(train_s))

    async def _begin(self, train_s: float) -> None:
        cost = EngineCost(step_s=0.03, sample_s=0.002, prefill_s=0.001, apply_s=0.002)
        self.parts = rig(self.config, generators=3, lengths=length, engine_cost=cost, train_s=train_s)
        self.parts.stop_requested = lambda: self.wants_stop
        self.parts.save_requested = self._save_requested
        self.parts.save = self._save
        self.flow = Pipeline(self.parts)
        self.task = asyncio.create_task(self.flow.run())

    def _save_requested(self) -> bool:
        wanted, self.wants_save = self.wants_save, False
        return wanted

    async def _save(self, under_way: dict[str, Any]) -> None:
        """Every group that was dispatched and is neither trained nor dropped is in exactly one place of a checkpoint."""
        places = [*under_way, *(group.id for group in (*self.parts.buffer.contents(), *self.parts.progress.batch))]
        assert len(places) == len(set(places))
        self.saved.append(set(places))

    def teardown(self) -> None:
        if not hasattr(self, "task"):
            return
        self.wants_stop = True
        self.let(600.0)
        assert self.task.done(), "the flow ends when it is asked to"
        self.task.result()
        samples = self.parts.samples
        assert samples.dispatched == samples.trained + sum(samples.dropped.values()) and samples.in_flight == samples.buffered == 0
        self.check_time()
        pending = asyncio.all_tasks(self.loop)
        for task in pending:
            task.cancel()
        self.loop.run_until_complete(asyncio.sleep(0.1))
        self.loop.close()

    def let(self, seconds: float) -> None:
        async def pass_time() -> None:
            if not self.task.done():
                await asyncio.wait({self.task}, timeout=seconds)

        self.loop.run_until_complete(pass_time())
        if self.task.done():
            self.task.result()

    @rule(seconds=st.floats(0.001, 3.0))
    def time_passes(self, seconds: float) -> None:
        self.let(seconds)

    @rule()
    def a_checkpoint_is_asked_for(self) -> None:
        self.wants_save = True

    @precondition(lambda self: len(self.parts.pool.engines) > 1)
    @rule(which=st.integers(0, 2))
    def an_engine_dies(self, which: int) -> None:
        from workers.contract.errors import EngineError

        name = list(self.parts.pool.engines)[which % len(self.parts.pool.engines)]

        async def die() -> None:
            self.parts.pool.lost(name, EngineError("killed"))

        self.loop.run_until_complete(die())

    @rule(count=st.integers(1, 2))
    def requests_fail(self, count: int) -> None:
        """A failed request is done elsewhere once; where there is no elsewhere it costs its sample."""
        next(iter(self.parts.pool.engines.values())).fail_next = count

    @invariant()
    def the_sample_ledger_closes(self) -> None:
        if hasattr(self, "parts"):
            self.parts.samples.check()
            assert self.parts.samples.dispatched == self.parts.progress.groups_dispatched * GROUP

    @invariant()
    def no_sample_is_trained_twice(self) -> None:
        if hasattr(self, "parts"):
            names = [sample.rollout.id for batch in self.parts.trainer.batches for group in batch.groups for sample in group.samples]
            assert len(names) == len(set(names))

    @invariant()
    def the_buffer_keeps_its_bound(self) -> None:
        if hasattr(self, "parts") and self.parts.buffer.capacity:
            held = self.parts.buffer.contents()
            count = sum(len(group.samples) for group in held) if self.config.buffer.unit == "sample" else len(held)
            whole_group = GROUP if self.config.buffer.unit == "sample" else 1  # one that is larger than the bound gets in alone
            assert count <= max(self.parts.buffer.capacity, whole_group)

    @invariant()
    def the_lag_keeps_its_bound(self) -> None:
        if not hasattr(self, "parts") or self.config.staleness.over_limit == "count_only":
            return
        dispatch = self.config.staleness.lag_from == "dispatch"
        for batch in self.parts.trainer.batches:
            for group in batch.groups:
                for sample in group.samples:
                    oldest = group.dispatched_version if dispatch else min(sample.rollout.versions)
                    assert batch.version - oldest <= self.config.staleness.max_lag

    @invariant()
    def check_time(self) -> None:
        if hasattr(self, "parts"):
            times = self.parts.time.as_dict()
            for causes in times["lanes"].values():
                assert abs(sum(causes.values()) - times["wall_s"]) <= 1e-3 + 0.001 * times["wall_s"]


def test_whatever_happens_to_a_flow_its_bounds_and_books_hold() -> None:
    run_state_machine_as_test(FlowMachine, settings=settings(max_examples=40, stateful_step_count=15, deadline=None))
