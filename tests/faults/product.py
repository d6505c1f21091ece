"""The whole product as people meet it: `headrace up`, a token, the API. Keeps what its clients were told; kills what it is told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil

from headrace.dispatch import remains
from headrace.dispatch.folders import NOTE
from headrace.supervisor.layout import Layout, free_ports
from tests.e2e.conftest import wait_until
from tests.e2e.test_up import Up
from tests.e2e.web_rig import migrated_folder
from tests.faults.checker import check
from tests.faults.history import History, Life, lives_of
from tests.faults.real_runs import left_of, role_of
from tests.faults.served import stored
from workers.contract import loading

TOKEN = """
import django
django.setup()
from headrace.teams.models import Membership, Role, Team, User
from headrace.teams.services import issue_api_token
team = Team.objects.get(slug="demo")
user = User.objects.create_user("faults@example.org")
Membership.objects.create(team=team, user=user, role=Role.OWNER)
print(issue_api_token(user=user, team=team, name="faults", scope="write")[1])
"""
# How each part is known among the processes of one data folder.
PARTS = {
    "web": "uvicorn",
    "celery": "celery",
    "reconciler": "headrace.dispatch",
    "valkey": "valkey-server",
    "raylet": "/raylet/raylet",
    "gcs": "/gcs/gcs_server",
}


@dataclass
class Product:
    """One data folder, its server, and a client that remembers what it was told."""

    data: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    token: str = ""
    told: dict[str, dict[int, int]] = field(default_factory=dict)  # run -> attempt -> events that a viewer was shown
    stopped: set[str] = field(default_factory=set)  # runs that were asked to end early
    up: Up = field(init=False)

    def start(self) -> None:
        if not self.data.exists():
            migrated_folder(self.data)
        self.up = Up(self.data, self.port)
        self.up.link()
        if not self.token:
            self.token = self._python(TOKEN).split()[-1]

    @property
    def layout(self) -> Layout:
        return self.up.layout

    def _python(self, script: str) -> str:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("HEADRACE_", "DJANGO_"))}
        own = {
            "HEADRACE_DATA_DIR": str(self.data),
            "HEADRACE_SECRET_KEY_FILE": str(self.layout.secret_key),
            "HEADRACE_PORT": str(self.port),
        }
        done = subprocess.run(
            [sys.executable, "-c", script], env=kept | own | {"DJANGO_SETTINGS_MODULE": "headrace.settings"}, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    # --- as a client

    def call(self, method: str, route: str, **options: Any) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.token}"}
        return httpx.request(method, f"{self.layout.base_url}/api/v1{route}", headers=headers, timeout=10, trust_env=False, **options)

    def launch(self, config: dict[str, Any], name: str) -> str:
        """Asks until it is accepted, with one key: whatever died meanwhile, it is one run."""
        body = {"name": name, "config": config, "idempotency_key": name}
        reply = wait_until(lambda: self._accepted(body), 60, f"the run to be accepted\n{self.up.text}")
        return str(reply["id"])

    def _accepted(self, body: dict[str, Any]) -> dict[str, Any] | None:
        try:
            reply = self.call("POST", "/runs", json=body)
        except httpx.HTTPError:
            return None
        if reply.status_code >= 500:
            return None
        assert reply.status_code == 201, reply.text
        return dict(reply.json())

    def run(self, run: str) -> dict[str, Any] | None:
        """The run as the API shows it now; None while nobody answers."""
        try:
            reply = self.call("GET", f"/runs/{run}")
        except httpx.HTTPError:
            return None
        return dict(reply.json()) if reply.status_code == 200 else None

    def state(self, run: str) -> str:
        found = self.run(run)
        return str(found["state"]) if found else ""

    def step(self, run: str) -> int:
        """The last step that the server can show, 0 before the first; what it shows is kept as told."""
        try:
            reply = self.call("GET", f"/runs/{run}/events", params={"limit": 1})
            snapshot = self.call("GET", f"/runs/{run}/snapshot")
        except httpx.HTTPError:
            return 0
        if reply.status_code != 200 or snapshot.status_code != 200:
            return 0
        body = reply.json()
        if body["attempt"]:
            known = self.told.setdefault(run, {})
            known[body["attempt"]] = max(known.get(body["attempt"], 0), body["through_seq"])
        return int((snapshot.json()["state"] or {}).get("step") or 0)

    def do(self, run: str, what: str) -> None:
        """cancel, resume, pause ...: asked until the server has answered."""

        def asked() -> bool:
            try:
                reply = self.call("POST", f"/runs/{run}/{what}")
            except httpx.HTTPError:
                return False
            assert reply.status_code < 500 and reply.status_code in (200, 201, 202), reply.text
            return True

        wait_until(asked, 30, f"{what} to be taken")
        if what == "stop":
            self.stopped.add(run)

    def wait_for_step(self, run: str, step: int, seconds: float = 90) -> None:
        def there() -> bool:
            state = self.state(run)
            assert state not in ("failed", "lost", "cancelled"), f"{state}: {(self.run(run) or {}).get('attempts')}\n{self.up.text}"
            return self.step(run) >= step

        wait_until(there, seconds, f"step {step} of {run}\n{self.up.text}", every=0.3)

    # --- as the one who kills

    def part(self, name: str) -> psutil.Process | None:
        return self.up.child(PARTS[name])

    def kill(self, name: str) -> int:
        """kill -9 of one part. Returns the pid that is no more."""
        victim = wait_until(lambda: self.part(name), 30, f"{name} to be there")
        victim.kill()
        return int(victim.pid)

    def members(self, run: str) -> dict[str, psutil.Process]:
        """The run's own processes by role: driver, generator, trainer."""
        found: dict[str, psutil.Process] = {}
        for process in remains.processes(run):
            role = role_of(process).partition("-")[0]
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if role in ("generator", "trainer"):
                found[role] = process
            elif "workers" in line and not line[0].endswith("sh"):
                found["driver"] = process
        return found

    # --- in the end

    def history(self, run: str) -> History:
        """What the run's drivers wrote, what the server holds of it, what was shown, how it ended."""
        found = self.run(run)
        assert found is not None
        lives: list[Life] = []
        for attempt in sorted(found["attempts"], key=lambda row: row["number"]):
            number, folder = attempt["number"], self.layout.runs / run / f"attempt-{attempt['number']}"
            for life in lives_of(folder, number):
                life.stored = stored(self.layout.base_url, run, number, self.token)
                life.acked = self.told.get(run, {}).get(number, 0)
                life.fence = json.loads((folder / NOTE).read_text())["fence"]
                life.origin = next((one.spool for one in reversed(lives) if any(Path(one.spool).glob("checkpoints/step-*"))), "")
                lives.append(life)
        config = loading.resolve(found["config"])
        cause = next((str(row["exit_cause"]) for row in reversed(found["attempts"]) if row.get("exit_cause")), "")
        stopped = run in self.stopped
        return History(config, lives, state=found["state"], cause=cause, stopped_early=stopped, left=left_of(run))

    def findings(self, run: str) -> list[str]:
        """What the checker says of an ended run, once the server holds every event that the run's drivers wrote."""

        def told_to_its_end() -> bool:
            return all(len(life.stored or []) >= life.events[-1]["seq"] for life in self.history(run).lives)

        wait_until(told_to_its_end, 60, f"the whole spool of {run} to be stored", every=0.5)
        return [str(broken) for broken in check(self.history(run))]
