"""A double of Ray's Jobs API, queued runs, and processes that carry a run's id: what the dispatch tests start from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from django.db import connection
from django.utils import timezone

from headrace.dispatch import remains
from headrace.dispatch.ray_jobs import ABSENT
from headrace.experiments import services
from headrace.experiments.models import Attempt, Project, Run
from headrace.experiments.states import lifecycle_writes
from headrace.teams.models import Team
from workers.contract import loading


def new_run(team: Team) -> Run:
    project, _ = Project.unscoped.get_or_create(team=team, slug="p", defaults={"name": "P"})
    config = services.create_config(team, loading.resolve(None, None, ["budget.steps=2"]))
    return services.start_run(team=team, user=None, config=config, project=project, name="r", idempotency_key=uuid.uuid4().hex)


class RayDouble(BaseHTTPRequestHandler):
    """The Jobs API as far as the control plane speaks it, for answers that a real Ray gives only by accident."""

    told: dict[str, Any]

    def answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self) -> None:
        status = self.told["status"]
        self.answer(404 if status == ABSENT else 200, {"status": status, "logs": "last words", "message": ""})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        if "submission_id" in body:
            self.told["submitted"].append((body["submission_id"], body["entrypoint"]))
            self.told.get("meanwhile", lambda: None)()
            connection.close()
        elif self.path.endswith("/stop"):
            self.told["stopped"].append(self.path)
        self.answer(self.told["code"], {"error": self.told.get("error", "")})

    def log_message(self, *args: Any) -> None:
        """Tests stay quiet."""


@contextmanager
def serve_ray(told: dict[str, Any]) -> Iterator[str]:
    """The double's address, while it answers what `told` says."""
    with ThreadingHTTPServer(("127.0.0.1", 0), type("Double", (RayDouble,), {"told": told})) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join(10)


def age(run: Run, by: timedelta) -> None:
    then = timezone.now() - by
    with lifecycle_writes():
        Run.unscoped.filter(pk=run.pk).update(state_since=then)
        Attempt.unscoped.filter(run=run).update(state_since=then)


def process_of(run: str, attempt: str = "") -> subprocess.Popen[bytes]:
    env = {**os.environ, remains.RUN_VARIABLE: run, **({remains.ATTEMPT_VARIABLE: attempt} if attempt else {})}
    return subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"], env=env)
