"""What the reconciler makes of launchers that died, spools that were left, runs that trouble it, and attempts that overlap."""

from __future__ import annotations

import subprocess
import time
import uuid
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from headrace.dispatch import capacity, launcher, remains, shipping, stopping
from headrace.dispatch.folders import write_files
from headrace.dispatch.ray_jobs import ABSENT
from headrace.dispatch.reconciler import CANCEL_GRACE, CLAIM_STALE_AFTER, GIVE_UP_LAUNCH_AFTER, SILENT_AFTER, Reconciler
from headrace.dispatch.shipping import Shipping
from headrace.experiments import lifecycle, services
from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import AttemptState, RunState
from headrace.teams.models import Team
from tests.platform_tests.dispatch_rig import age, new_run, process_of, serve_ray

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def team(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Team:
    settings.RUNS_DIR = tmp_path / "runs"
    settings.RAY_ADDRESS, settings.RAY_TOKEN_FILE = "http://127.0.0.1:9", ""
    monkeypatch.setattr(services, "wake_launcher", lambda attempt: False)
    return Team.objects.create(name="T", slug=f"t-{uuid.uuid4().hex[:8]}")


@pytest.fixture
def run(team: Team) -> Run:
    return new_run(team)


@pytest.fixture
def reconciler() -> Reconciler:
    """One that holds the lease and has seen ingest up for a while."""
    made = Reconciler()
    assert made.lease.acquire()
    made._watch_ingest = lambda: None  # type: ignore[method-assign]
    made.ingest_up_since = timezone.now() - timedelta(minutes=5)
    return made


@pytest.fixture
def ray(settings: Any, team: Team) -> Iterator[dict[str, Any]]:
    """What Ray answers (`status` for every job, `code` for every wish), and the jobs it was given."""
    told: dict[str, Any] = {"status": ABSENT, "submitted": [], "stopped": [], "code": 200}
    with serve_ray(told) as address:
        settings.RAY_ADDRESS = address
        yield told


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    """Processes to end after the test, whatever it did to them."""
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        process.kill()
        process.wait(10)


def test_a_launcher_killed_after_ray_took_the_job_leaves_a_job_that_is_found(
    run: Run, reconciler: Reconciler, ray: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """As SIGKILL: nothing after it runs."""

    def killed(*args: Any) -> None:
        raise Killed

    attempt = run.attempts.get()
    with monkeypatch.context() as patch:
        patch.setattr(lifecycle, "attempt_submitted", killed)
        with pytest.raises(Killed):
            launcher.launch_attempt(attempt.public_id)
    attempt.refresh_from_db()
    assert (attempt.state, attempt.submission_id) == (AttemptState.PENDING, f"run-{run.public_id}-1")
    age(run, CLAIM_STALE_AFTER * 2)
    reconciler.once()
    attempt.refresh_from_db()
    assert attempt.state == AttemptState.SUBMITTED
    assert [name for name, _ in ray["submitted"]] == [attempt.submission_id] * 2, "the same id, which Ray takes once"


def test_what_ray_says_is_kept_and_becomes_the_cause(run: Run, reconciler: Reconciler, ray: dict[str, Any]) -> None:
    ray["code"], ray["error"] = 500, "no space left on the head node"
    attempt = run.attempts.get()
    assert not launcher.launch_attempt(attempt.public_id)
    attempt.refresh_from_db()
    assert "no space left on the head node" in attempt.exit_cause["message"]
    age(run, GIVE_UP_LAUNCH_AFTER * 2)
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.FAILED and "no space left" in run.outcome_cause["message"]


def test_a_job_that_ray_takes_after_a_cancel_is_stopped(run: Run, ray: dict[str, Any]) -> None:
    attempt = run.attempts.get()
    ray["meanwhile"] = lambda: stopping.settle_cancelled(run, stopping.newest_attempt(run), "test", "it was cancelled while Ray was asked")
    launcher.launch_attempt(attempt.public_id)
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED
    assert ray["stopped"] == [f"/api/jobs/run-{run.public_id}-1/stop"]


@pytest.mark.parametrize("when", ["before it is stopped", "while it is stopped"])
def test_a_run_that_is_resumed_while_its_cancel_is_carried_out_goes_on(
    run: Run, reconciler: Reconciler, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Its driver has complied after all, late: the cancel was of the first attempt, and the second one is nobody's to end."""

    def resumed(*given: Any, **named: Any) -> Any:
        lifecycle.attempt_finished(run.attempts.get(number=1), "cancelled", cause="as it was asked")
        services.resume_run(run, None)
        return remains.Remains((), ())

    lifecycle.transition(run, RunState.LAUNCHING)
    lifecycle.attempt_started(run.attempts.get())
    services.cancel_run(run, None)
    age(run, timedelta(seconds=16))
    if when == "before it is stopped":
        monkeypatch.setattr(reconciler, "_guard", resumed)
    else:
        monkeypatch.setattr(stopping, "stop_everything", resumed)
    reconciler._force_cancel(run)
    run.refresh_from_db()
    assert (run.state, run.attempts.get(number=2).state) == (RunState.QUEUED, AttemptState.PENDING)


def test_a_cancel_that_is_carried_out_ends_run_and_attempt(run: Run, reconciler: Reconciler, ray: dict[str, Any]) -> None:
    lifecycle.transition(run, RunState.LAUNCHING)
    lifecycle.attempt_started(run.attempts.get())
    services.cancel_run(run, None)
    age(run, timedelta(seconds=16))
    reconciler.once()
    run.refresh_from_db()
    assert (run.state, run.attempts.get().state) == (RunState.CANCELLED, AttemptState.CANCELLED)
    assert "did not stop by itself" in run.outcome_cause["message"]


def test_a_job_that_was_never_submitted_is_not_lost(run: Run, reconciler: Reconciler, ray: dict[str, Any]) -> None:
    lifecycle.transition(run, RunState.LAUNCHING)
    lifecycle.attempt_claimed(run.attempts.get(), f"run-{run.public_id}-1")
    age(run, timedelta(seconds=16))
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.LAUNCHING
    assert ray["submitted"] == [], "its launcher has a few seconds more"


def test_one_bad_run_does_not_stop_the_pass(
    team: Team, reconciler: Reconciler, ray: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(capacity, "machine", lambda: {"cpus": 4.0})  # room for both
    bad, good = new_run(team), new_run(team)
    for run in (bad, good):
        age(run, timedelta(seconds=10))
    real = launcher.write_files

    def write(attempt: Attempt) -> Path:
        if attempt.run_id == bad.pk:
            raise lifecycle.InvalidTransition("somebody moved it meanwhile")
        return real(attempt)

    monkeypatch.setattr(launcher, "write_files", write)
    reconciler.once()
    assert [name for name, _ in ray["submitted"]] == [f"run-{good.public_id}-1"]


def test_a_resume_finds_the_checkpoint_whose_event_was_never_shipped(run: Run, ray: dict[str, Any]) -> None:
    first = run.attempts.get()
    lifecycle.attempt_started(first)
    checkpoint = Path(first.out_dir) / "checkpoints" / "step-000004"
    checkpoint.mkdir(parents=True)
    (checkpoint / "MANIFEST.json").write_text("{}")
    lifecycle.attempt_finished(first, "lost", cause="x")
    second = services.resume_run(run, None)
    assert second.resumed_from is None
    assert launcher.launch_attempt(second.public_id)
    assert f"-m workers resume {first.out_dir} " in ray["submitted"][0][1]


def test_a_resume_with_nothing_to_go_on_from_says_so(run: Run, ray: dict[str, Any]) -> None:
    first = run.attempts.get()
    lifecycle.attempt_started(first)
    (Path(first.out_dir) / "checkpoints" / "step-000004").mkdir(parents=True)  # torn: it has no manifest
    lifecycle.attempt_finished(first, "lost", cause="x")
    second = services.resume_run(run, None)
    assert launcher.launch_attempt(second.public_id)
    assert "-m workers run " in ray["submitted"][0][1]
    lifecycle.attempt_started(Attempt.unscoped.get(pk=second.pk))
    assert "from step 0" in run.transitions.get(to_state=RunState.RUNNING, attempt=second).cause["message"]


def spool(attempt: Attempt) -> None:
    """An empty spool in the attempt's folder."""
    folder = Path(attempt.out_dir) / "spool"
    folder.mkdir()
    (folder / "1.spool").write_bytes(b"")


def left_behind(run: Run) -> Attempt:
    attempt = run.attempts.get()
    write_files(attempt)
    spool(attempt)
    lifecycle.attempt_finished(attempt, "lost", cause="x")
    return Attempt.unscoped.get(pk=attempt.pk)


def test_a_spool_is_not_given_up_by_count_and_pauses_are_capped(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    attempt = left_behind(run)
    sent: list[int] = []
    monkeypatch.setattr(shipping, "ship_attempt", lambda attempt, *args: sent.append(attempt.pk))
    shipper = Shipping()
    for _ in range(12):
        shipper._due.clear()
        shipper.next_one(lambda: None)
        shipper.wait(10)
    assert sent == [attempt.pk] * 12
    assert shipper._due[attempt.pk] - time.monotonic() <= shipping.LONGEST_PAUSE_S
    shipper.next_one(lambda: None)
    assert len(sent) == 12, "not before its time"
    Attempt.unscoped.filter(pk=attempt.pk).update(token_expires=timezone.now())
    assert not shipping.left_behind().exists()


def test_nothing_is_tried_or_counted_while_ingest_is_down(run: Run, reconciler: Reconciler) -> None:
    left_behind(run)
    reconciler.ingest_up_since = None
    reconciler.once()
    assert reconciler.shipping._tries == {}


def test_attempts_with_no_spool_do_not_stand_in_the_way(team: Team, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(3):
        lifecycle.attempt_finished(new_run(team).attempts.get(), "lost", cause="x")
    attempt = left_behind(new_run(team))
    sent: list[int] = []
    monkeypatch.setattr(shipping, "ship_attempt", lambda attempt, *args: sent.append(attempt.pk))
    shipper = Shipping()
    shipper.next_one(lambda: None)
    shipper.wait(10)
    assert sent == [attempt.pk]


def test_a_cancel_waits_for_no_spool(team: Team, reconciler: Reconciler, ray: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    left_behind(new_run(team))
    monkeypatch.setattr(shipping, "ship_attempt", lambda attempt, *args: time.sleep(3))
    reconciler.once()
    assert reconciler.shipping.busy
    run = new_run(team)
    lifecycle.attempt_started(run.attempts.get())
    services.cancel_run(run, None)
    age(run, CANCEL_GRACE + timedelta(seconds=1))
    begun = time.monotonic()
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.CANCELLED
    assert time.monotonic() - begun < 2
    reconciler.shipping.wait(10)


def test_an_old_attempt_is_ended_without_the_newer_one(run: Run, ray: dict[str, Any], started: list[subprocess.Popen[bytes]]) -> None:
    first = run.attempts.get()
    lifecycle.attempt_started(first)
    lifecycle.attempt_finished(first, "lost", cause="x")
    second = services.resume_run(run, None)
    started += [process_of(run.public_id, first.public_id), process_of(run.public_id, second.public_id), process_of(run.public_id)]
    segment = remains.SHARED_MEMORY / f"hr-{run.public_id}-2-weights"
    segment.write_bytes(b"x")
    try:
        assert not stopping.stop_attempt(first, job_wait_s=0.1)
        assert [process.poll() is None for process in started] == [False, True, True]
        assert segment.exists()
        assert not stopping.stop_attempt(second, job_wait_s=0.1)
        assert [process.poll() is None for process in started] == [False, False, False]
        assert not segment.exists()
    finally:
        segment.unlink(missing_ok=True)


def test_a_silent_attempt_is_stopped_before_its_run_is_over(
    run: Run, reconciler: Reconciler, ray: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt = run.attempts.get()
    assert launcher.launch_attempt(attempt.public_id)
    lifecycle.attempt_started(attempt)
    age(run, SILENT_AFTER * 2)
    seen: list[str] = []
    real = stopping.stop_attempt

    def stop(attempt: Attempt, *args: Any) -> remains.Remains:
        seen.append(Run.unscoped.get(pk=attempt.run_id).state)
        return real(attempt, 0.1)

    monkeypatch.setattr(stopping, "stop_attempt", stop)
    reconciler.once()
    run.refresh_from_db()
    assert (seen, run.state) == ([RunState.RUNNING], RunState.LOST)


def test_shipping_its_spool_does_not_make_a_dead_attempt_look_alive(run: Run, reconciler: Reconciler, ray: dict[str, Any]) -> None:
    attempt = run.attempts.get()
    assert launcher.launch_attempt(attempt.public_id)
    spool(attempt)
    lifecycle.attempt_started(attempt)
    age(run, SILENT_AFTER * 2)
    heard = Attempt.unscoped.filter(pk=attempt.pk)
    reconciler.once()
    reconciler.shipping.wait(30)
    heard.update(heartbeat_at=timezone.now())
    reconciler.once()
    run.refresh_from_db()
    assert run.state == RunState.LOST
