"""A real attempt, steered by the replies of a server: paused, kept alive, saved, given more steps, and let go on."""

from __future__ import annotations

import gzip
import json
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.workers.test_run import SHAPE, command, events
from tests.workers.tiny_model import make_tiny_model


class Server(ThreadingHTTPServer):
    """Takes every batch, and answers with what the states that it has seen so far call for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.through = 0
        self.states: list[dict[str, Any]] = []
        self.kinds: set[str] = set()
        self.saved_while_paused = False

    def take(self, batch: dict[str, Any]) -> None:
        for kind, data in zip(batch["kind"], batch["data"], strict=True):
            self.kinds.add(kind)
            if kind == "state":
                self.states.append(data)
            if kind == "checkpoint" and self.states[-1]["status"] == "paused":
                self.saved_while_paused = True
        self.through = batch["first_seq"] + len(batch["t"]) - 1

    def control(self) -> dict[str, Any]:
        held = sum(state["status"] == "paused" for state in self.states)
        if held >= 4 and self.saved_while_paused:
            return {"pause": False, "steps": 7}
        if held:
            return {"pause": True, "checkpoint_now": 1, "steps": 7}
        return {"pause": bool(self.states and self.states[-1]["step"] >= 1)}


class Handler(BaseHTTPRequestHandler):
    server: Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.take(json.loads(gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body))
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        body = json.dumps({"ingested_through": self.server.through, "control": self.server.control()}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Nothing is printed."""


@pytest.fixture
def server() -> Iterator[Server]:
    serving = Server()
    thread = threading.Thread(target=serving.serve_forever, daemon=True)
    thread.start()
    yield serving
    serving.shutdown()
    serving.server_close()


def test_a_server_pauses_saves_extends_and_lets_go_on(server: Server, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    spec, attempt, out = tmp_path / "spec.json", tmp_path / "attempt.json", tmp_path / "out"
    shape = {**SHAPE, "model": {"path": str(model), "dtype": "float32"}, "budget": {"steps": 60}, "checkpoint": {"every_steps": 0}}
    spec.write_text(json.dumps({**shape, "orchestration": {"kind": "asyncio"}}))
    address = f"http://127.0.0.1:{server.server_port}"
    attempt.write_text(json.dumps({"run": "r1", "attempt": "a1", "number": 1, "fence": 1, "server": address, "token": "t"}))
    done = subprocess.run(
        command("run", spec, "--attempt-file", attempt, "--out", out, "--quiet"), capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads((out / "summary.json").read_text())
    states = events(out, "state")
    paused = [state for state in states if state["status"] == "paused"]
    assert len({state["step"] for state in paused}) == 1 and paused[-1]["steps_total"] == max(7, paused[0]["step"])
    assert server.saved_while_paused
    assert summary["outcome"] == "succeeded" and summary["steps"] == max(7, paused[0]["step"])
    assert summary["time_ledger"]["trainer"]["paused"] > 2 and summary["time_ledger"]["generator/0"]["paused"] > 2
    for causes in summary["time_ledger"].values():
        assert sum(causes.values()) == pytest.approx(summary["wall_s"], rel=0.01)
    assert json.loads((out / "config.json").read_text())["budget"]["steps"] == 60
    assert any("the budget is 7 steps now" in line["message"] for line in events(out, "log"))
    assert server.kinds >= {"started", "state", "finished"}
