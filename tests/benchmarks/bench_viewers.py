"""From emit to page: one driver with the engine's own emitter and shipper, one Chromium on the run's page among many sockets on it, some
never reading.

    python -m tests.benchmarks.bench_viewers [--viewers 50] [--deaf 5] [--rate 20] [--seconds 30] [--database sqlite|postgres]

Every viewer is a real WebSocket with a browser session, one of them the browser's. The time of an event runs from the driver's `emit`
(before its spool is synced), on one clock: until the page's drawing of the flow holds its figure, until that has been painted, and until
a socket's client has the frame. Prints one JSON line. Start it when nothing else runs.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import threading
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil

from tests.benchmarks.server_rig import Served, served

FIRST = 1000  # figures of four digits: the page writes them whole
# Every figure that the drawing of the flow came to hold, when it did, and when it had been painted.
WATCH = """
window.seen = [];
new MutationObserver(() => {
  const words = document.getElementById("flow").textContent.match(/gradient norm ([\\d,]+)/);
  const value = words ? Number(words[1].replaceAll(",", "")) : 0;
  if (!value || value === window.seen.at(-1)?.[0]) return;
  const row = [value, Date.now(), null];
  window.seen.push(row);
  requestAnimationFrame(() => setTimeout(() => (row[2] = Date.now())));
}).observe(document.getElementById("flow"), { subtree: true, childList: true, characterData: true });
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--viewers", type=int, default=50)
    parser.add_argument("--deaf", type=int, default=5, help="how many of them never read")
    parser.add_argument("--rate", type=float, default=20.0, help="events a second")
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    options = parser.parse_args()
    with served(options.database, valkey=True) as server:
        name, value = session_cookie(server)
        before = psutil.Process(server.process.pid).memory_info().rss
        figures = asyncio.run(measure(server, name, value, options))
        after = psutil.Process(server.process.pid).memory_info().rss
        grown = round((after - before) / 1e6 / options.viewers, 2)
        print(json.dumps({**figures, "server_mb_per_viewer": grown, "database": options.database}))


def session_cookie(server: Served) -> tuple[str, str]:
    """Name and value of a browser session of the run's owner, as the login page makes it."""
    from django.conf import settings
    from django.db import connections
    from django.test import Client

    client = Client()
    client.force_login(server.rig.user)
    connections.close_all()
    return settings.SESSION_COOKIE_NAME, client.cookies[settings.SESSION_COOKIE_NAME].value


@asynccontextmanager
async def browser_page(server: Served, name: str, value: str) -> AsyncIterator[Any]:
    """The run's page in Chromium, once its link is live."""
    from playwright.async_api import async_playwright

    from tests.e2e.web_rig import chromium

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        context = await browser.new_context(viewport={"width": 1440, "height": 900})
        await context.add_cookies([{"name": name, "value": value, "url": server.url}])
        page = await context.new_page()
        await page.goto(f"{server.url}/runs/{server.rig.run.public_id}/")
        await page.locator("#live-mark[data-link=live]").wait_for()
        await page.evaluate(WATCH)
        yield page
        await browser.close()


async def measure(server: Served, name: str, value: str, options: argparse.Namespace) -> dict[str, Any]:
    from websockets.asyncio.client import connect

    delays: list[list[float]] = [[] for _ in range(options.viewers - options.deaf - 1)]
    missed = [0] * len(delays)
    address = f"ws://127.0.0.1:{server.port}/ws/runs/{server.rig.run.public_id}/"
    headers = {"Cookie": f"{name}={value}"}

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

    async with browser_page(server, name, value) as page, asyncio.TaskGroup() as tasks:
        origin = f"http://127.0.0.1:{server.port}"
        sockets = [await connect(address, origin=origin, additional_headers=headers, max_queue=1) for _ in range(options.viewers - 1)]
        readers = [tasks.create_task(read(place, socket)) for place, socket in enumerate(sockets[options.deaf :])]
        sent = await asyncio.to_thread(drive, server, options)
        await asyncio.sleep(2.0)
        for reader in readers:
            reader.cancel()
        for socket in sockets:
            socket.transport.abort()
        drawn, painted = page_delays(await page.evaluate("window.seen"), sent)
    return {
        "viewers": options.viewers,
        "never_reading": options.deaf,
        "events_per_s": options.rate,
        "events_sent": len(sent),
        "events_seen_by_each": [min(map(len, delays)), max(map(len, delays))],
        "events_on_the_page": len(drawn),
        "gaps": sum(missed),
        "emit_to_page_ms": spread(drawn),
        "emit_to_painted_ms": spread(painted),
        "emit_to_socket_ms": spread([delay for mine in delays for delay in mine]),
    }


def page_delays(seen: list[tuple[int, float, float | None]], sent: list[float]) -> tuple[list[float], list[float]]:
    """Seconds from each emit until the page held its figure or a later one, and until that was painted. What never came has none."""
    drawn, painted, row = [], [], 0
    for place, began in enumerate(sent):
        while row < len(seen) and seen[row][0] < FIRST + place:
            row += 1
        if row < len(seen):
            drawn.append(seen[row][1] / 1000 - began)
            painted.append((seen[row][2] or float("inf")) / 1000 - began)
    return drawn, painted


def spread(delays: list[float]) -> dict[str, float]:
    """Milliseconds."""
    every = sorted(delays)
    shares = {"p50": statistics.median(every), "p95": every[int(0.95 * len(every))], "p99": every[int(0.99 * len(every))], "max": every[-1]}
    return {name: round(1000 * value, 1) for name, value in shares.items()}


def drive(server: Served, options: argparse.Namespace) -> list[float]:
    """What a run's driver does: numbered, synced to the spool, shipped by a thread that waits for the disk. Returns when each was sent."""
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
        sent: list[float] = []
        began, pause = time.monotonic(), threading.Event()
        while time.monotonic() - began < options.seconds:
            emitter.step = len(sent)
            values = {"loss/grad_norm": float(FIRST + len(sent))} | {f"reward/mean_{place}": len(sent) / 7 for place in range(20)}
            sent.append(time.time())
            emitter.metrics(values)
            pause.wait(max(0.0, began + len(sent) / options.rate - time.monotonic()))
        emitter.close()
        shipper.stop()
    return sent


if __name__ == "__main__":
    main()
