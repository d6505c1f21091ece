"""The torch engine's scheduler and its parked caches under any order of events."""

from __future__ import annotations

from collections import OrderedDict

import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from workers.records import Rollout, SampleRequest
from workers.rollout.torch.parked import ParkedCaches
from workers.rollout.torch.scheduler import Scheduler, Sequence


def ignored(answer: Rollout | BaseException) -> None:
    """Nobody waits here."""


class SchedulerMachine(RuleBasedStateMachine):
    """Requests come, are admitted, decode, finish, are cancelled, retracted or all taken out."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler = Scheduler(3)
        self.alive: OrderedDict[str, Sequence] = OrderedDict()  # in the order in which they came
        self.sent = 0

    @rule(evaluation=st.booleans(), prefix=st.integers(0, 2))
    def submit(self, evaluation: bool, prefix: int) -> None:
        self.sent += 1
        lists = {"prefix_ids": [7] * prefix, "prefix_logprobs": [-1.0] * prefix, "prefix_versions": [0] * prefix}
        purpose = "evaluation" if evaluation else "train"
        asked = SampleRequest(f"g/{self.sent}", "g", self.sent, [1, 2], 1, 6, 1.0, stop_ids=[0], purpose=purpose, **lists)
        sequence = Sequence(asked, ignored)
        self.alive[asked.id] = sequence
        self.scheduler.submit(sequence)

    @rule()
    def admit(self) -> None:
        waited = [one for one in self.alive.values() if one.slot < 0]
        order = sorted(waited, key=lambda one: (one.request.purpose != "evaluation", one.arrival))
        admitted = self.scheduler.admit()
        assert admitted == order[: len(admitted)], "evaluation first, then in the order in which they came, retracted or not"
        assert len(self.scheduler.running) == 3 or not self.scheduler.waiting
        for sequence in admitted:
            sequence.length = len(sequence.context)
            sequence.append(5, -0.5, 0, [])

    @rule(token=st.sampled_from([0, 5, 5, 5]))
    def decode(self, token: int) -> None:
        for sequence in list(self.scheduler.running):
            sequence.length += 1
            sequence.append(token, -0.5, 1, [])
        for sequence in [one for one in self.scheduler.running if one.ended is not None]:
            self.leave(sequence)

    @precondition(lambda self: self.alive)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        sequence = self.alive[data.draw(st.sampled_from(sorted(self.alive)))]
        sequence.cancelled = True
        gone = self.scheduler.forget_cancelled()
        assert gone == ([] if sequence.slot >= 0 else [sequence])
        if sequence.slot >= 0:
            self.leave(sequence)
        else:
            del self.alive[sequence.request.id]

    def leave(self, sequence: Sequence) -> None:
        place, last = sequence.slot, self.scheduler.running[-1]
        move = self.scheduler.leave(sequence)
        assert move is None if last is sequence else move == (len(self.scheduler.running), place)
        del self.alive[sequence.request.id]

    @rule()
    def retract(self) -> None:
        tokens = {one.request.id: list(one.tokens) for one in self.scheduler.running}
        self.scheduler.retract()
        assert not self.scheduler.running
        assert all(self.alive[name].tokens == kept and self.alive[name].length == 0 for name, kept in tokens.items())

    @rule()
    def empty(self) -> None:
        running = list(self.scheduler.running)
        left = self.scheduler.empty()
        assert left[: len(running)] == running and sorted(one.request.id for one in left) == sorted(self.alive)
        self.alive.clear()

    @invariant()
    def slots_are_dense_and_nobody_is_lost_or_doubled(self) -> None:
        assert [one.slot for one in self.scheduler.running] == list(range(len(self.scheduler.running)))
        assert len(self.scheduler.running) <= 3
        assert len(self.scheduler.running) + self.scheduler.waiting == len(self.alive)
        assert {one.request.id for one in self.scheduler.running} == {one.request.id for one in self.alive.values() if one.slot >= 0}
        for one in self.alive.values():
            assert len(one.tokens) == len(one.logprobs) == len(one.versions)
            if one.slot >= 0:
                assert one.length == len(one.context) - 1, "all but the last token drawn have keys and values"


SchedulerMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestScheduler = SchedulerMachine.TestCase


class ParkedMachine(RuleBasedStateMachine):
    """Never more bytes than allowed; the newest stay; what is taken was parked with just these tokens."""

    limit = 400

    def __init__(self) -> None:
        super().__init__()
        self.parked = ParkedCaches(self.limit)
        self.model: OrderedDict[str, tuple[list[int], torch.Tensor]] = OrderedDict()

    @rule(name=st.sampled_from("abcd"), tokens=st.lists(st.integers(0, 3), min_size=1, max_size=40))
    def park(self, name: str, tokens: list[int]) -> None:
        keys_values = torch.zeros(len(tokens), dtype=torch.float32)
        self.parked.park(name, tokens, keys_values)
        self.model.pop(name, None)
        self.model[name] = (tokens, keys_values)
        while sum(kept.nbytes for _, kept in self.model.values()) > self.limit:
            self.model.popitem(last=False)

    @rule(name=st.sampled_from("abcde"), right=st.booleans())
    def take(self, name: str, right: bool) -> None:
        tokens, kept = self.model.pop(name, ([9], None))
        found = self.parked.take(name, tokens if right else [*tokens, 1])
        assert found is (kept if right else None)

    @rule(name=st.sampled_from("abcde"))
    def drop(self, name: str) -> None:
        self.model.pop(name, None)
        self.parked.drop(name)

    @invariant()
    def the_same_are_kept(self) -> None:
        assert len(self.parked) == len(self.model)
        assert self.parked._bytes == sum(kept.nbytes for _, kept in self.model.values()) <= self.limit


ParkedMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestParked = ParkedMachine.TestCase
