"""Ray's Jobs API over HTTP, with the cluster's token. The control plane speaks to Ray through this file and nothing else."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from django.conf import settings

from workers.contract.errors import EnvironmentMissing

TERMINAL = frozenset({"SUCCEEDED", "FAILED", "STOPPED"})
ABSENT = "ABSENT"
LOG_LINES = 60


class RayUnreachable(EnvironmentMissing):
    """No answer, or one that says nothing about the job. The job's state is unknown: it is never taken for lost."""


class RayRefused(EnvironmentMissing):
    """Ray answered, and will not take the job. Asking again gives the same answer."""


@dataclass(frozen=True)
class RayJobs:
    """A cluster's Jobs API. Made anew for each use: token files may change between two starts of the cluster."""

    address: str
    token_file: str
    timeout_s: float = 15.0

    @classmethod
    def default(cls) -> RayJobs:
        return cls(settings.RAY_ADDRESS, settings.RAY_TOKEN_FILE)

    def submit(self, submission_id: str, entrypoint: str, env_vars: dict[str, str]) -> bool:
        """Submits once. True: newly accepted; False: this id was accepted before, which is as good."""
        body = {
            "submission_id": submission_id,
            "entrypoint": entrypoint,
            "runtime_env": {"env_vars": env_vars},
            "entrypoint_num_cpus": 0,
            "metadata": {"job_name": submission_id},
        }
        reply = self._call("POST", "/api/jobs/", json=body)
        if reply.status_code == 200:
            return True
        if "already exists" in reply.text:
            return False
        if reply.status_code == 400:
            raise RayRefused(
                f"Ray refused the job: {_last_line(reply.text)}",
                field="submission",
                value=submission_id,
                cure="mend what Ray names, then resume the run or start a new one",
            )
        raise RayUnreachable(
            f"Ray could not take the job now: {_last_line(reply.text)}",
            field="HEADRACE_RAY_ADDRESS",
            value=self.address,
            cure="it is tried again by itself; mend what Ray names if it lasts",
            retryable=True,
        )

    def status(self, submission_id: str) -> str:
        """PENDING, RUNNING, SUCCEEDED, FAILED, STOPPED, or ABSENT where Ray knows no such job. Raises RayUnreachable."""
        reply = self._call("GET", f"/api/jobs/{submission_id}")
        if reply.status_code == 404:
            return ABSENT
        if reply.status_code != 200:
            raise RayUnreachable(f"Ray answered {reply.status_code} for a job's state", retryable=True)
        return str(_json(reply).get("status", "UNKNOWN"))

    def message(self, submission_id: str) -> str:
        reply = self._call("GET", f"/api/jobs/{submission_id}")
        return str(_json(reply).get("message", "")) if reply.status_code == 200 else ""

    def stop(self, submission_id: str) -> bool:
        """SIGTERM to the driver, SIGKILL three seconds later. False: no such job."""
        reply = self._call("POST", f"/api/jobs/{submission_id}/stop")
        if reply.status_code in (200, 404):
            return reply.status_code == 200
        raise RayUnreachable(f"Ray answered {reply.status_code} to a stop", retryable=True)

    def last_lines(self, submission_id: str, count: int = LOG_LINES) -> list[str]:
        """The end of the job's log; empty where Ray has none."""
        reply = self._call("GET", f"/api/jobs/{submission_id}/logs")
        return str(_json(reply).get("logs", "")).splitlines()[-count:] if reply.status_code == 200 else []

    def version(self) -> str:
        """Ray's version. Raises RayUnreachable, also for a token that the cluster does not take."""
        reply = self._call("GET", "/api/version")
        if reply.status_code != 200:
            raise RayUnreachable(f"Ray answered {reply.status_code}", retryable=True)
        return str(_json(reply).get("ray_version", ""))

    def resources(self) -> dict[str, float]:
        """What the cluster's living nodes have: {cpus, gpus, memory_bytes}. Raises RayUnreachable."""
        reply = self._call("GET", "/nodes?view=summary")
        if reply.status_code != 200:
            raise RayUnreachable(f"Ray answered {reply.status_code} for its nodes", retryable=True)
        data = _json(reply).get("data")
        nodes = data.get("summary") if isinstance(data, dict) else None
        if not isinstance(nodes, list):
            raise RayUnreachable("Ray's answer names no nodes", retryable=True)
        totals = [node["raylet"].get("resourcesTotal") for node in nodes if _is_alive(node)]
        found = dict.fromkeys(_RESOURCES.values(), 0.0)
        for total in totals:
            for name, key in _RESOURCES.items():
                value = total.get(name) if isinstance(total, dict) else None
                found[key] += float(value) if isinstance(value, int | float) else 0.0
        return found

    def _call(self, method: str, path: str, json: dict[str, Any] | None = None) -> httpx.Response:
        try:
            # Proxies from the environment are left out: the token must not pass through them.
            with httpx.Client(base_url=self.address, headers=self._headers(), timeout=self.timeout_s, trust_env=False) as client:
                reply = client.request(method, path, json=json)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise RayUnreachable(
                f"no answer from Ray ({type(error).__name__})", field="HEADRACE_RAY_ADDRESS", value=self.address, retryable=True
            ) from error
        if reply.status_code in (401, 403):
            raise RayUnreachable(
                "Ray does not accept the token",
                field="HEADRACE_RAY_TOKEN_FILE",
                value=self.token_file,
                cure="give this cluster's token file",
            )
        return reply

    def _headers(self) -> dict[str, str]:
        if not self.token_file:
            return {}
        try:
            return {"Authorization": f"Bearer {Path(self.token_file).read_text().strip()}"}
        except OSError as error:
            raise RayUnreachable(
                f"the token file cannot be read ({error.strerror})", field="HEADRACE_RAY_TOKEN_FILE", value=self.token_file, retryable=True
            ) from error


def _json(reply: httpx.Response) -> dict[str, Any]:
    try:
        found = reply.json()
    except ValueError as error:
        raise RayUnreachable("Ray's answer is not JSON", retryable=True) from error
    return found if isinstance(found, dict) else {}


_RESOURCES = {"CPU": "cpus", "GPU": "gpus", "memory": "memory_bytes"}


def _is_alive(node: Any) -> bool:
    raylet = node.get("raylet") if isinstance(node, dict) else None
    return isinstance(raylet, dict) and raylet.get("state") == "ALIVE"


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip(" .")]
    return lines[-1][:300] if lines else "no reason given"
