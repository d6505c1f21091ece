"""The virtual clock: order, jumps, what it refuses, and that nothing piles up in it."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from workers.clock import MOST_CANCELLED, VirtualClock, VirtualLoop, run_virtual

SECONDS = st.lists(st.integers(0, 5), min_size=1, max_size=30)


@given(SECONDS)
def test_timers_run_in_the_order_of_their_time_and_then_as_they_were_set(seconds: list[int]) -> None:
    async def main() -> list[tuple[float, int]]:
        clock, woken = VirtualClock(), list[tuple[float, int]]()

        async def sleeper(place: int, wait: int) -> None:
            await clock.sleep(wait)
            woken.append((clock.now(), place))

        await asyncio.gather(*(sleeper(place, wait) for place, wait in enumerate(seconds)))
        return woken

    # A sleep of nothing is a turn of the loop and no timer: it comes before the timers of that instant.
    assert run_virtual(main()) == sorted((float(wait), place) for place, wait in enumerate(seconds))


@given(SECONDS)
def test_it_tells_the_same_as_pythons_own_loop_of_what_is_ready(hops: list[int]) -> None:
    """Callbacks that make further callbacks: both loops run them in the same order."""

    async def main() -> list[tuple[int, int]]:
        loop, ran, done = asyncio.get_running_loop(), list[tuple[int, int]](), asyncio.Event()

        def hop(name: int, left: int) -> None:
            ran.append((name, left))
            if left:
                loop.call_soon(hop, name, left - 1)
            elif len(ran) == sum(hops) + len(hops):
                done.set()

        for name, left in enumerate(hops):
            loop.call_soon(hop, name, left)
        await done.wait()
        return ran

    assert run_virtual(main()) == asyncio.run(main())


def test_cancelled_timers_do_not_pile_up() -> None:
    async def main() -> int:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        for _ in range(20 * MOST_CANCELLED):
            async with asyncio.timeout(1e9):
                await asyncio.sleep(0)
        return len(loop._timers)

    assert run_virtual(main()) <= 2 * MOST_CANCELLED


def test_a_timeout_ends_what_takes_too_long() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(5):
                await asyncio.sleep(1000)
        return VirtualClock().now()

    assert run_virtual(main()) == 5


def test_waiting_for_nothing_is_a_deadlock_and_not_a_wait() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(RuntimeError, match="deadlock on the virtual clock"):
        run_virtual(main())


def test_real_input_and_output_is_refused() -> None:
    async def main() -> None:
        with socket.socket() as one:
            asyncio.get_running_loop().add_reader(one, print)

    with pytest.raises(RuntimeError, match="real I/O on the virtual clock"):
        run_virtual(main())


def test_a_callback_that_raises_is_told_and_stops_nobody() -> None:
    told: list[dict[str, Any]] = []

    def broken() -> None:
        raise ValueError("broken")

    async def main() -> str:
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: told.append(context))
        loop.call_soon(broken)
        await asyncio.sleep(1)
        return "went on"

    assert run_virtual(main()) == "went on" and isinstance(told[0]["exception"], ValueError)
