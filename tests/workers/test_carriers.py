"""One conformance suite over every carrier: the real roles, a tiny model, two engines and a trainer, started once for each kind.

The transport is `restart`, so that an update is also a change of process. The tests of one kind run in this order: the last ones
kill what the first ones use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, get_args

import httpx
import psutil
import pytest
import pytest_asyncio

from tests.workers.tiny_model import make_tiny_model
from workers import registry
from workers.axes.orchestration.base import Pools
from workers.axes.orchestration.bus import GROUP, connect
from workers.axes.orchestration.clients import RemoteGenerator
from workers.axes.orchestration.restarting import RestartingGenerator
from workers.contract.axes import OrchestrationKind
from workers.contract.config import RunConfig
from workers.contract.errors import CheckpointError, DigestMismatch, EngineError, HeadraceError
from workers.records import Manifest, SampleRequest

SLOTS = 16
MANY = 256
LONG = 400


@dataclass
class Stage:
    """A carrier with its pools, and what its watch has told."""

    kind: str
    run_id: str
    crew: Any
    pools: Pools
    scratch: Path
    watching: asyncio.Task[None]
    lost: dict[str, EngineError]
    manifests: list[Manifest] = field(default_factory=list)

    def engine(self, index: int) -> RestartingGenerator:
        engine = self.pools.generators[f"generator/{index}"]
        assert isinstance(engine, RestartingGenerator)
        return engine

    def plain(self, index: int) -> RemoteGenerator:
        """The engine without the change of process around it."""
        return RemoteGenerator(self.crew._seats[f"generator/{index}"].call)

    async def published(self, version: int) -> Manifest:
        self.manifests.append(await self.pools.trainer.publish(version, ["generator/0", "generator/1"]))
        return self.manifests[-1]


def processes_of(run_id: str) -> list[psutil.Process]:
    """Every process that carries the run's mark, but this one."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != os.getpid() and process.environ().get("HEADRACE_RUN_ID") == run_id:
                found.append(process)
    return found


def request(name: str, new: int = 4, index: int = 0, **changes: Any) -> SampleRequest:
    values: dict[str, Any] = {"prompt_ids": [5, 9, 33], "key": 1000 + index, "max_new_tokens": new, "temperature": 1.0, **changes}
    return SampleRequest(f"{name}/{index}", name, index, **values)


async def until(holds: Callable[[], Any], patience_s: float = 10.0) -> Any:
    deadline = time.monotonic() + patience_s
    while True:
        answer = holds()
        answer = await answer if asyncio.iscoroutine(answer) else answer
        if answer:
            return answer
        assert time.monotonic() < deadline, "it did not come to hold in time"
        await asyncio.sleep(0.02)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"), seed=4)


def config_for(kind: str, folder: Path) -> RunConfig:
    return RunConfig.model_validate(
        {
            "model": {"path": str(folder), "dtype": "float32"},
            "lora": {"rank": 4, "alpha": 8.0},
            "rollout": {"max_running": SLOTS, "threads": 1, "engines": 2},
            "backend": {"threads": 1},
            "orchestration": {"kind": kind},
            "transport": {"kind": "restart"},
            "interrupt": {"kind": "drain"},
            "partial": ["none"],
        }
    )


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=get_args(OrchestrationKind))
async def stage(request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stage]:
    kind, run_id = str(request.param), uuid.uuid4().hex[:12]
    scratch = tmp_path_factory.mktemp(kind) / "scratch"
    scratch.mkdir()
    crew = registry.resolve("orchestration", kind)(config_for(kind, folder), run_id, scratch)
    lost: dict[str, EngineError] = {}
    os.environ["HEADRACE_RUN_ID"] = run_id  # as the driver does: whatever a carrier starts beside the roles has it, too
    try:
        pools = await crew.start()
        watching = asyncio.create_task(crew.failure(lambda name, error: lost.update({name: error})))
        yield Stage(kind, run_id, crew, pools, scratch, watching, lost)
    finally:
        await crew.stop()
        del os.environ["HEADRACE_RUN_ID"]
    # Here and not in a test of its own: whatever failed before, nothing may be left.
    started = time.monotonic()
    while (left := processes_of(run_id)) and time.monotonic() - started < 5:
        await asyncio.sleep(0.05)
    assert not left, f"left running: {left}"
    assert not list(scratch.glob("**/*.sock"))


@pytest.mark.asyncio(loop_scope="module")
async def test_many_requests_at_once(stage: Stage) -> None:
    rollouts = await asyncio.gather(*(stage.engine(index % 2).generate(request("many", index=index)) for index in range(MANY)))
    assert [rollout.index for rollout in rollouts] == list(range(MANY))
    assert all(1 <= len(rollout.token_ids) == len(rollout.logprobs) <= 4 for rollout in rollouts)
    assert {rollout.engine for rollout in rollouts} == {"generator/0", "generator/1"}


