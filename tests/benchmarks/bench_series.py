"""How long the run page's charts wait for their data: a run of four series with a million points each, through the real URL and ORM.

    python tests/benchmarks/bench_series.py [--points 1000000] [--series 4] [--times 60]

Writes the chunks as ingest does, then asks `series.json` for the whole run, for zoomed stretches and for the list of series. Prints one
JSON line: p50 and p95 in milliseconds of each. Start it when nothing else runs. The bar: p95 under 300 ms for opening.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "platform")]
A_BATCH = 100_000  # points a series and append: ingest's own code merges and seals them


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=1_000_000)
    parser.add_argument("--series", type=int, default=4)
    parser.add_argument("--times", type=int, default=60)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="headrace-bench-") as folder:
        prepare(Path(folder))
        client, address, names = fill(options.points, options.series)
        figures = measure(client, address, names, options)
    print(json.dumps({"points": options.points, "series": options.series, **figures}))


def prepare(folder: Path) -> None:
    for name in [name for name in os.environ if name.startswith("HEADRACE_")]:
        del os.environ[name]
    os.environ |= {"DJANGO_SETTINGS_MODULE": "headrace.settings", "HEADRACE_DATA_DIR": str(folder)}
    os.environ["HEADRACE_SECRET_KEY"] = secrets.token_urlsafe(64)
    os.environ["HEADRACE_LOG_LEVEL"] = "ERROR"
    import django
    from django.core.management import call_command

    django.setup()
    call_command("migrate", verbosity=0)


def fill(points: int, count: int) -> tuple[Any, str, list[str]]:
    """A run whose series hold `points` each. Returns a signed-in client, the run's address and the names."""
    from django.test import Client

    from headrace.telemetry import store
    from headrace.telemetry.columns import from_points
    from headrace.telemetry.derive import Derived
    from tests.platform_tests.telemetry_rig import T0, new_rig

    rig = new_rig("bench")
    names = [f"loss/series_{number}" for number in range(count)]
    random = np.random.default_rng(7)
    for start in range(0, points, A_BATCH):
        seq = np.arange(start, min(points, start + A_BATCH), dtype=np.int64) + 1
        rows = {name: from_points(seq, T0 + seq / 10, seq // 4, np.sin(seq / 5000) + random.normal(0, 0.1, len(seq))) for name in names}
        store.apply(rig.attempt, Derived(points=rows), int(seq[-1]), names_quota=None)
    client = Client(SERVER_NAME="localhost")
    client.force_login(rig.user)
    return client, f"/runs/{rig.run.public_id}/", names


def measure(client: Any, address: str, names: list[str], options: argparse.Namespace) -> dict[str, Any]:
    query = f"names={','.join(names)}"
    last = options.points // 4
    random = np.random.default_rng(11)

    def zoomed(share: float) -> str:
        low = random.integers(0, max(1, int(last * (1 - share))))
        return f"series.json?{query}&from={low}&to={low + int(last * share)}&buckets=1000"

    return {
        "open": timed(client, options.times, lambda: f"{address}series.json?{query}&buckets=1000"),
        "open_2000": timed(client, options.times, lambda: f"{address}series.json?{query}&buckets=2000"),
        "zoom_10_percent": timed(client, options.times, lambda: address + zoomed(0.1)),
        "zoom_1_percent": timed(client, options.times, lambda: address + zoomed(0.01)),
        "catalogue": timed(client, options.times, lambda: f"{address}catalogue.json"),
        "page": timed(client, options.times, lambda: address),
    }


def timed(client: Any, times: int, address: Any) -> dict[str, float]:
    """p50 and p95 in milliseconds of the whole request, JSON included."""
    taken = []
    for _ in range(times):
        wanted = address()
        began = time.perf_counter()
        reply = client.get(wanted)
        taken.append(1000 * (time.perf_counter() - began))
        assert reply.status_code == 200, (wanted, reply.status_code, reply.content[:300])
    return {"p50_ms": round(float(np.percentile(taken, 50)), 1), "p95_ms": round(float(np.percentile(taken, 95)), 1)}


if __name__ == "__main__":
    main()
