"""From emit to page: one driver with the engine's own emitter and shipper, many sockets on the run's page, some never reading.

    python -m tests.benchmarks.bench_viewers [--viewers 50] [--deaf 5] [--rate 20] [--seconds 30] [--database sqlite|postgres]

Every viewer is a real WebSocket with a browser session. The time of an event runs from the driver's `emit` (before its spool is
synced) until the socket's client has the frame, on one clock. Prints one JSON line. Start it when nothing else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.server_rig import Served, served


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--deaf", type=int, default=5, help="how many of them never read")
    parser.add_argument("--rate", type=float, default=20.0, help="events a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    options = parser.parse_args()
    with served(options.database, valkey=True) as server:
        cookie = session_cookie(server)
        before = psutil.Process(server.process.pid).memory_info().rss
        figures = asyncio.run(measure(server, cookie, options))
        after = psutil.Process(server.process.pid).memory_info().rss
        grown = round((after - before) / 1e6 / options.viewers, 2)
        print(json.dumps({**figures, "server_mb_per_viewer": grown, "database": options.database}))


def session_cookie(server: Served) -> str:
    """A browser session of the run's owner, as the login page makes it."""
    from django.conf import settings
    from django.db import connections
    from django.test import Client

    client = Client()
    client.force_login(server.rig.user)
    connections.close_all()
    return f"{settings.SESSION_COOKIE_NAME}={client.cookies[settings.SESSION_COOKIE_NAME].value}"


async def measure(server: Served, cookie: str, options: argparse.Namespace) -> dict[str, Any]:
    from websockets.asyncio.client import connect

    delays: list[list[float]] = [[] for _ in range(options.viewers - options.deaf)]
    missed = [0] * len(delays)
    address = f"ws://127.0.0.1:{server.port}/ws/runs/{server.rig.run.public_id}/"
    headers = {"Cookie": cookie}

    async def read(place: int, socket: Any) -> None:
        expected = 0
        async for frame in socket:
            now, body = time.time(), json.loads(frame)
            if "events" not in body:
                missed[place] += "gap" in body
                continue
            for event in body["events"]:
                if expected and event["seq"] != expected:
                    missed[place] += 1
                expected = event["seq"] + 1
                if event["kind"] == "metrics":
                    delays[place].append(now - event["t"])

    async with asyncio.TaskGroup() as tasks:
        origin = f"http://127.0.0.1:{server.port}"
        sockets = [await connect(address, origin=origin, additional_headers=headers, max_queue=1) for _ in range(options.viewers)]
        readers = [tasks.create_task(read(place, socket)) for place, socket in enumerate(sockets[options.deaf :])]
        sent = await asyncio.to_thread(drive, server, options)
        await asyncio.sleep(2.0)
        for reader in readers:
            reader.cancel()
        for socket in sockets:
            socket.transport.abort()
    every = sorted(delay for mine in delays for delay in mine)
    return {
        "viewers": options.viewers,
        "never_reading": options.deaf,
        "events_per_s": options.rate,
        "events_sent": sent,
        "events_seen_by_each": [min(map(len, delays)), max(map(len, delays))],
        "gaps": sum(missed),
        "emit_to_socket_ms": {
            "p50": round(1000 * statistics.median(every), 1),
            "p95": round(1000 * every[int(0.95 * len(every))], 1),
            "p99": round(1000 * every[int(0.99 * len(every))], 1),
            "max": round(1000 * every[-1], 1),
        },
    }


def drive(server: Served, options: argparse.Namespace) -> int:
    """What a run's driver does: numbered, synced to the spool, shipped by a thread that waits for the disk."""
    from workers.emit import Emitter
    from workers.ship import AttemptFile, Shipper

    rig = server.rig
    note = AttemptFile(rig.run.public_id, rig.attempt.public_id, 1, 1, server.url, rig.token)
    with tempfile.TemporaryDirectory(prefix="headrace-spool-") as folder:
        emitter = Emitter(Path(folder))
        shipper = Shipper(note, Path(folder), durable=lambda: emitter.durable_seq)
        emitter.listeners.append(shipper.wake)
        shipper.start()
        emitter.emit("started", {})
        time.sleep(1.0)
        sent, began, pause = 0, time.monotonic(), threading.Event()
        while time.monotonic() - began < options.seconds:
            emitter.step = sent
            emitter.metrics({f"reward/mean_{place}": sent / 7 for place in range(20)})
            sent += 1
            pause.wait(max(0.0, began + sent / options.rate - time.monotonic()))
        emitter.close()
        shipper.stop()
    return sent


if __name__ == "__main__":
    main()
