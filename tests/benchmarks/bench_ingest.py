"""Metric points a second through the real server: uvicorn in its own process, HTTP, token, gzip; SQLite on disk (WAL, FULL) or PostgreSQL.

    python -m tests.benchmarks.bench_ingest [--database sqlite|postgres] [--seconds 10] [--names 25] [--events 100] [--no-gzip]
                                            [--mlflow PYTHON]

One driver posts batches as a run does: `events` metrics events of `names` values each, one batch after the other. Every tenth batch is
sent twice, as after a lost answer; at the end the database must hold every point exactly once. `--mlflow` names an interpreter that has
MLflow: its server (SQLite, one worker) then takes batches of 1,000 points on the same machine, and the ratio is printed. Prints one
JSON line. Start it when nothing else runs.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

from tests.benchmarks.server_rig import Served, free_port, served

EVERY = 10  # so many batches, one is sent twice


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--database", choices=["sqlite", "postgres"], default="sqlite")
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--names", type=int, default=25)
    parser.add_argument("--events", type=int, default=100)
    parser.add_argument("--no-gzip", action="store_true")
    parser.add_argument("--mlflow", help="an interpreter with MLflow")
    options = parser.parse_args()
    with served(options.database) as server:
        figures = measure(server.rig, server.port, options)
        figures |= stored(server, figures["points_sent"])
    if options.mlflow:
        figures["mlflow_points_per_s"] = mlflow(options.mlflow, options.seconds)
        figures["times_mlflow"] = round(figures["points_per_s"] / figures["mlflow_points_per_s"], 1)
    print(json.dumps({**figures, "database": options.database}))


def measure(rig: Any, port: int, options: argparse.Namespace) -> dict[str, Any]:
    """Posts for `seconds`, the first tenth of which is warm-up."""
    headers = {"Authorization": f"Bearer {rig.token}", "Content-Type": "application/json"}
    if not options.no_gzip:
        headers["Content-Encoding"] = "gzip"
    names = [f"group{i % 5}/metric_{i}" for i in range(options.names)]
    path = f"/api/v1/attempts/{rig.attempt.public_id}/events"
    seq, latencies, started, counted = 1, [], time.perf_counter(), 0.0
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30, trust_env=False) as client:
        while (now := time.perf_counter()) - started < options.seconds * 1.1 or not latencies:
            body = batch(seq, options.events, names)
            packed = body if options.no_gzip else gzip.compress(body, 1)
            reply = client.post(path, content=packed, headers=headers)
            if (seq // options.events) % EVERY == 0:
                reply = client.post(path, content=packed, headers=headers)
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
        "points_sent": (seq - 1) * len(names),
        "events_per_s": round(len(latencies) * options.events / elapsed),
        "batches": len(latencies),
        "points_per_batch": options.events * len(names),
        "post_ms_p50": round(1000 * latencies[len(latencies) // 2], 1),
        "post_ms_p95": round(1000 * latencies[int(len(latencies) * 0.95)], 1),
        "seconds": round(elapsed, 1),
        "gzip": not options.no_gzip,
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


def stored(server: Served, sent: int) -> dict[str, Any]:
    """What the database holds afterwards: every point once, in order, and how many bytes each costs."""
    from django.db import connection
    from django.db.models import Sum

    from headrace.telemetry.export import export
    from headrace.telemetry.models import Series

    points = Series.unscoped.aggregate(points=Sum("count"))["points"]
    name = Series.unscoped.order_by("name").values_list("name", flat=True)[0]
    rows = b"".join(export(server.rig.run, "series", "csv", [name])).decode().splitlines()[1:]
    seqs = [int(row.split(",")[2]) for row in rows]
    if points != sent or seqs != list(range(1, len(seqs) + 1)):
        raise SystemExit(f"points lost or doubled: {sent} sent, {points} stored, {len(seqs)} of one series")
    if server.database == "postgres":
        with connection.cursor() as cursor:
            cursor.execute("select pg_database_size(current_database())")
            size = cursor.fetchone()[0]
    else:
        size = sum(path.stat().st_size for path in server.folder.glob("headrace.sqlite3*"))
    return {"points_stored": points, "lost": 0, "doubled": 0, "bytes_per_point": round(size / points, 1)}


def mlflow(python: str, seconds: float) -> int:
    """Points a second of MLflow's own server and REST call, SQLite, one worker: batches of 1,000 points, the most that it takes."""
    with tempfile.TemporaryDirectory(prefix="mlflow-bench-") as folder:
        port = free_port()
        argv = [python, "-m", "mlflow", "server", "--backend-store-uri", f"sqlite:///{folder}/m.db", "--artifacts-destination", folder]
        env = {**os.environ, "PYTHONPATH": "", "MLFLOW_DISABLE_TELEMETRY": "true"}
        argv += ["--port", str(port), "--workers", "1"]
        with (Path(folder) / "log").open("wb") as log:
            process = subprocess.Popen(argv, cwd=folder, env=env, stdout=log, stderr=log, start_new_session=True)
        try:
            return _mlflow_points(f"http://127.0.0.1:{port}", seconds)
        finally:
            os.killpg(process.pid, signal.SIGTERM)
            process.wait(20)


def _mlflow_points(address: str, seconds: float) -> int:
    with httpx.Client(base_url=f"{address}/api/2.0/mlflow", timeout=60, trust_env=False) as client:
        for _ in range(240):
            try:
                if client.get("/experiments/get", params={"experiment_id": "0"}).status_code == 200:
                    break
            except httpx.TransportError:
                time.sleep(0.5)
        else:
            raise SystemExit("MLflow did not come up in 120 s")
        run = client.post("/runs/create", json={"experiment_id": "0"}).json()["run"]["info"]["run_id"]
        step, counted, points = 0, 0.0, 0
        began = time.perf_counter()
        while (now := time.perf_counter()) - began < seconds * 1.1:
            rows = [
                {
                    "key": f"metric_{place % 25}",
                    "value": (step * 40 + place) / 7,
                    "timestamp": 1_700_000_000_000 + step,
                    "step": step * 40 + place // 25,
                }
                for place in range(1000)
            ]
            answer = client.post("/runs/log-batch", json={"run_id": run, "metrics": rows})
            if answer.status_code != 200:
                raise SystemExit(f"MLflow answered {answer.status_code}: {answer.text[:300]}")
            step += 1
            if now - began >= seconds * 0.1:
                counted = counted or now
                points += 1000
        return round(points / (time.perf_counter() - counted))


if __name__ == "__main__":
    main()
