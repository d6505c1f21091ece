"""Metric points a second through the real server: uvicorn in its own process, SQLite on disk (WAL, FULL), HTTP, token, gzip.

    python tests/benchmarks/bench_ingest.py [--seconds 10] [--names 25] [--events 100] [--no-gzip]

One driver posts batches as a run does: `events` metrics events of `names` values each, one batch after the other. Prints one JSON line.
Start it when nothing else runs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--names", type=int, default=25)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--no-gzip", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        port = free_port()
        set_environment(Path(folder), port)
        rig = prepare()
        server = start_server(port)
        try:
            wait_until_live(port, server)
            figures = measure(rig, port, options)
        finally:
            server.terminate()
            server.wait(10)
        print(json.dumps({**figures, **stored(rig, Path(folder))}))


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def set_environment(folder: Path, port: int) -> None:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        del os.environ[name]
    os.environ["DJANGO_SETTINGS_MODULE"] = "headrace.settings"
    os.environ["HEADRACE_DATA_DIR"] = str(folder)
    os.environ["HEADRACE_PORT"] = str(port)
    os.environ["HEADRACE_SECRET_KEY"] = "only-for-a-benchmark-" + "0123456789abcdefghijklmnopqrstuvwxyz" * 2
    os.environ["HEADRACE_LOG_LEVEL"] = "WARNING"
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{ROOT / 'platform'}"


def prepare() -> Any:
    """Database from zero, one run with a token."""
    import django

    django.setup()
    from django.core.management import call_command
    from django.db import connections

    from tests.platform_tests.telemetry_rig import new_rig

    call_command("migrate", verbosity=0)
    rig = new_rig()
    connections.close_all()
    return rig


def start_server(port: int) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "uvicorn", "headrace.asgi:application", "--host", "127.0.0.1", "--port", str(port)]
    return subprocess.Popen([*command, "--log-level", "warning", "--no-access-log"], cwd=ROOT)


def wait_until_live(port: int, server: subprocess.Popen[bytes]) -> None:
    for _ in range(300):
        if server.poll() is not None:
            raise SystemExit(f"the server ended with {server.returncode}")
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.1)
    raise SystemExit("the server did not come up in 30 s")


def measure(rig: Any, port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Posts for `seconds`, the first tenth of which is warm-up."""
    headers = {"Authorization": f"Bearer {rig.token}", "Content-Type": "application/json"}
    if not options.no_gzip:
        headers["Content-Encoding"] = "gzip"
    names = [f"group{i % 5}/metric_{i}" for i in range(options.names)]
    path = f"/api/v1/attempts/{rig.attempt.public_id}/events"
    seq, latencies, started, counted = 1, [], time.perf_counter(), 0.0
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        while (now := time.perf_counter()) - started < options.seconds * 1.1:
            body = batch(seq, options.events, names)
            reply = client.post(path, content=body if options.no_gzip else gzip.compress(body, 1), headers=headers)
            if reply.status_code != 200 or reply.json()["ingested_through"] != seq + options.events - 1:
                raise SystemExit(f"the server answered {reply.status_code}: {reply.text[:300]}")
            seq += options.events
            if now - started >= options.seconds * 0.1:
                counted = counted or now
                latencies.append(time.perf_counter() - now)
    elapsed = time.perf_counter() - counted
    points = len(latencies) * options.events * len(names)
    latencies.sort()
    return {
        "points_per_s": round(points / elapsed),
        "events_per_s": round(len(latencies) * options.events / elapsed),
        "batches": len(latencies),
        "points_per_batch": options.events * len(names),
        "post_ms_p50": round(1000 * latencies[len(latencies) // 2], 1),
        "post_ms_p95": round(1000 * latencies[int(len(latencies) * 0.95)], 1),
        "seconds": round(elapsed, 1),
        "gzip": not options.no_gzip,
        "database": "sqlite, WAL, synchronous FULL",
    }


def batch(first: int, events: int, names: list[str]) -> bytes:
    """Values that change with every event, so that nothing compresses away."""
    seqs = range(first, first + events)
    data = [{"values": {name: (seq * 7919 + place * 104729) % 99991 / 99991 for place, name in enumerate(names)}} for seq in seqs]
    document = {
        "fence": 1,
        "first_seq": first,
        "t": [1.7e9 + seq * 0.1 for seq in seqs],
        "step": list(seqs),
        "kind": ["metrics"] * events,
        "data": data,
    }
    return json.dumps(document, separators=(",", ":")).encode()


def stored(rig: Any, folder: Path) -> dict[str, Any]:
    """What the database holds afterwards: every point once, and how many bytes each costs."""
    from django.db.models import Sum

    from headrace.telemetry.models import Series

    points = Series.unscoped.aggregate(points=Sum("count"))["points"]
    size = sum(path.stat().st_size for path in folder.glob("headrace.sqlite3*"))
    return {"points_stored": points, "bytes_per_point": round(size / points, 1)}


if __name__ == "__main__":
    main()
