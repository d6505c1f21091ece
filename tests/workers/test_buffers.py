"""Every buffer kind on simulated time: the bound, nothing lost or doubled, the order, no deadlock, whatever is cancelled when."""

from __future__ import annotations

import asyncio
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
            # On the way to a taker, or left behind by one that was cancelled in that very moment.
            assert len(held) <= len(self.takes) + self.cancelled_takes
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


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(KINDS),
    unit=st.sampled_from(get_args(BufferUnit)),
    order=st.sampled_from(get_args(BufferOrder)),
    depth=st.integers(1, 9),
    producers=st.lists(st.lists(st.tuples(st.floats(0, 2), st.integers(1, 6)), max_size=6), min_size=1, max_size=5),
    rests=st.lists(st.floats(0, 2), min_size=1, max_size=5),
)
def test_producers_and_a_trainer_never_lock_up(
    kind: str, unit: str, order: str, depth: int, producers: list[list[tuple[float, int]]], rests: list[float]
) -> None:
    """The virtual clock refuses to go on when everybody waits: that every group arrives proves that there is no deadlock."""

    async def main() -> None:
        buffer = build(kind, unit=unit, order=order, depth=depth)
        total, taken = sum(map(len, producers)), []

        async def produce(lane: int) -> None:
            for place, (seconds, size) in enumerate(producers[lane]):
                await asyncio.sleep(seconds)
                await buffer.put(group(100 * lane + place, place, size))

        async def consume() -> None:
            while len(taken) < total:
                taken.append((await buffer.take()).id)
                await asyncio.sleep(rests[len(taken) % len(rests)])

        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(consume())
            for lane in range(len(producers)):
                tasks.create_task(produce(lane))
        assert len(taken) == len(set(taken)) == total and buffer.contents() == []

    run_virtual(main())


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_saved_is_restored_and_taken_in_the_same_order(kind: str) -> None:
    async def main() -> None:
        saved = [group(number, version=number % 2) for number in (9, 3, 10)]
        buffer = build(kind, order="dispatch_order")
        buffer.restore(saved)
        assert ids(buffer.contents()) == ["g9", "g3", "g10"]
        order = ["g9", "g3", "g10"] if kind == "none" else ["g3", "g9", "g10"]  # none: what was left at the door goes as it stands
        assert [(await buffer.take()).id for _ in saved] == order
        assert buffer.contents() == []

    run_virtual(main())


@pytest.mark.parametrize(("kind", "options", "field"), [("bounded", {"depth": 3}, "buffer.depth"), ("stream", {"ring": 3}, "buffer.ring")])
def test_a_restore_never_breaks_the_bound(kind: str, options: dict[str, int], field: str) -> None:
    async def main() -> None:
        with pytest.raises(EngineError) as caught:
            build(kind, unit="sample", **options).restore([group(1), group(2)])
        assert caught.value.field == field

    run_virtual(main())


def test_a_double_buffer_restores_two_batches_and_no_more() -> None:
    async def main() -> None:
        buffer = build("double")
        buffer.restore([group(number) for number in range(5)])
        assert [(await buffer.take()).id for _ in range(5)] == [f"g{number}" for number in range(5)]
        with pytest.raises(EngineError):
            build("double").restore([group(number) for number in range(7)])

    run_virtual(main())


@pytest.mark.parametrize(
    ("order", "expected"),
    [("fifo", [12, 2, 30, 4]), ("dispatch_order", [2, 4, 12, 30]), ("oldest_version", [30, 12, 4, 2]), ("newest_version", [2, 12, 4, 30])],
)
@pytest.mark.parametrize("kind", ["bounded", "stream"])
def test_orders(kind: str, order: str, expected: list[int]) -> None:
    async def main() -> None:
        buffer = build(kind, order=order)
        for number, version in ((12, 1), (2, 3), (30, 0), (4, 1)):
            assert await buffer.put(group(number, version)) == []
        assert [(await buffer.take()).id for _ in range(4)] == [f"g{number}" for number in expected]

    run_virtual(main())


