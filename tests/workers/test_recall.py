"""Calls taken back from outside: they raise, a cancellation from elsewhere stays one, and an answer that came first is kept."""

from __future__ import annotations

import asyncio

import pytest

from workers.recall import Call, TakenBackError


async def begun(among: set[Call], answer: asyncio.Future[str]) -> asyncio.Task[str]:
    async def ask() -> str:
        with Call(among):
            return await answer

    task = asyncio.create_task(ask())
    await asyncio.sleep(0)
    return task


def test_every_call_under_way_is_taken_back_and_no_later_one() -> None:
    async def main() -> None:
        among: set[Call] = set()
        loop = asyncio.get_running_loop()
        early, late = loop.create_future(), loop.create_future()
        first, second = await begun(among, early), await begun(among, late)
        for call in list(among):
            call.take_back()
        for task in (first, second):
            with pytest.raises(TakenBackError):
                await task
            assert task.cancelling() == 0  # so that its own caller's timeout still works
        assert early.cancelled() and not among
        third = await begun(among, answer := loop.create_future())
        (call,) = among
        answer.set_result("yes")
        assert await third == "yes"
        call.take_back()  # too late
        assert third.cancelling() == 0

    asyncio.run(main())


def test_a_cancellation_from_elsewhere_stays_one_though_the_call_is_taken_back_too() -> None:
    async def main() -> None:
        among: set[Call] = set()
        task = await begun(among, asyncio.get_running_loop().create_future())
        task.cancel()
        for call in list(among):
            call.take_back()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled() and not among

    asyncio.run(main())


def test_what_a_call_makes_of_being_taken_back_goes_through() -> None:
    async def main() -> None:
        among: set[Call] = set()

        async def ask() -> str:
            with Call(among):
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    return "given up"
            return "never"

        task = asyncio.create_task(ask())
        await asyncio.sleep(0)
        among.copy().pop().take_back()
        assert await task == "given up"
        assert task.cancelling() == 0

    asyncio.run(main())
