"""Deadlines for processes that may hang: a role that answers nothing is lost, as one that has died is."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from workers.axes.orchestration.base import Lost
from workers.contract.errors import EngineError

PING_EVERY_S = 5.0
PING_PATIENCE_S = 60.0  # long train steps run in threads: a healthy process answers at once
LOOK_S = 5.0
TRAINER = "trainer"
T = TypeVar("T")


@dataclass(frozen=True)
class Member:
    """One role's process. `died` ends with the cause of its death; `kill` ends a process that is silent; `pid` may change."""

    name: str
    pid: Callable[[], int | None]
    ping: Callable[[], Awaitable[Any]]
    died: Callable[[], Awaitable[EngineError]]
    kill: Callable[[], None]


async def answered(call: Awaitable[T], patience_s: float) -> T:
    """Awaits an answer. Raises TimeoutError after `patience_s` in which this process was awake: its own stop is nobody's silence."""
    task = asyncio.ensure_future(call)
    waited = 0.0
    try:
        while waited < patience_s:
            await asyncio.wait({task}, timeout=min(LOOK_S, patience_s))
            if task.done():
                return task.result()
            waited += LOOK_S
        raise TimeoutError
    finally:
        task.cancel()


async def watch(members: list[Member], lost: Lost | None) -> None:
    """Awaited beside the flow. A lost engine is told to `lost`; raises where nobody listens, and for the trainer."""
    tasks = {asyncio.create_task(_until_lost(member)): member.name for member in members}
    try:
        while tasks:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            # The trainer's death ends the run whatever died beside it, and is its cause.
            for task in sorted(done, key=lambda task: tasks[task] != TRAINER):
                name, error = tasks.pop(task), task.result()
                if lost is None or name == TRAINER:
                    raise error
                lost(name, error)
    finally:
        for task in tasks:
            task.cancel()


async def _until_lost(member: Member) -> EngineError:
    died = asyncio.ensure_future(member.died())
    silent = asyncio.create_task(_until_silent(member))
    try:
        await asyncio.wait({died, silent}, return_when=asyncio.FIRST_COMPLETED)
        return died.result() if died.done() else silent.result()
    finally:
        died.cancel()
        silent.cancel()


async def _until_silent(member: Member) -> EngineError:
    while True:
        try:
            await answered(member.ping(), PING_PATIENCE_S)
        except TimeoutError:
            member.kill()  # it must not wake later and act for a run that went on without it
            return silence(member.name, member.pid(), PING_PATIENCE_S)
        except EngineError as error:
            # Its death is told with a better cause by `died`, at once; this is for a carrier that fails alone.
            await asyncio.sleep(PING_EVERY_S)
            return error
        await asyncio.sleep(PING_EVERY_S)


def silence(name: str, pid: int | None, seconds: float) -> EngineError:
    """The error for a process that lives and does not answer."""
    who = f"the {name} process" if pid is None else f"the {name} process (pid {pid})"
    return EngineError(
        f"{who} has not answered for {seconds:.0f} s",
        field=name,
        value=pid,
        cure="it is stopped or hangs: see its log and the machine's load; resume from the last checkpoint",
        retryable=True,
    )
