"""/healthz/live: the process answers. /healthz/ready: what it needs answers too. Both open, neither tells addresses or secrets."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable

import redis
from django.conf import settings
from django.contrib.auth.decorators import login_not_required
from django.db import connection
from django.db.migrations.executor import MigrationExecutor
from django.http import HttpRequest, JsonResponse
from django.views.decorators.http import require_safe

from headrace.dispatch.ray_jobs import RayJobs

KEPT_S = 3.0  # the checks run at most this often, however many ask: the page is open to everybody
LEAST_FREE_BYTES = 512 * 1024 * 1024

_lock = threading.Lock()
_kept: tuple[float, dict[str, str]] | None = None


@login_not_required
@require_safe
def live(request: HttpRequest) -> JsonResponse:
    """For the supervisor and load balancers: is this process there?"""
    return JsonResponse({"status": "ok"})


@login_not_required
@require_safe
def ready(request: HttpRequest) -> JsonResponse:
    """503 until everything a run needs answers. Each part says ok, or in a few words what is wrong."""
    parts = results()
    good = all(word == "ok" for word in parts.values())
    return JsonResponse({"status": "ok" if good else "not ready", "parts": parts}, status=200 if good else 503)


def results() -> dict[str, str]:
    """Every part's word, at most KEPT_S old."""
    global _kept
    with _lock:
        if _kept is None or time.monotonic() - _kept[0] > KEPT_S:
            _kept = (time.monotonic(), {name: _asked(check) for name, check in CHECKS.items()})
        return _kept[1]


def _asked(check: Callable[[], str]) -> str:
    try:
        return check()
    except Exception as error:  # a check that breaks is an answer: this part is not ready
        return f"not ready: {type(error).__name__}"


def _database() -> str:
    executor = MigrationExecutor(connection)
    return "waits for migrations" if executor.migration_plan(executor.loader.graph.leaf_nodes()) else "ok"


def _valkey() -> str:
    if not settings.VALKEY_URL:
        return "not configured: nothing is dispatched"
    with redis.Redis.from_url(settings.VALKEY_URL, socket_timeout=1, socket_connect_timeout=1) as client:
        client.ping()
    return "ok"


def _worker() -> str:
    if not settings.VALKEY_URL:
        return "not configured: nothing is dispatched"
    from headrace.celery import app

    replies = app.control.broadcast("ping", reply=True, timeout=1.0, limit=1)
    return "ok" if replies else "no worker answers"


def _ray() -> str:
    RayJobs.default().version()
    return "ok"


def _disk() -> str:
    free = shutil.disk_usage(settings.DATA_DIR).free
    return "ok" if free >= LEAST_FREE_BYTES else f"only {free // 2**20} MB are free"


CHECKS: dict[str, Callable[[], str]] = {"database": _database, "valkey": _valkey, "worker": _worker, "ray": _ray, "disk": _disk}
