"""The demo run: prepared once, launched through the service the browser uses, watched from the database."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from headrace.supervisor.progress import Console, Reading, describe
from headrace.supervisor.up import Supervisor

if TYPE_CHECKING:
    from headrace.experiments.models import Run

DEMO_SLUG = "demo"
RUN_OVER = ("succeeded", "failed", "cancelled", "lost")


@dataclass(frozen=True)
class DemoOptions:
    """What `headrace demo` was asked for."""

    steps: int | None = None
    task: str | None = None
    preset: str | None = None
    sets: tuple[str, ...] = ()

    def assignments(self) -> list[str]:
        given = list(self.sets)
        if self.steps is not None:
            given.append(f"budget.steps={self.steps}")
        if self.task is not None:
            given.append(f"environment.dataset={self.task}")
        return given


def check_config(options: DemoOptions) -> dict[str, Any]:
    """The resolved config. Called before anything is started, so that a wrong option costs no waiting. Raises ConfigError."""
    from workers.contract import loading

    return loading.resolve(None, options.preset, options.assignments()).as_json()


def prepare_model(supervisor: Supervisor, config: dict[str, Any]) -> None:
    """The built-in model is unpacked once into DATA_DIR/models; any other is fetched by the run itself."""
    path = str(config.get("model", {}).get("path", ""))
    folder = supervisor.layout.models / path
    if "/" in path or (folder / "config.json").is_file():
        return
    supervisor.say("preparing the model (once)")
    argv = [sys.executable, "-m", "workers", "prepare-model", "--out", str(supervisor.layout.models)]
    supervisor.run_once("prepare-model", argv, timeout_s=900)


def sign_in_link(console: Console) -> str:
    """Makes team and project, and gives the one-time set-up link while there is no admin; else the login page."""
    from django.core.management import call_command

    out = StringIO()
    call_command("bootstrap", stdout=out)
    links = [word for word in out.getvalue().split() if word.startswith(("http://", "https://"))]
    return links[-1] if links else ""


def launch(config: dict[str, Any], name: str = "demo") -> Run:
    """Through the same services as the browser's form."""
    import uuid

    from headrace.experiments import services
    from headrace.experiments.models import Project
    from headrace.teams.models import Team

    team = Team.objects.get(slug=DEMO_SLUG)
    project = Project.objects.for_team(team).get(slug=DEMO_SLUG)
    stored = services.create_config(team, config)
    return services.start_run(
        team=team, user=None, config=stored, project=project, name=name, idempotency_key=f"demo-{uuid.uuid4()}", source="demo"
    )


def read(run_id: int) -> Reading:
    """One look at the run: its row and the last state its attempt reported."""
    from headrace.experiments.models import Attempt, Run
    from headrace.telemetry.models import LatestState, Series

    run = Run.unscoped.select_related("config").get(pk=run_id)
    attempt = Attempt.unscoped.filter(run=run).order_by("-number").first()
    latest = LatestState.unscoped.filter(attempt=attempt).first() if attempt else None
    state = _get(latest.state or {}, "data") or {} if latest else {}
    reward = Series.unscoped.filter(attempt=attempt, name="reward/mean").values_list("last_value", flat=True).first() if attempt else None
    return Reading(
        state=run.state,
        step=state.get("step"),
        steps=state.get("steps_total") or run.config.data.get("budget", {}).get("steps"),
        reward=reward,
        depth=_get(state, "buffer", "depth"),
        capacity=_get(state, "buffer", "capacity"),
        lag=_get(state, "lag", "mean"),
        sync_ms=_milliseconds(_get(state, "sync", "last_latency_s")),
        samples_per_s=_get(state, "flow", "train_samples_per_s"),
        phase=_phase(latest.phase or {}) if latest else None,
        cause=run.outcome_cause,
    )


def watch(supervisor: Supervisor, console: Console, run: Run) -> Reading:
    """The live line until the run is over. Raises Stopped on Ctrl-C."""
    shown = ""
    while True:
        supervisor.watch(1.0)
        reading = read(run.pk)
        now = f"{reading.state} {reading.step}" if reading.step else describe(reading)
        console.line(describe(reading), lasting=now != shown)
        shown = now
        if reading.state in RUN_OVER:
            return reading


def report(console: Console, reading: Reading) -> None:
    """The run's end, and on failure its first cause, its last log lines and the cure."""
    if reading.state == "succeeded":
        console.say(f"the run succeeded: {describe(reading)}")
        return
    cause = reading.cause or {}
    console.say(f"the run ended as {reading.state}: {cause.get('message') or 'no cause was reported'}")
    for line in list(cause.get("log_tail") or [])[-10:]:
        console.plain(f"    {line if isinstance(line, str) else line.get('message', line)}")
    if cause.get("cure"):
        console.plain(f"    what to do: {cause['cure']}")


def runs_table(limit: int = 20) -> Sequence[str]:
    """Lines for `headrace runs`: newest first."""
    from headrace.experiments.models import Run

    rows = Run.unscoped.filter(deleted_at__isnull=True).order_by("-created_at")[:limit]
    return [f"{r.public_id}  {r.state:<10}  {r.created_at:%Y-%m-%d %H:%M}  {r.name}" for r in rows]


def _get(table: dict[str, Any], *path: str) -> Any:
    value: Any = table
    for key in path:
        value = value.get(key) if isinstance(value, dict) else None
    return value


def _phase(event: dict[str, Any]) -> str | None:
    return _get(event, "data", "detail") or _get(event, "data", "name")


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1000
