"""What carriers are made of: a process that hangs, talks nonsense or dies never leaves its caller waiting; roads lose nothing."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from redis.exceptions import ConnectionError as Cut

from workers.axes.orchestration import bus, http_service, watch
from workers.axes.orchestration.calls import Calls
from workers.axes.orchestration.child import serve_socket
from workers.axes.orchestration.children import SocketRoad
from workers.axes.orchestration.host import Host
from workers.axes.orchestration.http import HttpRoad
from workers.axes.orchestration.process import Road, RoleProcess
from workers.axes.orchestration.pubsub import OwnServer, StreamRoad, ValkeyStreams, answers
from workers.axes.orchestration.wire import error_to_wire, pack, unpack
from workers.contract.config import RunConfig
from workers.contract.errors import EngineError, EnvironmentMissing

# -- processes that misbehave --------------------------------------------------------------------------


async def talking(tmp_path: Path, code: str) -> RoleProcess:
    """A process whose words are ours, on the road of sockets."""
    road = SocketRoad()
    child = RoleProcess("generator/0", tmp_path / "log", {}, road)
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", code, stdout=asyncio.subprocess.PIPE, stdin=asyncio.subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None and process.stdin is not None
    child.process = process
    await road.open({}, process.stdout, process.stdin)
    child._living = asyncio.create_task(child._live(process))
    return child


async def test_a_bad_frame_fails_every_waiting_call(tmp_path: Path) -> None:
    child = await talking(tmp_path, "import sys,time;sys.stdin.buffer.read(1);print('x'*99,flush=True);time.sleep(60)")
    with pytest.raises(EngineError, match="cannot be read"):
        await asyncio.wait_for(child.call("ping", {}), 10)
    with pytest.raises(EngineError, match="cannot be read"):
        await child.call("ping", {})
    await child.stop()
    assert child.process is not None and child.process.returncode is not None


async def test_a_role_that_cannot_be_built_says_why(tmp_path: Path) -> None:
    child = RoleProcess("generator/0", tmp_path / "log", {}, SocketRoad())
    with pytest.raises(EngineError, match="KeyError: 'acrobat'"):
        await child.start("acrobat", {})
    await child.stop()
    assert child.process is not None and child.process.returncode not in (None, 0)


async def test_a_stop_during_the_start_leaves_nothing(tmp_path: Path) -> None:
    child = RoleProcess("generator/0", tmp_path / "log", {}, SocketRoad())
    start = asyncio.create_task(child.start("generator", {}))
    await asyncio.sleep(0)
    await child.stop()
    with pytest.raises(EngineError):
        await start
    assert child.process is not None and child.process.returncode is not None


async def test_a_silent_engine_is_told_and_a_silent_trainer_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "PING_PATIENCE_S", 0.05)
    killed: list[str] = []
    told: list[str] = []

    def member(name: str) -> watch.Member:
        never = asyncio.Event().wait
        return watch.Member(name, lambda: 7, never, never, lambda: killed.append(name))  # type: ignore[arg-type]

    with pytest.raises(EngineError, match=r"trainer.*pid 7"):
        await watch.watch([member("generator/0"), member("trainer")], lambda name, error: told.append(name))
    assert "trainer" in killed and "trainer" not in told
    await watch.watch([member("generator/1")], lambda name, error: told.append(name))
    assert told[-1] == "generator/1" and killed[-1] == "generator/1"


def test_an_error_can_always_be_sent() -> None:
    assert error_to_wire(ValueError("\ud800"))["message"] == "ValueError: \\ud800"


# -- roads, both ends in this process ------------------------------------------------------------------


class Echo:
    """A role that says what it was told, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.running = 0

    async def call(self, method: str, args: dict[str, Any]) -> Any:
        self.calls += 1
        if method == "wait":
            self.running += 1
            try:
                await asyncio.Event().wait()
            finally:
                self.running -= 1
        return {"method": method, **args}


