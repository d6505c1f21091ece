"""An engine that dies or hangs leaves the pool; what it was to do is done elsewhere, and only the last one ends the run."""

from __future__ import annotations

import asyncio

import pytest

from tests.workers.emulated import EmulatedGenerator
from workers.clock import VirtualClock, run_virtual
from workers.contract.errors import EngineError
from workers.ledger import TimeLedger
from workers.pool import Pool
from workers.records import EngineStatus, SampleRequest


def request(index: int) -> SampleRequest:
    return SampleRequest(f"g/{index}", "g", index, [1], 1, 8, 1.0)


class Hung(EmulatedGenerator):
    pid = 4242

    async def status(self) -> EngineStatus:
        await asyncio.sleep(1e6)
        raise AssertionError


def pool_of(*kinds: type[EmulatedGenerator]) -> tuple[Pool, TimeLedger, list[str]]:
    clock, told = VirtualClock(), []
    engines = {f"generator/{index}": kind(clock) for index, kind in enumerate(kinds)}
    time = TimeLedger(clock, list(engines))
    return Pool(engines, 4, time, lambda name, error: told.append(name)), time, told


def test_requests_of_a_lost_engine_are_done_elsewhere() -> None:
    async def main() -> None:
        pool, time, told = pool_of(EmulatedGenerator, EmulatedGenerator)
        work = [asyncio.create_task(pool.generate(request(index))) for index in range(4)]
        await asyncio.sleep(0.1)
        pool.lost("generator/0", EngineError("killed"))
        pool.lost("generator/0", EngineError("killed"))
        rollouts = await asyncio.gather(*work)
        assert sorted(rollout.index for rollout in rollouts) == [0, 1, 2, 3]
        assert (told, pool.slots, list(pool.versions)) == (["generator/0"], 4, ["generator/1"])
        assert time.as_dict()["lanes"]["generator/0"]["down"] > 0
        with pytest.raises(EngineError, match="killed too"):
            pool.lost("generator/1", EngineError("killed too"))
        with pytest.raises(EngineError, match="killed too"):
            await pool.generate(request(5))

    run_virtual(main())


def test_a_silent_engine_leaves_and_the_last_one_fails_the_run() -> None:
    async def main() -> None:
        pool, _, told = pool_of(Hung, EmulatedGenerator)
        await pool.refresh()
        assert told == ["generator/0"] and list(pool.statuses) == ["generator/1"]
        alone, _, _ = pool_of(Hung)
        with pytest.raises(EngineError, match=r"pid 4242.*has not answered for 30 s"):
            await alone.refresh()

    run_virtual(main())
