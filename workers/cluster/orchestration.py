"""ray: generator and trainer as Ray actors. Inside a Ray Job it joins that cluster; alone it starts one for itself."""

from __future__ import annotations

import asyncio
import contextlib
import os
import tempfile
from pathlib import Path
from typing import Any

import msgpack
import psutil
import ray
from ray.exceptions import RayError

from workers.axes.orchestration.base import ROLE_ENVIRONMENT, START_PATIENCE_S, Lost, Pools, identity
from workers.axes.orchestration.clients import RemoteGenerator, RemoteTrainer
from workers.axes.orchestration.watch import Member, watch
from workers.axes.orchestration.wire import error_from_wire
from workers.cluster.actor import RoleActor
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError, EnvironmentMissing

STOP_PATIENCE_S = 3.0
# A run's two roles fit on one core; Ray schedules, the operating system shares.
CPUS_A_ROLE = 0.5
CALLS_AT_ONCE = 4096


class RayActors:
    """One actor for each engine and one for the trainer."""

    def __init__(self, config: RunConfig, run_id: str, scratch: Path) -> None:
        self._config = config
        self._run_id = run_id
        self._scratch = scratch
        self._actors: dict[str, Any] = {}
        self._pids: list[int] = []
        self._own_cluster: tempfile.TemporaryDirectory[str] | None = None

    async def start(self) -> Pools:
        await asyncio.to_thread(self._connect)
        common = {"config": self._config.as_json(), "run_id": self._run_id, "scratch": str(self._scratch)}
        engines = {f"generator/{index}": {**common, "name": f"generator/{index}"} for index in range(self._config.rollout.engines)}
        builds = [self._build(name, "generator", arguments) for name, arguments in engines.items()]
        try:
            await asyncio.wait_for(asyncio.gather(*builds, self._build("trainer", "trainer", common)), START_PATIENCE_S)
        except TimeoutError:
            raise EnvironmentMissing(
                f"the cluster did not place {len(builds) + 1} actors within {START_PATIENCE_S:.0f} s",
                field="orchestration.kind",
                value=f"{CPUS_A_ROLE * (len(builds) + 1)} CPU needed, {_free_cpus()} free",
                cure="stop another run, or add nodes; where they were placed, see their logs",
                retryable=True,
            ) from None
        return Pools(
            generators={name: RemoteGenerator(self._caller(name)) for name in engines},
            trainer=RemoteTrainer(self._caller("trainer")),
        )

    async def failure(self, lost: Lost | None = None) -> None:
        await watch([self._member(name) for name in self._actors], lost)

    def _member(self, name: str) -> Member:
        actor, call = self._actors[name], self._caller(name)

        async def died() -> EngineError:
            try:
                await _awaited(actor.watch.remote())
            except RayError as error:
                return self._died(name, error)
            return self._died(name, None)

        return Member(name, None, lambda: call("ping", {}), died, lambda: ray.kill(actor))

    async def stop(self) -> None:
        # Together, so that what never started costs one wait and not one for each actor.
        await asyncio.gather(*(self._end(actor) for actor in self._actors.values()))
        await asyncio.to_thread(self._see_off)
        if self._own_cluster is not None:
            await asyncio.to_thread(ray.shutdown)
            self._own_cluster.cleanup()

    async def _end(self, actor: Any) -> None:
        with contextlib.suppress(RayError, TimeoutError):
            await asyncio.wait_for(_awaited(actor.call.remote("stop", msgpack.packb({}))), STOP_PATIENCE_S)
        with contextlib.suppress(RayError):
            ray.kill(actor)

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        variables = {**identity(self._run_id), **ROLE_ENVIRONMENT}
        options: dict[str, Any] = {"runtime_env": {"env_vars": variables}, "log_to_driver": False, "logging_level": "error"}
        if os.environ.get("RAY_ADDRESS"):
            ray.init(address="auto", **options)
            return
        # Alone: a cluster of its own, on loopback, with a token nobody else knows (see the package).
        self._own_cluster = tempfile.TemporaryDirectory(prefix="hr-ray-", ignore_cleanup_errors=True)
        ray.init(
            address="local",
            include_dashboard=False,
            object_store_memory=200 * 1024 * 1024,
            _node_ip_address="127.0.0.1",
            _temp_dir=self._own_cluster.name,
            **options,
        )

    async def _build(self, name: str, role: str, arguments: dict[str, Any]) -> None:
        log = self._scratch.parent / "logs" / f"{name.replace('/', '-')}.log"
        remote: Any = ray.remote(RoleActor).options(num_cpus=CPUS_A_ROLE, max_concurrency=CALLS_AT_ONCE, max_restarts=0)
        actor = self._actors[name] = remote.remote(name, str(log))
        try:
            self._pids.append(_opened(await _awaited(actor.build.remote(role, msgpack.packb(arguments)))))
        except RayError as error:
            raise self._died(name, error) from error

    def _caller(self, name: str) -> Any:
        actor = self._actors[name]

        async def call(method: str, args: dict[str, Any]) -> Any:
            try:
                return _opened(await _awaited(actor.call.remote(method, msgpack.packb(args))))
            except RayError as error:
                raise self._died(name, error) from error

        return call

    def _died(self, name: str, error: BaseException | None) -> EngineError:
        first_line = str(error).strip().splitlines()[0] if error else "no reason given"
        return EngineError(
            f"the {name} actor is gone: {first_line}", field=name, cure="see its log; resume from the last checkpoint", retryable=True
        )

    def _see_off(self) -> None:
        """Returns when the actors' processes on this host are gone."""
        left = [process for pid in self._pids if (process := _process(pid)) is not None]
        _, alive = psutil.wait_procs(left, timeout=STOP_PATIENCE_S)
        for process in alive:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()


def _free_cpus() -> float:
    resources: dict[str, float] = ray.available_resources()  # type: ignore[no-untyped-call]
    return resources.get("CPU", 0.0)


async def _awaited(reference: Any) -> Any:
    return await reference


def _opened(body: bytes) -> Any:
    frame = msgpack.unpackb(body, strict_map_key=False)
    if "error" in frame:
        raise error_from_wire(frame["error"])
    return frame["result"]


def _process(pid: int) -> psutil.Process | None:
    """The process, if it is on this host and is one of ours; a pid of another node means nothing here."""
    try:
        process = psutil.Process(pid)
        return process if process.environ().get("HEADRACE_RUN_ID") == os.environ.get("HEADRACE_RUN_ID") else None
    except psutil.Error:
        return None
