"""Every buffer kind on simulated time: the bound, nothing lost or doubled, the order, no deadlock, whatever is cancelled when."""

from __future__ import annotations

import asyncio
import contextlib
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from workers import registry
from workers.axes.buffer.base import Buffer
from workers.axes.buffer.waiting import rank, units
from workers.clock import VirtualLoop, run_virtual
from workers.contract import config
from workers.contract.axes import BufferKind, BufferOrder, BufferUnit
from workers.contract.errors import EngineError
from workers.records import Group, Prompt, Rollout, Sample

KINDS = get_args(BufferKind)
PROMPT = Prompt("p:0", 0, "question", [1])
BATCH = 3
MOVES = ("put", "take", "cancel_put", "cancel_take")


def group(number: int, version: int = 0, size: int = 2) -> Group:
    samples = [Sample(Rollout(f"g{number}/{i}", f"g{number}", i, [1, 1], [0.0, 0.0], [version, version + 1], "stop")) for i in range(size)]
    return Group(f"g{number}", PROMPT, version, samples)


def build(kind: str, **options: Any) -> Buffer:
    made: Buffer = registry.resolve("buffer", kind)(config.Buffer.model_validate({"kind": kind, **options}), BATCH)
    return made


def ids(groups: list[Group]) -> list[str]:
    return [item.id for item in groups]


class BufferMachine(RuleBasedStateMachine):
    """Puts, takes and cancellations at any moment, by many tasks at once; `settle` lets everything run that can."""

    kind: str

    @initialize(
        unit=st.sampled_from(get_args(BufferUnit)),
        order=st.sampled_from(get_args(BufferOrder)),
        depth=st.integers(1, 8),
        ring=st.one_of(st.none(), st.integers(1, 8)),
    )
    def make(self, unit: BufferUnit, order: BufferOrder, depth: int, ring: int | None) -> None:
        self.loop = VirtualLoop()
        self.unit, self.order = unit, order
        self.buffer = build(self.kind, unit=unit, order=order, depth=depth, ring=ring)
        self.count = 0
        self.puts: dict[str, tuple[Group, asyncio.Task[list[Group]]]] = {}
        self.takes: list[asyncio.Task[Group]] = []
        self.entered: list[str] = []
        self.left: list[str] = []
        self.withdrawn: set[str] = set()
        self.cancelled_takes = 0

    def teardown(self) -> None:
        if hasattr(self, "loop"):
            for task in [*self.takes, *(task for _, task in self.puts.values())]:
                task.cancel()
            self.run(10)
            self.loop.close()

    def run(self, ticks: int) -> None:
        async def main() -> None:
            for _ in range(ticks):
                await asyncio.sleep(0)

        self.loop.run_until_complete(main())
        self.collect()

    def collect(self) -> None:
        for name, (_, task) in list(self.puts.items()):
            if task.done():
                del self.puts[name]
                if task.cancelled():
                    self.withdrawn.add(name)
                else:
                    self.entered.append(name)
                    self.left.extend(ids(task.result()))
        for task in [task for task in self.takes if task.done()]:
            self.takes.remove(task)
            if task.cancelled():
                self.cancelled_takes += 1
            else:
                self.left.append(task.result().id)

    @rule(moves=st.lists(st.tuples(st.sampled_from(MOVES), st.integers(0, 99), st.integers(0, 3)), min_size=1, max_size=8))
    def move(self, moves: list[tuple[str, int, int]]) -> None:
        """Some moves with 0 to 3 turns of the loop between them: cancellations meet wake-ups that are on their way."""

        async def main() -> None:
            for name, number, ticks in moves:
                getattr(self, name)(number)
                for _ in range(ticks):
                    await asyncio.sleep(0)

        self.loop.run_until_complete(main())
        self.collect()

    def put(self, number: int) -> None:
        self.count += 1
        item = group(1000 * (number % 7) + self.count, version=number % 4, size=1 + number % 5)
        self.puts[item.id] = (item, self.loop.create_task(self.buffer.put(item)))

    def take(self, number: int) -> None:
        self.takes.append(self.loop.create_task(self.buffer.take()))

    def cancel_put(self, number: int) -> None:
        if self.puts:
            list(self.puts.values())[number % len(self.puts)][1].cancel()

    def cancel_take(self, number: int) -> None:
        if self.takes:
            self.takes[number % len(self.takes)].cancel()

    @rule()
    def settle(self) -> None:
        """Nobody waits without a reason."""
        self.run(60)
        held = self.buffer.contents()
        if self.takes:
            assert not held and not self.puts
        if self.puts:
            first = next(iter(self.puts.values()))[0]
            assert self.kind != "stream" and self.full(held, first)

    @rule()
    def take_the_next(self) -> None:
        """With everything at rest, the one taken is the first by order of those that may be taken."""
        self.settle()
        choice = [] if self.takes else self.choice()
        if choice:
            expected = min(choice, key=lambda item: rank(item, self.order))
            before = len(self.left)
            self.take(0)
            self.run(20)
            assert self.left[before] == expected.id

    def choice(self) -> list[Group]:
        held = self.buffer.contents()
        if self.kind == "none":
            return held[:1] or [item for item, _ in self.puts.values()]
        if self.kind == "double":
            front = self.buffer._front.contents()  # type: ignore[attr-defined]
            return front or held
        return held

    def full(self, held: list[Group], item: Group) -> bool:
        if self.kind == "none":
            return True
        if self.kind == "double":
            return len(held) >= BATCH
        assert self.buffer.capacity is not None
        return sum(units(each, self.unit) for each in held) + units(item, self.unit) > self.buffer.capacity

    @invariant()
    def the_bound_holds(self) -> None:
        if not hasattr(self, "buffer"):
            return
        held = self.buffer.contents()
        capacity = self.buffer.capacity
        if self.kind == "none":
            assert len(held) <= self.cancelled_takes  # what takers left behind that were cancelled in that very moment
        elif self.kind == "double":
            assert len(held) <= 2 * BATCH
        elif capacity is not None:
            assert len(held) == 1 or sum(units(item, self.unit) for item in held) <= capacity

    @invariant()
    def nothing_is_lost_or_doubled(self) -> None:
        if not hasattr(self, "buffer"):
            return
        assert len(self.left) == len(set(self.left))
        held = ids(self.buffer.contents())
        assert sorted(held + self.left) == sorted(self.entered)
        assert not self.withdrawn & set(self.entered)
        if self.kind != "none":
            assert held == [name for name in self.entered if name in held]


@pytest.mark.parametrize("kind", KINDS)
def test_any_story_of_puts_takes_and_cancellations(kind: str) -> None:
    machine = type(f"{kind}Machine", (BufferMachine,), {"kind": kind})
    run_state_machine_as_test(machine, settings=settings(max_examples=60, stateful_step_count=25, deadline=None))