@dataclass
class Rig:
    """One road with an `Echo` at its end. `running` ends when the road does."""

    road: Road
    role: Echo
    calls: Calls
    running: asyncio.Task[None]
    server: OwnServer
    facts: dict[str, Any]


SERVE: dict[str, Any] = {"socket": serve_socket, "streams": bus.serve, "http": http_service.serve}


@pytest.fixture(params=SERVE)
async def rig(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Rig]:
    async with rigged(str(request.param), tmp_path) as made:
        yield made


@contextlib.asynccontextmanager
async def rigged(kind: str, tmp_path: Path) -> AsyncIterator[Rig]:
    server = OwnServer(tmp_path, tmp_path / "log", {})
    if kind == "streams":
        await server.start()
    roads: dict[str, Callable[[], Road]] = {
        "socket": SocketRoad,
        "streams": lambda: StreamRoad(server.url, "test"),
        "http": lambda: HttpRoad("open sesame"),
    }
    road = roads[kind]()
    ours, theirs = await cord(tmp_path)
    told: asyncio.Future[dict[str, Any]] = asyncio.get_running_loop().create_future()

    async def ready(facts: dict[str, Any]) -> None:
        told.set_result(facts)

    role = Echo()
    serving = asyncio.create_task(SERVE[kind](Host(role), await road.terms(), ready, *theirs))
    facts = await asyncio.wait_for(told, 5)
    await road.open(facts, *ours)
    calls = Calls(road.post)
    running = asyncio.create_task(road.run(calls.settle))
    yield Rig(road, role, calls, running, server, facts)
    for task in (running, serving):
        task.cancel()
    await asyncio.wait({running, serving})
    await road.close()
    ours[1].close()
    theirs[1].close()
    await server.stop()
    assert not server.socket.exists()


async def cord(tmp_path: Path) -> tuple[Any, Any]:
    """Both ends of a connection: (reader, writer) of ours, and of theirs."""
    theirs: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
    path = str(tmp_path / "cord")
    listening = await asyncio.start_unix_server(lambda reader, writer: theirs.set_result((reader, writer)), path)
    ours = await asyncio.open_unix_connection(path)
    both = ours, await theirs
    listening.close()
    return both


async def test_a_thousand_calls_under_way(rig: Rig) -> None:
    waiting = [asyncio.create_task(rig.calls.call("wait", {})) for _ in range(1000)]
    await until(lambda: rig.role.running == 1000)
    assert (await rig.calls.call("say", {"word": "x"}))["word"] == "x", "a free call passes those that wait"
    for call in waiting:
        call.cancel()
    await asyncio.wait(waiting)
    await until(lambda: rig.role.running == 0)
    said = await asyncio.gather(*(rig.calls.call("say", {"number": number}) for number in range(500)))
    assert [answer["number"] for answer in said] == list(range(500)) and rig.role.calls == 1501


async def test_a_call_taken_back_at_once_is_done_with(rig: Rig) -> None:
    call = asyncio.create_task(rig.calls.call("wait", {}))
    await asyncio.sleep(0)
    call.cancel()
    await asyncio.wait({call})
    assert (await rig.calls.call("say", {"word": "next"}))["word"] == "next"
    await until(lambda: rig.role.running == 0)


async def test_a_large_message(rig: Rig) -> None:
    text = "x" * 5_000_000
    assert (await rig.calls.call("say", {"text": text}))["text"] == text


@pytest.mark.parametrize("kind", ["streams", "http"])  # what a socket delivers, it delivers once
async def test_a_frame_delivered_twice_runs_once(kind: str, tmp_path: Path) -> None:
    async with rigged(kind, tmp_path) as rig:
        frame = pack({"id": 1, "method": "say", "args": {}})
        rig.road.post(frame)
        rig.road.post(frame)
        rig.calls._next = 2
        await rig.calls.call("say", {})
        assert rig.role.calls == 2


