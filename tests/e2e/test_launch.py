"""Launching, watching and stopping jobs on a real Ray head."""

from __future__ import annotations

import json
import sys
import time
import uuid
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
from django.utils import timezone

from headrace.dispatch import launcher, remains, stopping
from headrace.dispatch.ray_jobs import ABSENT, RayJobs, RayUnreachable
from headrace.dispatch.reconciler import CLAIM_STALE_AFTER, SILENT_AFTER, Reconciler
from headrace.dispatch.tasks import launch
from headrace.experiments import lifecycle, services
from headrace.experiments.models import Attempt, Project, Run
from headrace.experiments.states import AttemptState, RunState
from headrace.supervisor.layout import Layout
from headrace.teams.models import Team
from tests.e2e.conftest import wait_until
from workers.contract import loading

pytestmark = [pytest.mark.e2e, pytest.mark.django_db(transaction=True)]

SLEEPER = "import time; print('awake', flush=True); time.sleep(300)"


@pytest.fixture
def run(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A queued run whose launch message was lost: nothing but the reconciler knows of it."""
    settings.RUNS_DIR = tmp_path / "runs"
    monkeypatch.setattr(services, "wake_launcher", lambda attempt: False)
    team = Team.objects.create(name="Launch", slug=f"launch-{uuid.uuid4().hex[:8]}")
    project = Project.objects.create(team=team, name="P", slug="p")
    config = services.create_config(team, loading.resolve(None, None, ["budget.steps=2"]))
    return services.start_run(team=team, user=None, config=config, project=project, name="a run", idempotency_key=uuid.uuid4().hex)


@pytest.fixture
def sleeper(monkeypatch: pytest.MonkeyPatch) -> None:
    """The job sleeps instead of training: these tests are about jobs, and two cores are few."""
    monkeypatch.setattr(launcher, "entrypoint", lambda attempt, folder: f'{sys.executable} -c "{SLEEPER}"')


def jobs_named(layout: Layout, submission_id: str) -> list[dict]:
    headers = {"Authorization": f"Bearer {layout.ray_token.read_text()}"}
    with httpx.Client(trust_env=False, timeout=10, headers=headers) as client:
        return [job for job in client.get(f"{layout.ray_url}/api/jobs/").json() if job["submission_id"] == submission_id]


def age(run: Run, by: timedelta) -> None:
    """Makes the run's and attempt's last word `by` older."""
    from headrace.experiments.states import lifecycle_writes

    with lifecycle_writes():
        Run.unscoped.filter(pk=run.pk).update(state_since=timezone.now() - by)
        Attempt.unscoped.filter(run=run).update(state_since=timezone.now() - by, heartbeat_at=timezone.now() - by)


def test_two_messages_launch_one_job(on_ray: Layout, run: Run, sleeper: None) -> None:
    attempt = run.attempts.get()
    launch(attempt.public_id)
    launch(attempt.public_id)
    assert launcher.launch_attempt(attempt.public_id, repeat=True), "a repeat that Ray refuses counts as success"
    run.refresh_from_db()
    attempt.refresh_from_db()
    assert run.state == RunState.LAUNCHING
    assert attempt.submission_id == f"run-{run.public_id}-1"
    found = jobs_named(on_ray, attempt.submission_id)
    assert len(found) == 1
    note = Path(attempt.out_dir) / "attempt.json"
    assert note.stat().st_mode & 0o777 == 0o600
    token = json.loads(note.read_text())["token"]
    assert services.verify_run_token(attempt.public_id, token) == attempt, "the repeat kept the token that the driver holds"
    assert token not in json.dumps(found), "the token is in neither entrypoint nor runtime_env"
    wait_until(lambda: remains.processes(run.public_id), 20, "the job's processes")
    assert not any(token in " ".join(p.cmdline()) or token in str(p.environ()) for p in remains.processes(run.public_id))
    assert not stopping.stop_everything(run.public_id)


def test_a_launcher_that_died_after_ray_took_the_job(on_ray: Layout, run: Run, sleeper: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class Killed(BaseException):
        """As SIGKILL: nothing after it runs."""

    def killed(*args: object) -> None:
        raise Killed

    attempt = run.attempts.get()
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "attempt_submitted", killed)
        with pytest.raises(Killed):
            launcher.launch_attempt(attempt.public_id)
    age(run, CLAIM_STALE_AFTER * 2)
    reconciler = Reconciler()
    assert reconciler.lease.acquire()
    reconciler.once()
    attempt.refresh_from_db()
    assert attempt.state == AttemptState.SUBMITTED
    assert len(jobs_named(on_ray, attempt.submission_id)) == 1, "Ray was asked twice and took it once"
    assert not stopping.stop_everything(run.public_id)


def test_the_reconciler_launches_what_a_lost_message_left(on_ray: Layout, run: Run, sleeper: None) -> None:
    reconciler = Reconciler()
    assert reconciler.lease.acquire()
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.QUEUED, "a young run is left to its message"
    age(run, timedelta(seconds=6))
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.LAUNCHING
    assert len(jobs_named(on_ray, run.attempts.get().submission_id)) == 1
    stopping.stop_everything(run.public_id)


def test_cancel_ends_a_driver_that_does_not_comply(on_ray: Layout, run: Run, sleeper: None) -> None:
    launch(run.attempts.get().public_id)
    wait_until(lambda: remains.processes(run.public_id), 20, "the job's processes")
    segment = Path(f"/dev/shm/hr-{run.public_id}-weights")
    segment.write_bytes(b"x" * 64)
    assert services.cancel_run(run, None)
    reconciler = Reconciler()
    assert reconciler.lease.acquire()
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.STOPPING, "it has eight seconds to comply"
    age(run, timedelta(seconds=9))
    begun = time.monotonic()
    reconciler.once()
    assert time.monotonic() - begun < 30, "asked to go, killed, settled; nothing else is waited for"
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED
    assert not segment.exists()
    wait_until(lambda: remains.gone(run.public_id), 5, "nothing left of the run")


def test_a_dead_job_is_noticed_with_its_last_lines(on_ray: Layout, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launcher, "entrypoint", lambda attempt, folder: "echo last words; exit 7")
    launch(run.attempts.get().public_id)
    attempt = run.attempts.get()
    wait_until(lambda: RayJobs.default().status(attempt.submission_id) == "FAILED", 30, "the job's end")
    reconciler = Reconciler()
    assert reconciler.lease.acquire()
    age(run, SILENT_AFTER * 2)
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.LAUNCHING, "silence does not count while ingest is not there to be spoken to"
    reconciler._watch_ingest = lambda: None  # type: ignore[method-assign]
    reconciler.ingest_up_since = timezone.now() - timedelta(minutes=5)
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert run.outcome_cause["type"] == "JobLost" and "resume" in run.outcome_cause["cure"]
    assert any("last words" in line for line in run.outcome_cause["log_tail"])


def test_ray_away_is_unknown_not_lost(on_ray: Layout, run: Run, sleeper: None, settings) -> None:
    launch(run.attempts.get().public_id)
    age(run, SILENT_AFTER * 2)
    address = settings.RAY_ADDRESS
    settings.RAY_ADDRESS = "http://127.0.0.1:9"
    reconciler = Reconciler()
    assert reconciler.lease.acquire()
    reconciler._watch_ingest = lambda: None  # type: ignore[method-assign]
    reconciler.ingest_up_since = timezone.now() - timedelta(minutes=5)
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.LAUNCHING
    settings.RAY_ADDRESS = address
    stopping.stop_everything(run.public_id)


def test_a_job_ray_does_not_know_is_lost(on_ray: Layout, run: Run) -> None:
    attempt = run.attempts.get()
    lifecycle.transition(run, RunState.LAUNCHING)
    lifecycle.attempt_submitted(attempt, f"run-{run.public_id}-1")
    lifecycle.attempt_started(attempt)
    assert RayJobs.default().status(attempt.submission_id) == ABSENT
    age(run, SILENT_AFTER * 2)
    reconciler = Reconciler()
    assert reconciler.lease.acquire()
    reconciler._watch_ingest = lambda: None  # type: ignore[method-assign]
    reconciler.ingest_up_since = timezone.now() - timedelta(minutes=5)
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.LOST and "vanished" in run.outcome_cause["message"]


def test_shutdown_cancels_active_runs_and_leaves_queued_ones(on_ray: Layout, run: Run, sleeper: None) -> None:
    launch(run.attempts.get().public_id)
    wait_until(lambda: remains.processes(run.public_id), 20, "the job's processes")
    assert stopping.stop_active_runs(grace_s=0.5) == [run.public_id]
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED
    assert remains.gone(run.public_id)


def test_what_the_cluster_has(on_ray: Layout) -> None:
    found = RayJobs.default().resources()
    assert found["cpus"] >= 1 and found["gpus"] >= 0 and found["memory_bytes"] > 1e8


def test_wrong_token_is_named(ray_layout: Layout, tmp_path: Path) -> None:
    wrong = tmp_path / "token"
    wrong.write_text("0" * 64)
    with pytest.raises(RayUnreachable, match="RAY_TOKEN_FILE"):
        RayJobs(ray_layout.ray_url, str(wrong)).version()
