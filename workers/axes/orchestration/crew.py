"""What every carrier's pools have in common: a seat for each role, the process that fills it now, and the watch over them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from workers.axes.orchestration.base import ROLE_ENVIRONMENT, Lost, Pools, identity
from workers.axes.orchestration.clients import RemoteGenerator, RemoteTrainer
from workers.axes.orchestration.restarting import RestartingGenerator
from workers.axes.orchestration.watch import TRAINER, Member, watch
from workers.axes.orchestration.wire import copy_of
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError
from workers.rollout.base import Generator


class Process(Protocol):
    """One role's process, whatever starts it and carries its calls. `ended` is done when it is gone, with the cause."""

    ended: asyncio.Future[EngineError]

    @property
    def pid(self) -> int | None: ...

    async def start(self, role: str, arguments: dict[str, Any]) -> None:
        """Returns when the role is built. Raises the error that building it raised."""
        ...

    async def call(self, method: str, args: dict[str, Any]) -> Any: ...

    def kill(self) -> None: ...

    async def stop(self) -> None:
        """When it returns, the process is gone."""
        ...


class Seat:
    """One role of the pools. Its process may be changed for a new one; `lost` is done only when it was not meant to end."""

    def __init__(self, name: str, role: str, arguments: dict[str, Any], make: Callable[[str], Process]) -> None:
        self.name = name
        self.lost: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        self._role = role
        self._arguments = arguments
        self._make = make
        self._process: Process | None = None
        self._following: asyncio.Task[None] | None = None
        self._changing = False
        self._stopped = False

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process else None

    async def start(self) -> None:
        process = self._process = self._make(self.name)
        await process.start(self._role, self._arguments)
        self._following = asyncio.create_task(self._follow(process))

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        assert self._process is not None
        return await self._process.call(method, args)

    async def respawn(self) -> None:
        """Ends the process and starts another in its place. Raises EngineError, and the seat is lost, where that fails."""
        process = self._process
        assert process is not None
        if process.ended.done() or self.lost.done():  # the dead are not brought back: their work is done elsewhere by now
            raise copy_of((self.lost if self.lost.done() else process.ended).result())
        self._changing = True
        try:
            await process.stop()
            if self._stopped:
                raise EngineError("the run is ending", field=self.name)
            await self.start()
        except Exception as error:
            raise self.lose(error) from error
        finally:
            self._changing = False

    def lose(self, error: Exception) -> EngineError:
        """Called when the process is of no use any more: it ends, and the watch is told. Returns what to raise."""
        cause = error if isinstance(error, EngineError) else EngineError(f"{type(error).__name__}: {error}", field=self.name)
        self.kill()
        if not self.lost.done():
            self.lost.set_result(cause)
        return copy_of(cause)

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()

    async def stop(self) -> None:
        self._stopped = True
        if self._following is not None:
            self._following.cancel()
        if self._process is not None:
            await self._process.stop()

    def member(self) -> Member:
        """The seat as the watch sees it."""
        return Member(self.name, lambda: self.pid, self._ping, lambda: asyncio.shield(self.lost), self.kill)

    async def _ping(self) -> Any:
        """A process that is being changed is nobody's silence: its start has a deadline of its own."""
        process = self._process
        if self._changing or process is None:
            return None
        try:
            return await process.call("ping", {})
        except EngineError:
            if self._changing or process is not self._process:
                return None
            raise

    async def _follow(self, process: Process) -> None:
        cause = await asyncio.shield(process.ended)
        if process is self._process and not self._changing and not self._stopped and not self.lost.done():
            self.lost.set_result(cause)


class Crew:
    """An orchestration but for its carrier, which says how one process is made. See `orchestration.base.Orchestration`."""

    def __init__(self, config: RunConfig, run_id: str, scratch: Path) -> None:
        self._config = config
        self._run_id = run_id
        self._scratch = scratch
        self._environment = {**identity(run_id), **ROLE_ENVIRONMENT}
        self._seats: dict[str, Seat] = {}

    async def start(self) -> Pools:
        await self._open()
        common = {"config": self._config.as_json(), "run_id": self._run_id, "scratch": str(self._scratch)}
        names = [f"generator/{index}" for index in range(self._config.rollout.engines)]
        for name in names:
            self._seats[name] = Seat(name, "generator", {**common, "name": name}, self._process)
        self._seats[TRAINER] = Seat(TRAINER, "trainer", common, self._process)
        # All models load at the same time; when one cannot, the others need not.
        starting = [asyncio.create_task(seat.start()) for seat in self._seats.values()]
        try:
            await asyncio.gather(*starting)
        finally:
            for task in starting:
                task.cancel()
            await asyncio.wait(starting)
        return Pools(
            generators={name: self._generator(self._seats[name]) for name in names}, trainer=RemoteTrainer(self._seats[TRAINER].call)
        )

    async def failure(self, lost: Lost | None = None) -> None:
        await watch([seat.member() for seat in self._seats.values()], lost)

    async def stop(self) -> None:
        await asyncio.gather(*(seat.stop() for seat in self._seats.values()))
        await self._close()

    async def respawn(self, name: str) -> None:
        """A new process in the place of `name`'s, which ends. The watch is not told. Raises EngineError: then the role is lost."""
        await self._seats[name].respawn()

    def _generator(self, seat: Seat) -> Generator:
        engine = RemoteGenerator(seat.call, seat.pid)
        return RestartingGenerator(engine, seat) if self._config.transport.kind == "restart" else engine

    def _log(self, name: str) -> Path:
        return self._scratch.parent / "logs" / f"{name.replace('/', '-')}.log"

    async def _open(self) -> None:
        """Called before the first process is made: a server or cluster of the carrier's own."""

    async def _close(self) -> None:
        """Called after the last process is gone, also where `_open` failed."""

    def _process(self, name: str) -> Process:
        raise NotImplementedError
