"""The live socket: who may open it, what it forwards, what a slow browser gets, and when it is shut."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from asgiref.sync import sync_to_async
from channels.layers import get_channel_layer
from channels.routing import URLRouter
from django.contrib.auth.models import AnonymousUser
from django.contrib.sessions.models import Session
from django.db import connections
from django.test import Client

from headrace.experiments import lifecycle
from headrace.experiments.states import RunState
from headrace.teams.models import Membership
from headrace.telemetry import consumers, frames, notify
from headrace.telemetry.routing import websocket_urlpatterns
from tests.platform_tests.socket_client import SocketClient
from tests.platform_tests.telemetry_rig import SAMPLE, Rig, columns, metric, new_rig, push

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def rig(transactional_db: None) -> Rig:
    return new_rig()


@pytest.fixture(autouse=True)
def _fresh_notify() -> Iterator[None]:
    notify._silent_until = 0.0
    yield
    notify._silent_until = 0.0


@pytest.fixture(autouse=True)
async def _no_connection_left() -> AsyncIterator[None]:
    """The thread that runs database work for coroutines keeps its connection, which would hold the test database open."""
    yield
    await sync_to_async(connections.close_all)()


def session_of(user: Any) -> Any:
    """What a browser that has logged in holds; None for a guest."""
    if not user.is_authenticated:
        return None
    client = Client()
    client.force_login(user)
    return client.session


async def socket(rig: Rig, user: Any) -> SocketClient:
    session = await sync_to_async(session_of)(user)
    return SocketClient(URLRouter(websocket_urlpatterns), f"/ws/runs/{rig.run.public_id}/", user, session)


async def opened(rig: Rig) -> SocketClient:
    communicator = await socket(rig, rig.user)
    assert await communicator.connect()
    assert frames.group_name(rig.run.public_id) in get_channel_layer().groups
    return communicator


async def close_code(communicator: SocketClient, timeout: float = 3) -> int:
    assert await communicator.connect()
    return (await communicator.receive_output(timeout=timeout))["code"]


async def test_strangers_and_guests_are_shut_out(rig: Rig) -> None:
    assert await close_code(await socket(rig, AnonymousUser())) == 4401
    other = await sync_to_async(new_rig)()
    assert await close_code(await socket(rig, other.user)) == 4404


async def test_ingested_events_arrive_as_one_frame(rig: Rig) -> None:
    communicator = await opened(rig)
    await sync_to_async(push)(rig.attempt, [metric(0.5), ("sample", SAMPLE)])
    await sync_to_async(push)(rig.attempt, [metric("NaN")], first=3)
    frame = json.loads(await communicator.receive_text())
    assert (frame["attempt"], frame["first"]) == (1, 1)
    seen = frame["events"]
    while seen[-1]["seq"] < 3:
        seen += json.loads(await communicator.receive_text())["events"]
    assert [event["seq"] for event in seen] == [1, 2, 3]
    assert seen[0]["data"] == {"values": {"reward/mean": 0.5}} and "tokens" not in seen[1]["data"]
    await communicator.disconnect()


async def test_the_first_goes_out_at_once_and_what_follows_closely_shares_a_frame(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "COALESCE_S", 1.5)
    communicator = await opened(rig)
    group, layer = frames.group_name(rig.run.public_id), get_channel_layer()
    await layer.group_send(group, frames.events_message(1, columns([metric(1.0)], first=1)))
    assert json.loads(await communicator.receive_text())["last"] == 1
    for seq in range(2, 42):
        await layer.group_send(group, frames.events_message(1, columns([metric(float(seq))], first=seq)))
    frame = json.loads(await communicator.receive_text())
    assert (frame["first"], frame["last"], len(frame["events"])) == (2, 41, 40)
    await communicator.disconnect()


async def test_a_slow_browser_gets_a_gap_and_the_newest(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "COALESCE_S", 2.0)  # nothing is taken from the queue while this lasts
    communicator = await opened(rig)
    group, layer = frames.group_name(rig.run.public_id), get_channel_layer()
    await layer.group_send(group, frames.events_message(1, columns([metric(1.0)], first=1)))
    assert json.loads(await communicator.receive_text())["last"] == 1  # the pause before the next frame begins now
    for seq in range(2, 3 * consumers.QUEUE_FRAMES):
        await layer.group_send(group, frames.events_message(1, columns([metric(1.0)], first=seq)))
        await asyncio.sleep(0.001)  # the consumer takes each from the layer, whose own capacity is not what is tested
    gap = json.loads(await communicator.receive_text())
    assert gap["gap"] is True and gap["attempt"] == 1 and gap["through"] >= consumers.QUEUE_FRAMES
    frame = json.loads(await communicator.receive_text())
    assert frame["first"] == gap["through"] + 1 and len(frame["events"]) <= consumers.QUEUE_FRAMES
    await communicator.disconnect()


async def test_a_huge_batch_is_announced_not_pushed(rig: Rig) -> None:
    communicator = await opened(rig)
    await sync_to_async(push)(rig.attempt, [("log", {"level": "info", "message": "x" * 15_000})] * 30)
    assert json.loads(await communicator.receive_text()) == {"gap": True, "attempt": 1, "through": 30}
    await communicator.disconnect()


async def test_a_change_of_state_is_told(rig: Rig) -> None:
    communicator = await opened(rig)
    await sync_to_async(lifecycle.transition)(rig.run, RunState.LAUNCHING, cause="the launcher took it")
    frame = json.loads(await communicator.receive_text())
    assert frame["run"]["state"] == "launching"
    await communicator.disconnect()


async def test_access_that_is_taken_away_closes_the_socket(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert consumers.RECHECK_S <= 5
    monkeypatch.setattr(consumers, "RECHECK_S", 0.1)
    communicator = await opened(rig)
    await asyncio.sleep(0.25)
    await sync_to_async(Membership.unscoped.filter(user=rig.user).delete)()
    assert (await communicator.receive_output(timeout=3)) == {"type": "websocket.close", "code": 4403}


@pytest.mark.parametrize("what", ["logout", "password"])
async def test_a_session_that_ends_closes_the_socket(rig: Rig, monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    monkeypatch.setattr(consumers, "RECHECK_S", 0.1)
    communicator = await opened(rig)
    await asyncio.sleep(0.25)
    assert await communicator.receive_nothing(timeout=0.05)

    def end() -> None:
        if what == "logout":
            Session.objects.all().delete()
        else:
            rig.user.set_password("another long password")
            rig.user.save()

    await sync_to_async(end)()
    assert (await communicator.receive_output(timeout=3)) == {"type": "websocket.close", "code": 4403}


async def test_a_lost_message_is_found_by_looking(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(consumers, "RECHECK_S", 0.1)
    monkeypatch.setattr(notify, "send", lambda *args: False)
    communicator = await opened(rig)
    await sync_to_async(push)(rig.attempt, [("started", {"resumed_from": None}), metric(0.5)])
    found = [json.loads(await communicator.receive_text()) for _ in range(2)]
    assert {"gap": True, "attempt": 1, "through": 2} in found
    assert any(frame.get("run", {}).get("state") == "running" for frame in found)
    assert await communicator.receive_nothing(timeout=0.4)
    await communicator.disconnect()


async def test_what_a_client_sends_is_ignored(rig: Rig) -> None:
    communicator = await opened(rig)
    await communicator.send_input({"type": "websocket.receive", "text": '{"seen":'})
    await communicator.send_input({"type": "websocket.receive", "bytes": b"\x00\xff"})
    assert await communicator.receive_nothing(timeout=0.2)
    await communicator.disconnect()


def test_a_dead_channel_layer_never_fails_an_ingest(rig: Rig, settings: Any) -> None:
    settings.CHANNEL_LAYERS = {
        "default": {
            "BACKEND": "channels_redis.pubsub.RedisPubSubChannelLayer",
            "CONFIG": {"hosts": [{"address": "unix:///nowhere/v.sock"}]},
        }
    }
    assert push(rig.attempt, [metric(1.0)]).ingested_through == 1
    assert notify._silent_until > 0
    assert push(rig.attempt, [metric(2.0)], first=2).ingested_through == 2