@pytest.mark.parametrize("kind", ["streams", "http"])
async def test_what_a_cut_connection_swallowed_comes_again(kind: str, tmp_path: Path) -> None:
    """Done over there, and the answer lost on its way: a stream's entry is still pending, a service still keeps the result."""
    async with rigged(kind, tmp_path) as rig:
        road: Any = rig.road
        client, name, cut = (
            (road._client, "request", httpx.ReadError("cut")) if kind == "http" else (road._inbox._client, "xreadgroup", Cut("cut"))
        )
        whole = getattr(client, name)
        swallowed: list[Any] = []

        async def cut_at_times(*args: Any, **kwargs: Any) -> Any:
            reply = await whole(*args, **kwargs)
            if reply and len(swallowed) < 2:
                swallowed.append(reply)
                raise cut
            return reply

        setattr(client, name, cut_at_times)
        for _ in range(3):
            said = await asyncio.wait_for(asyncio.gather(*(rig.calls.call("say", {"number": n}) for n in range(20))), 10)
            assert [answer["number"] for answer in said] == list(range(20))
        assert len(swallowed) == 2 and rig.role.calls == 60


async def test_a_killed_bus_ends_the_road(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bus, "READ_RETRIES", 2)
    async with rigged("streams", tmp_path) as rig:
        call = asyncio.create_task(rig.calls.call("wait", {}))
        await until(lambda: rig.role.running == 1)
        assert rig.server.process is not None
        rig.server.process.kill()
        with pytest.raises(EngineError, match="the bus is gone"):
            await asyncio.wait_for(rig.running, 10)
        call.cancel()


async def test_a_result_is_kept_until_it_is_acknowledged() -> None:
    results = http_service.Results()
    for body in (b"a", b"b", b"c"):
        results.add(body)
    assert await results.after(0, 0) == await results.after(0, 0) == [(1, b"a"), (2, b"b"), (3, b"c")]
    assert await results.after(2, 0) == [(3, b"c")] == await results.after(0, 0)
    assert await results.after(3, 0.01) == []
    waiting = asyncio.create_task(results.after(3, 5))
    await asyncio.sleep(0.01)
    results.add(b"d")
    assert await waiting == [(4, b"d")]


async def test_a_service_wants_its_token(tmp_path: Path) -> None:
    async with rigged("http", tmp_path) as rig, httpx.AsyncClient(trust_env=False) as client:
        address = f"http://127.0.0.1:{rig.facts['port']}/frames"
        frame = pack([pack({"id": 1, "method": "say", "args": {}})])
        for headers in ({}, {"authorization": "Bearer open"}, {"authorization": "open sesame"}):
            reply = await client.post(address, content=frame, headers=headers)
            assert reply.status_code == 401 and reply.headers["www-authenticate"] == "Bearer"
        assert rig.role.calls == 0
        reply = await client.post(address, content=frame, headers={"authorization": "Bearer open sesame"})
        assert reply.status_code == 202
        await until(lambda: rig.role.calls == 1)


async def test_a_bus_outside_is_used_and_not_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = OwnServer(tmp_path, tmp_path / "log", {})
    crew = ValkeyStreams(RunConfig(), "run", tmp_path)
    monkeypatch.setenv("HEADRACE_BUS_URL", server.url)
    with pytest.raises(EnvironmentMissing, match="HEADRACE_BUS_URL"):
        await crew._open()
    await server.start()
    await crew._open()
    assert crew.server is None and crew._url == server.url
    await crew.stop()
    assert await answers(server.url), "it is somebody else's"
    await server.stop()
    assert not await answers(server.url)


async def test_a_long_folder_name_is_no_obstacle(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 100)
    folder.mkdir()
    server = OwnServer(folder, tmp_path / "log", {})
    await server.start()
    private = server.socket.parent
    assert private != folder and private.stat().st_mode & 0o077 == 0
    await server.stop()
    assert not private.exists()


def test_frames_are_plain() -> None:
    assert unpack(pack({"id": 1, "args": {1: [None, True, 1.5, b"x", "ü"]}})) == {"id": 1, "args": {1: [None, True, 1.5, b"x", "ü"]}}


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():
            await asyncio.sleep(0.005)