@pytest.mark.asyncio(loop_scope="module")
async def test_status_and_the_trainers(stage: Stage) -> None:
    status = await stage.engine(0).status()
    assert (status.version, status.running, status.slots) == (0, 0, SLOTS) and status.generated_tokens > 0
    facts = await stage.pools.trainer.status()  # type: ignore[attr-defined]
    assert facts["pid"] != os.getpid() and psutil.Process(facts["pid"]).environ()["HEADRACE_RUN_ID"] == stage.run_id
    assert psutil.Process(facts["pid"]).nice() >= 10


@pytest.mark.asyncio(loop_scope="module")
async def test_errors_keep_class_and_words(stage: Stage, tmp_path: Path) -> None:
    with pytest.raises(EngineError) as refused:
        await stage.engine(0).generate(request("bad", prompt_ids=[]))
    assert refused.value.field and refused.value.cure
    with pytest.raises(CheckpointError):
        await stage.pools.trainer.checkpoint(tmp_path / "nowhere", restore=True)
    with pytest.raises(HeadraceError, match="no such method"):
        await stage.crew._seats["trainer"].call("sing", {})
    with pytest.raises(EngineError, match="TypeError"):
        await stage.crew._seats["generator/0"].call("update", {"manifest": {"version": "nonsense"}})
    with pytest.raises(TypeError):  # on this side, before anything is sent
        await stage.crew._seats["generator/0"].call("update", {"manifest": object()})


@pytest.mark.asyncio(loop_scope="module")
async def test_a_checkpoint_is_written_and_read(stage: Stage, tmp_path: Path) -> None:
    counters = await stage.pools.trainer.checkpoint(tmp_path)
    assert (tmp_path / "adapter_model.safetensors").stat().st_size > 0
    assert await stage.pools.trainer.checkpoint(tmp_path, restore=True) == counters


@pytest.mark.asyncio(loop_scope="module")
async def test_a_cancelled_call_ends_in_the_engine(stage: Stage) -> None:
    calls = [asyncio.create_task(stage.engine(0).generate(request("long", LONG, index))) for index in range(SLOTS)]

    async def all_running() -> bool:
        return (await stage.engine(0).status()).running == SLOTS

    async def none_running() -> bool:
        status = await stage.engine(0).status()
        return status.running == 0 and status.waiting == 0

    before = await stage.engine(0).status()
    await until(all_running)
    for call in calls:
        call.cancel()
    await asyncio.wait(calls)
    await until(none_running)
    after = await stage.engine(0).status()
    assert all(call.cancelled() for call in calls)
    assert after.generated_tokens - before.generated_tokens < SLOTS * LONG / 2
    assert (await stage.engine(0).generate(request("afterwards"))).token_ids


@pytest.mark.asyncio(loop_scope="module")
async def test_an_update_is_taken_and_a_wrong_one_refused(stage: Stage) -> None:
    manifest = await stage.published(1)
    assert manifest.transport == "restart"
    with pytest.raises(DigestMismatch):
        await stage.plain(1).update(replace(manifest, digest="0" * 64))
    assert (await stage.plain(1).status()).version == 0
    report = await stage.plain(1).update(manifest)
    assert (report.version, report.digest) == (1, manifest.digest)
    assert (await stage.engine(1).generate(request("new"))).versions[0] == 1


@pytest.mark.asyncio(loop_scope="module")
async def test_a_restart_takes_the_new_weights(stage: Stage) -> None:
    engine = stage.engine(0)
    old_pid = engine.pid
    assert old_pid is not None
    tokens = (await engine.status()).generated_tokens
    manifest = await stage.published(2)
    running = [asyncio.create_task(engine.generate(request("before", 40, index))) for index in range(4)]
    await asyncio.sleep(0)
    update = asyncio.create_task(engine.update(manifest))
    await until(lambda: not psutil.pid_exists(old_pid))
    assert all(call.done() for call in running), "the old process finishes what it has begun"
    assert {version for call in running for version in call.result().versions} == {0}
    waiting = asyncio.create_task(engine.generate(request("after")))
    assert (await engine.status()).running == 0  # answered while there is no process
    report = await update
    assert (report.version, report.digest) == (2, manifest.digest)
    assert report.pause_s >= report.transfer_s + report.apply_s - 1e-6 and report.pause_s > 0.05
    assert set((await waiting).versions) == {2}
    status = await engine.status()
    assert status.version == 2 and status.generated_tokens >= tokens + 160 and engine.pid not in (None, old_pid)
    assert not stage.lost and not stage.watching.done(), "a deliberate end is no loss"


