"""The local Ray head: its command line and environment. Launched as a program; this package never imports ray.

Ray binds its own ports to loopback alone only if the node's address is exactly 127.0.0.1, and `ray start` replaces that
address by the machine's outer one unless RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER is off (its name is older than its meaning:
"this node joins no other"). The autoscaler's monitor is left out: a single machine has nothing to scale.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import httpx

from headrace.supervisor.layout import LOOPBACK, Layout

OBJECT_STORE_BYTES = 512 * 1024 * 1024
SECRET_PREFIXES = ("HEADRACE_", "RAY_", "CELERY_", "DJANGO_")


def environment(layout: Layout, base: Mapping[str, str], mark: str) -> dict[str, str]:
    """What Ray and every job inherit: nothing of the control plane's secrets (signing key, database, broker)."""
    env = {name: value for name, value in base.items() if not name.startswith(SECRET_PREFIXES)}
    return env | {
        mark: layout.mark,
        "HEADRACE_DATA_DIR": str(layout.data),
        "HEADRACE_MODELS": base.get("HEADRACE_MODELS", str(layout.models)),
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(layout.ray_token),
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_worker_niceness": "10",  # engine processes give way to the web server
        # Ray's Prometheus pages ask nobody for a token. The head's own has no switch: a port that cannot be bound keeps it shut.
        "RAY_enable_metrics_collection": "0",
        "DASHBOARD_METRIC_PORT": "-1",
        "PYTHONUNBUFFERED": "1",
    }


def program() -> list[str]:
    """The `ray` of this environment; the module form where scripts were not installed."""
    script = Path(sys.executable).with_name("ray")
    return [sys.executable, str(script)] if script.exists() else [sys.executable, "-m", "ray.scripts.scripts"]


def command(layout: Layout, cpus: int | None = None) -> list[str]:
    """`ray start --head --block`: in the foreground, so that its end is seen and restarted."""
    cpus = cpus or max(4, os.cpu_count() or 1)
    ports = layout.ports
    return [
        *program(),
        "start",
        "--head",
        "--block",
        f"--node-ip-address={LOOPBACK}",
        f"--port={ports['ray_gcs']}",
        f"--ray-client-server-port={ports['ray_client']}",
        "--include-dashboard=true",
        f"--dashboard-host={LOOPBACK}",
        f"--dashboard-port={ports['ray_dashboard']}",
        f"--dashboard-agent-listen-port={ports['ray_agent']}",
        f"--num-cpus={cpus}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={layout.ray_dir}",
        "--disable-usage-stats",
        "--no-monitor",
        "--log-color=false",
    ]


def is_ready(layout: Layout) -> bool:
    """Whether the Jobs API answers a caller with the token, agent included (a job is refused until then)."""
    headers = {"Authorization": f"Bearer {layout.ray_token.read_text().strip()}"}
    try:
        with httpx.Client(trust_env=False, timeout=3, headers=headers) as client:
            if client.get(f"{layout.ray_url}/api/jobs/").status_code != 200:
                return False
            agent = f"http://{LOOPBACK}:{layout.ports['ray_agent']}/api/healthz"
            return client.get(agent).status_code < 500
    except httpx.HTTPError:
        return False