def test_a_rendezvous_chooses_among_those_at_the_door_and_holds_nothing() -> None:
    async def main() -> None:
        buffer = build("none", order="newest_version")
        puts = {version: asyncio.create_task(buffer.put(group(version, version))) for version in (1, 4, 2)}
        await asyncio.sleep(1)
        assert buffer.contents() == [] and not any(task.done() for task in puts.values())
        assert (await buffer.take()).id == "g4"
        assert [version for version, task in puts.items() if task.done()] == [4]
        puts[2].cancel()
        assert (await buffer.take()).id == "g1"
        assert buffer.contents() == [] and puts[2].cancelled()

    run_virtual(main())


def test_a_batch_in_the_front_is_not_overtaken() -> None:
    async def main() -> None:
        buffer = build("double", order="newest_version")
        for number in (1, 2, 3):
            await buffer.put(group(number, version=number))
        assert (await buffer.take()).id == "g3"
        for number in (7, 8, 9):  # the other batch has its whole room, whatever is left of this one
            await buffer.put(group(number, version=number))
        full = asyncio.create_task(buffer.put(group(10, version=10)))
        assert [(await buffer.take()).id for _ in range(2)] == ["g2", "g1"]
        await asyncio.sleep(1)
        assert not full.done()
        assert (await buffer.take()).id == "g9"
        await full
        assert ids(buffer.contents()) == ["g7", "g8", "g10"]

    run_virtual(main())


def test_a_trainer_that_refused_some_gets_the_rest_of_a_short_batch() -> None:
    """A batch of three, one of them refused: the fourth is served although its own batch will never be whole."""

    async def main() -> None:
        buffer = build("double")
        for number in range(3):
            await buffer.put(group(number))
        for _ in range(3):
            await buffer.take()
        fourth = asyncio.create_task(buffer.take())
        await asyncio.sleep(1)
        await buffer.put(group(3))
        assert (await fourth).id == "g3"

    run_virtual(main())


def test_a_ring_counts_and_names_what_it_overwrites() -> None:
    async def main() -> None:
        by_group, by_sample = build("stream", ring=2), build("stream", ring=5, unit="sample")
        gone = [ids(await by_group.put(group(number))) for number in range(4)]
        assert gone == [[], [], ["g0"], ["g1"]] and ids(by_group.contents()) == ["g2", "g3"]
        gone = [ids(await by_sample.put(group(number, size=size))) for number, size in enumerate((2, 3, 1, 5, 9))]
        assert gone == [[], [], ["g0"], ["g1", "g2"], ["g3"]] and ids(by_sample.contents()) == ["g4"]

    run_virtual(main())


def test_depth_in_samples_lets_a_large_group_in_alone() -> None:
    async def main() -> None:
        buffer = build("bounded", unit="sample", depth=4)
        await buffer.put(group(1, size=6))
        waits = asyncio.create_task(buffer.put(group(2, size=1)))
        await asyncio.sleep(1)
        assert not waits.done()
        await buffer.take()
        await waits
        await buffer.put(group(3, size=3))
        assert ids(buffer.contents()) == ["g2", "g3"]

    run_virtual(main())


def test_a_small_group_does_not_overtake_a_large_one_at_the_door() -> None:
    """Otherwise a large group might wait for ever."""

    async def main() -> None:
        buffer = build("bounded", unit="sample", depth=4)
        await buffer.put(group(1, size=3))
        large, small = asyncio.create_task(buffer.put(group(2, size=3))), asyncio.create_task(buffer.put(group(3, size=1)))
        await asyncio.sleep(1)
        assert not large.done() and not small.done()
        await buffer.take()
        await asyncio.gather(large, small)
        assert ids(buffer.contents()) == ["g2", "g3"]

    run_virtual(main())
