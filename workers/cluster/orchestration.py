"""ray: generator and trainer as Ray actors. Inside a Ray Job it joins that cluster; alone it starts one for itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.exceptions import RayError

from workers.axes.orchestration.base import START_PATIENCE_S
from workers.axes.orchestration.calls import Calls
from workers.axes.orchestration.crew import Crew
from workers.axes.orchestration.watch import answered
from workers.axes.orchestration.wire import error_from_wire, error_to_wire, pack, unpack
from workers.cluster.actor import RoleActor
from workers.cluster.cleaner import Cleaner
from workers.contract.errors import EngineError, EnvironmentMissing, HeadraceError

STOP_PATIENCE_S = 3.0
# A run's two roles fit on one core; Ray schedules, the operating system shares.
CPUS_A_ROLE = 0.5
CALLS_AT_ONCE = 4096


class RoleActorProcess:
    """One actor and the calls that are under way in it. `ended` is done when it is gone, with the cause."""

    def __init__(self, name: str, log: Path, run_id: str) -> None:
        self.pid: int | None = None  # on this host or another
        self.ended: asyncio.Future[EngineError] = asyncio.get_running_loop().create_future()
        self._name = name
        self._log = log
        self._run_id = run_id
        self._actor: Any = None
        self._calls = Calls(self._post)
        self._under_way: set[asyncio.Task[None]] = set()

    async def start(self, role: str, arguments: dict[str, Any]) -> None:
        remote: Any = ray.remote(RoleActor).options(num_cpus=CPUS_A_ROLE, max_concurrency=CALLS_AT_ONCE, max_restarts=0)
        self._actor = remote.remote(str(self._log))
        try:
            frame = unpack(await answered(_awaited(self._actor.build.remote(role, pack(arguments))), START_PATIENCE_S))
        except RayError as error:
            raise self._gone(error) from error
        except TimeoutError:
            raise EnvironmentMissing(
                f"the cluster did not place the {self._name} actor, or it did not load its model, within {START_PATIENCE_S:.0f} s",
                field="orchestration.kind",
                value=f"{CPUS_A_ROLE} CPU needed, {_free_cpus()} free",
                cure="stop another run, or add nodes; where it was placed, see its log",
                retryable=True,
            ) from None
        if "error" in frame:
            raise error_from_wire(frame["error"])
        self.pid = frame["result"]
        self._spawn(self._live(self._actor))

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        return await self._calls.call(method, args)

    def kill(self) -> None:
        if self._actor is not None:
            with contextlib.suppress(RayError):
                ray.kill(self._actor)

    async def stop(self) -> None:
        """Says "stop", kills the actor and sees its process off where it is on this host."""
        if self.pid is not None and not self.ended.done():
            with contextlib.suppress(HeadraceError, TimeoutError):
                await asyncio.wait_for(self.call("stop", {}), STOP_PATIENCE_S)
        self.kill()
        await asyncio.to_thread(self._see_off)
        if not self.ended.done():
            self._end(self._gone(None))
        for task in self._under_way:
            task.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)

    def _post(self, body: bytes) -> None:
        self._spawn(self._answer(unpack(body).get("id"), self._actor.take.remote(body)))

    async def _answer(self, number: int | None, reference: Awaitable[bytes | None]) -> None:
        try:
            body = await reference
        except RayError as error:  # a dead actor is told by `_live`, with the same words
            if number is not None:
                self._calls.settle({"id": number, "error": error_to_wire(self._gone(error))})
            return
        if body is not None:
            self._calls.settle(unpack(body))

    async def _live(self, actor: Any) -> None:
        try:
            await actor.watch.remote()
        except RayError as error:
            self._end(self._gone(error))
        else:
            self._end(self._gone(None))

    def _end(self, cause: EngineError) -> None:
        if not self.ended.done():
            self.ended.set_result(cause)
            self._calls.fail(cause)

    def _gone(self, error: BaseException | None) -> EngineError:
        first_line = str(error).strip().splitlines()[0] if error and str(error).strip() else "no reason given"
        return EngineError(
            f"the {self._name} actor is gone: {first_line}",
            field=self._name,
            cure=f"see {self._log}; resume from the last checkpoint",
            retryable=True,
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def _see_off(self) -> None:
        """Returns when its process is gone. A pid of another node means nothing here: only one of this run is waited for."""
        if self.pid is None:
            return
        with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            process = psutil.Process(self.pid)
            if process.environ().get("HEADRACE_RUN_ID") != self._run_id:
                return
            try:
                process.wait(STOP_PATIENCE_S)
            except psutil.TimeoutExpired:
                process.kill()


SMALL_STORE_BYTES = 200 * 1024 * 1024  # messages only
STORE_BYTES = 1024 * 1024 * 1024  # weights, too: three publishes of a small model


class RayActors(Crew):
    """One actor for each engine and one for the trainer."""

    _own_cluster: tempfile.TemporaryDirectory[str] | None = None
    _cleaner: Cleaner | None = None
    _connecting: asyncio.Future[None] | None = None

    async def _open(self) -> None:
        self._connecting = asyncio.ensure_future(asyncio.to_thread(self._connect))
        done, _ = await asyncio.wait({self._connecting}, timeout=START_PATIENCE_S)
        if not done:
            # Ray forks this process, which has threads: a lock that one of them held then is held for ever in the child.
            end_stuck_forks()
        try:
            await asyncio.shield(self._connecting)
        except (RayError, RuntimeError, ConnectionError) as error:
            raise EnvironmentMissing(
                f"Ray did not start: {error}", field="orchestration.kind", value="ray", cure="start the run once more", retryable=True
            ) from error

    async def _close(self) -> None:
        if self._connecting is not None:  # a cluster that is still coming up cannot be shut down, and would stay
            await asyncio.wait({self._connecting})
        if self._own_cluster is not None:
            await asyncio.to_thread(ray.shutdown)
            self._own_cluster.cleanup()
        if self._cleaner is not None:
            await asyncio.to_thread(self._cleaner.close)

    def _process(self, name: str) -> RoleActorProcess:
        return RoleActorProcess(name, self._log(name), self._run_id)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        options: dict[str, Any] = {"runtime_env": {"env_vars": self._environment}, "log_to_driver": False, "logging_level": "error"}
        if os.environ.get("RAY_ADDRESS"):
            ray.init(address="auto", **options)
            return
        # Alone: a cluster of its own, on loopback, with a token nobody else knows (see the package).
        self._own_cluster = tempfile.TemporaryDirectory(prefix="hr-ray-", ignore_cleanup_errors=True)
        self._cleaner = Cleaner(self._own_cluster.name)
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=STORE_BYTES if self._config.transport.kind == "object_store" else SMALL_STORE_BYTES,
            _node_ip_address="127.0.0.1",
            _temp_dir=self._own_cluster.name,
            **options,
        )
        self._cleaner.watch()


def end_stuck_forks() -> None:
    """Kills children that never became another program: whoever waits for them hears that they are gone."""
    own = psutil.Process()
    for child in own.children():
        with contextlib.suppress(psutil.Error):
            if child.cmdline() == own.cmdline():
                child.kill()


def _free_cpus() -> float:
    resources: dict[str, float] = ray.available_resources()
    return resources.get("CPU", 0.0)


async def _awaited(reference: Any) -> Any:
    return await reference