@pytest.mark.asyncio(loop_scope="module")
async def test_nobody_else_gets_in(stage: Stage) -> None:
    listening = [
        (process, connection)
        for process in processes_of(stage.run_id)
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    ]
    assert all(connection.laddr.ip in ("127.0.0.1", "::1", "::ffff:127.0.0.1") for _, connection in listening)
    command_lines = " ".join(word for process in processes_of(stage.run_id) for word in process.cmdline())
    if stage.kind == "http":
        assert len(listening) == 3 and stage.crew._token not in command_lines
        for port in {connection.laddr.port for _, connection in listening}:
            await _refused(f"http://127.0.0.1:{port}", stage.crew._token)
    elif stage.kind == "pubsub":
        assert not listening and stage.crew.server.url not in command_lines
        assert stage.crew.server.socket.stat().st_mode & 0o777 == 0o600
        assert stage.crew.server.socket.parent.stat().st_mode & 0o022 == 0
    elif stage.kind == "asyncio":
        assert not listening


async def _refused(address: str, token: str) -> None:
    headers = [{}, {"authorization": "Bearer wrong"}, {"authorization": f"Basic {token}"}, {"authorization": token}]
    async with httpx.AsyncClient(base_url=address, trust_env=False, timeout=5) as client:
        for given in headers:
            assert (await client.get("/results", params={"after": 0}, headers=given)).status_code == 401
            assert (await client.post("/frames", content=b"\x90", headers=given)).status_code == 401
        right = {"authorization": f"Bearer {token}"}
        assert (await client.post("/frames", content=b"\xc1", headers=right)).status_code == 400
        assert (await client.get("/results", headers=right)).status_code == 400
        assert (await client.get("/openapi.json", headers=right)).status_code == 404


@pytest.mark.asyncio(loop_scope="module")
async def test_nothing_is_kept_of_what_is_done(stage: Stage) -> None:
    if stage.kind == "pubsub":
        await _empty_streams(stage)
    assert not any(seat._process._calls._waiting for seat in stage.crew._seats.values())


async def _empty_streams(stage: Stage) -> None:
    server = connect(stage.crew.server.url)
    streams = [key async for key in server.scan_iter()]
    assert len(streams) == 6, "two streams for each process; those of the one that was changed are gone"

    async def empty() -> bool:
        lengths = [await server.xlen(stream) for stream in streams]
        pending = [(await server.xpending(stream, GROUP))["pending"] for stream in streams]
        return not any(lengths) and not any(pending)

    await until(empty)
    assert all([await server.ttl(stream) > 0 for stream in streams]), "a killed driver leaves nothing for ever"
    await server.aclose()


@pytest.mark.asyncio(loop_scope="module")
async def test_a_killed_engine_ends_its_calls_and_is_told(stage: Stage) -> None:
    calls = [asyncio.create_task(stage.engine(1).generate(request("doomed", LONG, index))) for index in range(SLOTS)]

    async def running() -> bool:
        return (await stage.engine(1).status()).running > 0

    await until(running)
    pid = stage.engine(1).pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    ends = await asyncio.wait_for(asyncio.gather(*calls, return_exceptions=True), 15)
    assert all(isinstance(end, EngineError) and "generator/1" in str(end) for end in ends)
    await until(lambda: stage.lost)
    assert list(stage.lost) == ["generator/1"] and stage.lost["generator/1"].retryable
    if stage.kind != "ray":
        assert "SIGKILL" in str(stage.lost["generator/1"])
    with pytest.raises(EngineError):
        await stage.engine(1).status()
    with pytest.raises(EngineError):  # the dead are not brought back by a late update
        await stage.engine(1).update(stage.manifests[-1])
    assert (await stage.engine(0).generate(request("still"))).token_ids


@pytest.mark.asyncio(loop_scope="module")
async def test_a_dead_trainer_ends_the_run(stage: Stage) -> None:
    facts = await stage.pools.trainer.status()  # type: ignore[attr-defined]
    os.kill(facts["pid"], signal.SIGKILL)
    with pytest.raises(EngineError, match="trainer"):
        await asyncio.wait_for(stage.watching, 15)
    with pytest.raises(EngineError, match="trainer"):
        await stage.pools.trainer.interrupt()


DRIVER = """
import asyncio, os, sys
from pathlib import Path
from workers.axes.orchestration.pubsub import OwnServer

async def main():
    server = OwnServer(Path(sys.argv[1]), Path(sys.argv[1]) / "log", {"HEADRACE_RUN_ID": "killed"})
    await server.start()
    print(server.process.pid, flush=True)
    await asyncio.sleep(60)

asyncio.run(main())
"""


def test_the_bus_dies_with_a_killed_driver(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as driver:
        assert driver.stdout is not None
        server = psutil.Process(int(driver.stdout.readline()))
        assert server.name().startswith("valkey") and server.environ()["HEADRACE_RUN_ID"] == "killed"
        driver.kill()
    server.wait(5)
