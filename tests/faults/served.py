"""A web server of its own, a run in it, and who starts it again when it has died: what the tests of a dying server share."""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

import httpx

from tests.e2e.web_rig import WebServer

# A run of somebody's team, with attempt 1 and its token; and what the server does when it gives an attempt up and makes the next.
MAKE = """
import django, json, sys
django.setup()
from headrace.experiments import lifecycle, services
from headrace.experiments.models import Attempt, Project, Run
from headrace.experiments.tokens import issue_run_token
from headrace.teams.models import Team
from headrace.teams.models import Membership, Role, User
from headrace.teams.services import issue_api_token
from workers.contract import loading
if sys.argv[1] == "run":
    team = Team.objects.create(name="t", slug="t")
    user = User.objects.create_user("t@example.org")
    Membership.objects.create(team=team, user=user, role=Role.OWNER)
    project = Project.objects.create(team=team, name="p", slug="p")
    config = services.create_config(team, loading.resolve(json.loads(sys.argv[2])))
    run = services.start_run(team=team, user=user, config=config, project=project, name="r", idempotency_key="k")
    lifecycle.transition(run, "launching", cause="a test launches it", actor="test", attempt=run.attempts.get())
    attempt, token = run.attempts.get(), issue_api_token(user=user, team=team, name="t", scope="write")[1]
    print(json.dumps({"run": run.public_id, "attempt": attempt.public_id, "token": issue_run_token(attempt), "api": token}))
else:
    run = Run.unscoped.get(public_id=sys.argv[2])
    lifecycle.attempt_finished(run.attempts.latest("number"), "lost", cause={"message": "its job vanished", "cure": "resume"}, actor="test")
    run.refresh_from_db()
    attempt = services.resume_run(run, None)
    print(json.dumps({"attempt": attempt.public_id, "fence": attempt.fence, "token": issue_run_token(attempt)}))
"""


def make(server: WebServer, *arguments: str) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(server.ask(MAKE, *arguments).splitlines()[-1])
    return made


def driver_command(server: WebServer, facts: dict[str, Any], spec: Path, out: Path) -> list[str]:
    """A driver of attempt 1 that tells this server; its note lies beside `out`."""
    note = out.with_name("attempt.json")
    own = {"run": facts["run"], "attempt": facts["attempt"], "number": 1, "fence": 1, "server": server.url, "token": facts["token"]}
    note.write_text(json.dumps(own))
    return [sys.executable, "-m", "workers", "run", str(spec), "--out", str(out), "--attempt-file", str(note), "--quiet"]


def stored(url: str, run: str, attempt: int, token: str) -> list[dict[str, Any]]:
    """Every event that the server at `url` holds of an attempt, as its API gives them."""
    events: list[dict[str, Any]] = []
    while True:
        after = events[-1]["seq"] if events else 0
        address = f"{url}/api/v1/runs/{run}/events?attempt={attempt}&after={after}"
        reply = httpx.get(address, headers={"Authorization": f"Bearer {token}"}, timeout=30, trust_env=False)
        assert reply.status_code == 200, reply.text
        page = reply.json()["events"]
        if not page:
            return events
        events += page


class Keeper:
    """What `headrace up` does for its web server: starts it again whenever it has died. Counts the deaths."""

    def __init__(self, server: WebServer) -> None:
        self.server, self.deaths = server, 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, daemon=True)

    def __enter__(self) -> Keeper:
        self.server.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(60)

    def _keep(self) -> None:
        while not self._over.wait(0.05):
            if self.server.process is not None and self.server.process.poll() is not None:
                self.deaths += 1
                self.server.begin()  # it may be dead again before it has said that it lives
