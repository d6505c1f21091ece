"""A web server of its own in a child process, and a browser that fails on every breach of the content security policy."""

from __future__ import annotations

import functools
import json
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from headrace.supervisor.layout import free_ports

ROOT = Path(__file__).resolve().parents[2]
DATABASE = "headrace.sqlite3"
PASSWORD = "a good long password 7"
WATCH = (
    "window.breaches = []; document.addEventListener('securitypolicyviolation', "
    "e => window.breaches.push(`${e.violatedDirective} ${e.blockedURI} ${e.sourceFile}:${e.lineNumber}`));"
)
TOKEN_SCRIPT = """
import sys, django
django.setup()
from headrace.experiments.models import Attempt
from headrace.experiments.tokens import issue_run_token
attempt = Attempt.unscoped.filter(run__public_id=sys.argv[1]).order_by("-number").first()
print(attempt.public_id, issue_run_token(attempt))
"""


# Starting Django takes over two seconds: one process answers whatever is asked of a server.
ASKED = """
import contextlib, io, json, sys, traceback
import django
django.setup()
from django.db import connections
answers = sys.stdout
for line in sys.stdin:
    code, sys.argv[1:] = json.loads(line)
    said, wrong = io.StringIO(), ""
    try:
        with contextlib.redirect_stdout(said):
            exec(compile(code, "<asked>", "exec"), {"__name__": "__asked__"})
    except BaseException:
        wrong = traceback.format_exc()
    connections.close_all()
    print(json.dumps([said.getvalue(), wrong]), file=answers, flush=True)
"""


