"""An engine that starts anew: its deliberate end is no loss, what runs is finished, and what fails is lost for good."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from tests.workers.emulated import EmulatedGenerator
from workers.axes.orchestration.crew import Seat
from workers.axes.orchestration.restarting import RestartingGenerator
from workers.clock import WallClock
from workers.contract.errors import DigestMismatch, EngineError
from workers.records import Manifest, SampleRequest


class FakeProcess:
    """A role's process without one. `refuse`: what its start raises."""

    def __init__(self, pid: int, refuse: Exception | None = None) -> None:
        self.pid: int | None = pid
        self.ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        self._refuse = refuse
        self.killed = False

    async def start(self, role: str, arguments: dict[str, Any]) -> None:
        if self._refuse is not None:
            raise self._refuse

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        if self.ended.done():
            raise EngineError("it is gone")
        return self.pid

    def kill(self) -> None:
        self.killed = True
        self.die()

    def die(self) -> None:
        if not self.ended.done():
            self.ended.set_result(EngineError("it died"))

    async def stop(self) -> None:
        self.die()
        await asyncio.sleep(0)


async def seat_of(*processes: FakeProcess) -> Seat:
    left = iter(processes)
    seat = Seat("generator/0", "generator", {}, lambda name: next(left))
    await seat.start()
    return seat


async def test_a_deliberate_end_is_no_loss() -> None:
    old, new = FakeProcess(1), FakeProcess(2)
    seat = await seat_of(old, new)
    member = seat.member()
    ping = asyncio.create_task(_late(member.ping))
    await seat.respawn()
    assert old.ended.done() and member.pid() == 2 and await ping in (2, None)
    await asyncio.sleep(0.01)
    assert not seat.lost.done()
    new.die()
    assert "it died" in str(await asyncio.wait_for(member.died(), 1))
    with pytest.raises(EngineError, match="it died"):
        await seat.respawn()


async def _late(ping: Callable[[], Awaitable[Any]]) -> Any:
    return await ping()


async def test_a_new_process_that_fails_is_a_loss() -> None:
    seat = await seat_of(FakeProcess(1), FakeProcess(2, OSError("no more memory")))
    with pytest.raises(EngineError, match="no more memory"):
        await seat.respawn()
    assert "no more memory" in str(seat.lost.result())


async def test_nothing_starts_after_the_stop() -> None:
    old, new = FakeProcess(1), FakeProcess(2)
    seat = await seat_of(old, new)
    renewing = asyncio.create_task(seat.respawn())
    await asyncio.sleep(0)
    await seat.stop()
    with pytest.raises(EngineError, match="ending"):
        await renewing
    assert seat.pid == 1


class Place:
    """Where an emulated engine's process is renewed: it takes a while, and may fail."""

    def __init__(self, engine: EmulatedGenerator) -> None:
        self.pid: int | None = 1
        self.engine = engine
        self.fail = False
        self.lost: list[Exception] = []

    async def respawn(self) -> None:
        await asyncio.sleep(0.05)
        if self.fail:
            raise EngineError("the new one does not start")
        self.engine.tokens = self.engine.version = 0
        self.pid = 2

    def lose(self, error: Exception) -> EngineError:
        self.lost.append(error)
        return EngineError(str(error))


def manifest(version: int) -> Manifest:
    return Manifest(version, "digest", 1, "adapter", "restart", {})


def sample(index: int) -> SampleRequest:
    return SampleRequest(f"g/{index}", "g", index, [1], index, 10, 1.0)


def restarting() -> tuple[RestartingGenerator, EmulatedGenerator, Place]:
    engine = EmulatedGenerator(WallClock(), token_s=0.001)
    place = Place(engine)
    return RestartingGenerator(engine, place), engine, place


async def test_what_runs_is_finished_and_what_comes_waits() -> None:
    generator, engine, place = restarting()
    first = [asyncio.create_task(generator.generate(sample(index))) for index in range(3)]
    await until(lambda: engine.running == 3)
    update = asyncio.create_task(generator.update(manifest(1)))
    await asyncio.sleep(0)
    second = asyncio.create_task(generator.generate(sample(3)))
    await until(lambda: all(call.done() for call in first))
    status = await generator.status()
    assert (status.running, status.waiting, status.generated_tokens) == (0, 1, 30)
    report = await update
    assert report.pause_s >= 0.05 and report.pause_s == pytest.approx(report.transfer_s + report.apply_s)
    assert set((await second).versions) == {1} and {version for call in first for version in call.result().versions} == {0}
    status = await generator.status()
    assert (status.version, status.generated_tokens, status.waiting) == (1, 40, 0) and generator.pid == 2
    assert not place.lost


@pytest.mark.parametrize("fault", ["start", "weights"])
async def test_an_engine_that_does_not_come_back_is_lost(fault: str) -> None:
    generator, engine, place = restarting()
    place.fail = fault == "start"
    if fault == "weights":

        async def refuse(manifest: Manifest) -> Any:
            raise DigestMismatch("other bytes")

        engine.update = refuse  # type: ignore[method-assign]
    update = asyncio.create_task(generator.update(manifest(1)))
    await asyncio.sleep(0.01)
    waiting = asyncio.create_task(generator.generate(sample(0)))
    with pytest.raises(EngineError):
        await update
    for call in (waiting, generator.status(), generator.generate(sample(1)), generator.update(manifest(2))):
        with pytest.raises(EngineError, match=r"other bytes|does not start"):
            await call
    assert len(place.lost) == (fault == "weights")


async def test_a_cancelled_update_leaves_the_door_open() -> None:
    generator, engine, _ = restarting()
    running = asyncio.create_task(generator.generate(sample(0)))
    await until(lambda: engine.running == 1)
    update = asyncio.create_task(generator.update(manifest(1)))
    await asyncio.sleep(0)
    update.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await update
    assert (await running).versions and (await generator.generate(sample(1))).versions


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)
