"""The lease, and a launcher whose Ray is away."""

from __future__ import annotations

import json
import threading
import uuid
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.sessions.backends.db import SessionStore
from django.contrib.sessions.models import Session
from django.db import connection, transaction
from django.utils import timezone

from headrace.dispatch import chores, launcher, shipping, stopping
from headrace.dispatch.folders import write_files
from headrace.dispatch.lease import Lease, LeaseLost
from headrace.dispatch.models import ReconcilerLease
from headrace.dispatch.reconciler import GIVE_UP_LAUNCH_AFTER, Reconciler
from headrace.experiments import lifecycle, services
from headrace.experiments.models import Artifact, Attempt, Project, Run
from headrace.experiments.states import AttemptState, RunState, lifecycle_writes
from headrace.teams.models import Team
from workers.contract import loading

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def run(settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    settings.RUNS_DIR = tmp_path / "runs"
    settings.RAY_ADDRESS = "http://127.0.0.1:9"
    settings.RAY_TOKEN_FILE = ""
    monkeypatch.setattr(services, "wake_launcher", lambda attempt: False)
    team = Team.objects.create(name="T", slug=f"t-{uuid.uuid4().hex[:8]}")
    project = Project.objects.create(team=team, name="P", slug="p")
    config = services.create_config(team, loading.resolve(None, None, ["budget.steps=2"]))
    return services.start_run(team=team, user=None, config=config, project=project, name="r", idempotency_key=uuid.uuid4().hex)


def test_one_holder_at_a_time() -> None:
    first, second = Lease(), Lease()
    assert first.acquire() and first.acquire()
    assert not second.acquire()
    first.release()
    assert second.acquire()
    assert second.fence == 2


def test_many_at_once_one_wins() -> None:
    leases, won = [Lease() for _ in range(8)], []
    barrier = threading.Barrier(len(leases))

    def take(lease: Lease) -> None:
        barrier.wait()
        try:
            if lease.acquire():
                won.append(lease)
        finally:
            connection.close()

    threads = [threading.Thread(target=take, args=(lease,)) for lease in leases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(won) == 1


def test_a_holder_paused_past_its_lease_is_fenced() -> None:
    paused, other = Lease(), Lease()
    assert paused.acquire()
    ReconcilerLease.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert other.acquire()
    with pytest.raises(LeaseLost), transaction.atomic():
        paused.check()
    assert not paused.acquire()
    with transaction.atomic():
        other.check()


def test_ray_away_leaves_the_run_launching_and_is_tried_again(run: Run) -> None:
    attempt = run.attempts.get()
    assert not launcher.launch_attempt(attempt.public_id)
    run.refresh_from_db()
    assert run.state == RunState.LAUNCHING
    attempt = run.attempts.get()
    assert (attempt.state, attempt.submission_id) == (AttemptState.PENDING, f"run-{run.public_id}-1")
    assert "no answer from Ray" in attempt.exit_cause["message"], "the page shows why it waits"
    assert (Path(run.attempts.get().out_dir) / "spec.json").stat().st_mode & 0o777 == 0o600


def test_a_launch_that_never_succeeds_fails_with_its_cause(run: Run) -> None:
    launcher.launch_attempt(run.attempts.get().public_id)
    with lifecycle_writes():
        Run.unscoped.filter(pk=run.pk).update(state_since=timezone.now() - GIVE_UP_LAUNCH_AFTER * 2)
    reconciler = Reconciler()
    assert reconciler.lease.acquire()
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert run.outcome_cause["field"] == "HEADRACE_RAY_ADDRESS" and run.outcome_cause["cure"]
    assert "ConnectError" in run.outcome_cause["message"], "Ray's own last word, not a guess"


def test_a_folder_that_cannot_be_written_fails_the_run_with_its_cure(run: Run, tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("a file where the folder should be")
    launcher.launch_attempt(run.attempts.get().public_id)
    run.refresh_from_db()
    assert run.state == RunState.FAILED
    assert "folder" in run.outcome_cause["message"]


def test_a_cancelled_run_is_not_launched(run: Run) -> None:
    services.cancel_run(run, None)
    assert not launcher.launch_attempt(run.attempts.get().public_id)
    assert not launcher.launch_attempt("nosuchattempt")
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED


def test_nothing_is_shipped_where_there_is_no_spool(run: Run) -> None:
    assert not shipping.ship_attempt(run.attempts.get())


def test_a_resumed_attempt_goes_on_from_the_folder_of_its_checkpoint(run: Run) -> None:
    first = run.attempts.get()
    lifecycle.transition(run, RunState.LAUNCHING)
    lifecycle.attempt_started(first)
    Artifact.unscoped.create(team=run.team, run=run, attempt=first, kind="checkpoint", path=f"{first.out_dir}/checkpoints/step-1", step=1)
    lifecycle.attempt_finished(first, "failed", cause="x")
    second = services.resume_run(run, None)
    found = launcher.find_attempt(second.public_id)
    assert found is not None
    line = launcher.entrypoint(found, Path("/out"))
    assert f"-m workers resume {first.out_dir} --out /out --attempt-file /out/attempt.json" in line


def test_two_launchers_leave_one_token_in_file_and_row(run: Run) -> None:
    attempt = run.attempts.get()
    stale = Attempt.unscoped.select_related("run__config", "cluster").get(pk=attempt.pk)
    write_files(attempt)
    token = json.loads((write_files(stale) / "attempt.json").read_text())["token"]
    assert services.verify_run_token(attempt.public_id, token) == attempt


def test_uploads_are_left_alone_by_a_shutdown(run: Run) -> None:
    uploaded, attempt, _ = services.create_upload(team=run.team, user=None, data={"preset": "demo"}, name="u", idempotency_key="u")
    lifecycle.attempt_started(attempt)
    assert stopping.stop_active_runs(grace_s=0) == []
    uploaded.refresh_from_db()
    assert uploaded.state == RunState.RUNNING and not uploaded.control["cancel"]


def test_an_upload_that_was_cancelled_is_settled(run: Run) -> None:
    uploaded, attempt, _ = services.create_upload(team=run.team, user=None, data={"preset": "demo"}, name="u", idempotency_key="u")
    lifecycle.attempt_started(attempt)
    services.cancel_run(uploaded, None)
    with lifecycle_writes():
        Run.unscoped.filter(pk=uploaded.pk).update(state_since=timezone.now() - timedelta(seconds=9))
    reconciler = Reconciler()
    assert reconciler.lease.acquire()
    reconciler.once()
    uploaded.refresh_from_db()
    assert uploaded.state == RunState.CANCELLED


def test_daily_chores(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = run.attempts.get()
    there = tmp_path / "there"
    there.mkdir()
    fields = {"team": run.team, "run": run, "attempt": attempt, "kind": "checkpoint"}
    kept, gone = Artifact.unscoped.create(path=str(there), **fields), Artifact.unscoped.create(path=str(tmp_path / "gone"), **fields)
    old = SessionStore()
    old.set_expiry(timezone.now() - timedelta(days=1))
    old.save()
    monkeypatch.setattr(chores, "_last", None)
    now = timezone.now()
    assert chores.daily(now) and not chores.daily(now + timedelta(hours=23))
    kept.refresh_from_db()
    gone.refresh_from_db()
    assert (kept.state, gone.state) == (Artifact.State.COMPLETE, Artifact.State.MISSING)
    assert not Session.objects.exists()