def chromium() -> str:
    """The browser: HEADRACE_TEST_CHROMIUM or one on PATH. None found: the tests fail with the cure."""
    found = os.environ.get("HEADRACE_TEST_CHROMIUM") or next(
        filter(None, map(shutil.which, ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"))), None
    )
    if found is None:
        raise RuntimeError("no Chromium on PATH -> install one (Debian: apt install chromium) or set HEADRACE_TEST_CHROMIUM to its path")
    return found


@functools.cache
def migrated() -> bytes:
    """A database file with every table, made once a process: the migrations take five seconds."""
    with tempfile.TemporaryDirectory(prefix="hr-migrated-") as folder:
        WebServer(Path(folder)).manage("migrate", "--verbosity", "0")
        return (Path(folder) / DATABASE).read_bytes()


def migrated_folder(data: Path) -> Path:
    """`data`, as a data folder whose tables are there. The migrations of a first start are looked at in test_up.py."""
    data.mkdir(mode=0o700)
    (data / DATABASE).write_bytes(migrated())
    return data


@dataclass
class WebServer:
    """uvicorn on a free port with its own data folder; it can be stopped and started again on the same port."""

    data: Path
    port: int = field(default_factory=lambda: free_ports(1)[0])
    process: subprocess.Popen[bytes] | None = None
    asked: subprocess.Popen[str] | None = None

    def __post_init__(self) -> None:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE_")}
        self.env = kept | {
            "HEADRACE_DATA_DIR": str(self.data),
            "HEADRACE_SECRET_KEY": secrets.token_urlsafe(64),
            "HEADRACE_PORT": str(self.port),
            "HEADRACE_BASE_URL": self.url,
            "HEADRACE_LOG_LEVEL": "WARNING",
            "DJANGO_SETTINGS_MODULE": "headrace.settings",
            "PYTHONPATH": f"{ROOT}:{ROOT / 'platform'}",
        }

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def manage(self, *arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, "manage.py", *arguments], cwd=ROOT, env=self.env, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout

    def migrate(self) -> None:
        """Called once, before `start`."""
        if "HEADRACE_DATABASE_URL" in self.env:
            self.manage("migrate", "--verbosity", "0")
        else:
            (self.data / DATABASE).write_bytes(migrated())

    def run_token(self, run: str) -> tuple[str, str]:
        """The newest attempt's public id and a token for it."""
        attempt, token = self.ask(TOKEN_SCRIPT, run).split()
        return attempt, token

    def ask(self, code: str, *arguments: str) -> str:
        """What `code` prints where Django is set up as in this server; `arguments` are its sys.argv[1:]. All code runs in one process."""
        if self.asked is None:
            command = [sys.executable, "-c", ASKED]
            self.asked = subprocess.Popen(command, cwd=ROOT, env=self.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        assert self.asked.stdin is not None and self.asked.stdout is not None
        print(json.dumps([code, arguments]), file=self.asked.stdin, flush=True)
        said, wrong = json.loads(self.asked.stdout.readline())
        assert not wrong, wrong
        return str(said)

    def bootstrap(self) -> str:
        """The one-time link of the first administrator."""
        link = re.search(r"http\S+/setup/\S+", self.ask("from django.core.management import call_command; call_command('bootstrap')"))
        assert link, "bootstrap prints the set-up link"
        return link.group(0)

    def begin(self) -> None:
        """Starts it and waits for nothing."""
        command = [sys.executable, "-m", "uvicorn", "headrace.asgi:application", "--port", str(self.port), "--log-level", "warning"]
        with (self.data / "web.log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, env=self.env, stdout=log, stderr=log)

    def start(self) -> None:
        """Starts it, and returns when it answers."""
        self.begin()
        assert self.process is not None
        deadline = time.monotonic() + 180
        while time.monotonic() < deadline:
            assert self.process.poll() is None, (self.data / "web.log").read_text()[-2000:]
            try:
                if httpx.get(f"{self.url}/healthz/live", timeout=1).status_code == 200:
                    return
            except httpx.HTTPError:
                time.sleep(0.1)
        raise AssertionError("the web server did not answer within 180 s")

    def close(self) -> None:
        """Called at the end."""
        self.stop()
        if self.asked is not None:
            self.asked.communicate()  # its input ends, and so does it
            self.asked = None

    def stop(self) -> None:
        """The web server alone, as a crash ends it."""
        if self.process is not None:
            self.process.send_signal(signal.SIGKILL)
            self.process.wait(timeout=60)
            self.process = None


@dataclass
class Driver:
    """Posts events as a run's driver does. Without an attempt and its token it asks for those of the run's newest attempt."""

    server: WebServer
    run: str
    attempt: str = ""
    token: str = ""
    seq: int = 1
    fence: int = 1

    def __post_init__(self) -> None:
        if not self.token:
            self.attempt, self.token = self.server.run_token(self.run)
        self.began = time.time()

    def post(self, events: list[tuple[str, dict[str, Any]]], step: int, t: float | None = None) -> None:
        """Sends events of one instant; `t` is Unix seconds, now where it is not given."""
        now = time.time() if t is None else t
        body = {
            "fence": self.fence,
            "first_seq": self.seq,
            "t": [now] * len(events),
            "step": [step] * len(events),
            "kind": [kind for kind, _ in events],
            "data": [data for _, data in events],
        }
        address = f"{self.server.url}/api/v1/attempts/{self.attempt}/events"
        headers = {"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"}
        reply = httpx.post(address, content=json.dumps(body), headers=headers, timeout=60)
        assert reply.status_code == 200, reply.text
        self.seq += len(events)

    def started(self, resumed_from: dict[str, int] | None = None, t: float | None = None) -> None:
        """The first events of an attempt."""
        phase = {"name": "loading model", "detail": "random weights", "done": 0.5}
        data = {"config_digest": "d", "provenance": {"packages": {"torch": "2.13.0"}}, "resumed_from": resumed_from, "lanes": ["trainer"]}
        self.post([("started", data), ("phase", phase)], 0, t)

    def step(self, step: int, *, reward: float, completion: str = "7", depth: int = 5, throttle: str | None = None) -> None:
        """Everything a trained step sends."""
        wall = time.time() - self.began
        trained = 64 * step
        state = {
            "status": "running",
            "step": step,
            "version": step,
            "steps_total": 40,
            "flow": {
                "running": 48,
                "waiting": 2,
                "slots": 64,
                "in_flight": 50,
                "generate_tokens_per_s": 400.0,
                "generate_samples_per_s": 9.0,
            }
            | {"train_samples_per_s": 8.0, "versions": {"generator/0": step}, "throttle": throttle, "dispatch_rate": 8.0},
            "buffer": {"depth": depth, "capacity": 16, "unit": "group"},
            "samples": {
                "dispatched": trained + 8 * depth + 58,
                "trained": trained,
                "buffered": 8 * depth,
                "in_flight": 50,
                "dropped": {"stale": 8},
                "lost": 0,
            },
            "time": {
                "wall_s": wall,
                "lanes": {"generator/0": {"generate": wall}, "trainer": {"train": wall / 2, "idle": wall / 2}},
                "overlapped_s": {},
            },
            "lag": {"mean": 1.2, "max": 2},
            "sync": {"count": step, "last_latency_s": 0.03, "last_pause_s": 0.002},
        }
        values = {"reward/mean": reward, "buffer/depth": float(depth), "sync/latency_s": 0.03, "sync/pause_s": 0.002, "loss/grad_norm": 0.5}
        sample = {"group": f"g{step}", "prompt_id": "p", "index": 0, "prompt": "3 + 4 =", "completion": completion, "answer_expected": "7"}
        sample |= {
            "answer_given": completion,
            "reward": 1.0,
            "advantage": 0.5,
            "outcome": "trained",
            "version_min": step - 1,
            "version_max": step,
        }
        sample |= {"version_trained": step, "finish_reason": "stop", "drop_reason": None}
        half = len(completion) // 2
        parts = [completion[:half], completion[half:]]
        sample["tokens"] = {"ids": [1, 2], "text": parts, "logprobs": [-0.1, -0.2], "versions": [step - 1, step], "trainer_logprobs": None}
        self.post(
            [
                ("metrics", {"values": values}),
                ("lag", {"counts": {"0": 60, "1": 40}}),
                (
                    "sync",
                    {
                        "version": step,
                        "bytes": 4_900_000,
                        "digest": "d",
                        "phases": {},
                        "pause_s": {"generator/0": 0.002},
                        "latency_s": 0.03,
                    },
                ),
                ("sample", sample),
                ("log", {"level": "info", "message": f"step {step} done", "source": "driver"}),
                ("state", state),
            ],
            step,
        )

    def metrics(self, step: int, t: float | None = None, **groups: dict[str, float | str]) -> None:
        """metrics(3, loss={"entropy": 0.4}): values as `loss/entropy`."""
        values = {f"{group}/{name}": value for group, found in groups.items() for name, value in found.items()}
        self.post([("metrics", {"values": values})], step, t)

    def spans(self, step: int, *rows: tuple[str, str, float, float], t: float | None = None) -> None:
        """What lanes did: (lane, cause, began, ended), Unix seconds."""
        self.post([("spans", {"spans": [list(row) for row in rows]})], step, t)

    def failed(self, step: int) -> None:
        cause = {"type": "NonFinite", "message": "the loss was not finite", "field": "optimizer.learning_rate", "value": "0.5"}
        cause |= {"cure": "lower optimizer.learning_rate", "retryable": False}
        self.post([("finished", {"outcome": "failed", "cause": cause, "log_tail": ["step 3: loss nan"], "summary": {}})], step)
