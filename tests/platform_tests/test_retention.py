"""Retention and storage: what a policy takes and what it never touches, previews that tell the truth, deletions that really delete."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client, TestCase
from django.utils import timezone

from headrace.artifacts.models import Export, JobState
from headrace.dispatch import chores, keeping, remains, retention, storage
from headrace.dispatch.models import RetentionPolicy
from headrace.experiments import services
from headrace.experiments.models import Artifact, Attempt, Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.experiments.states import RunState, lifecycle_writes
from headrace.teams.models import AuditEvent, Membership, Role, Team, User
from headrace.teams.services import NotAllowed
from headrace.telemetry.ingest import rebuild
from headrace.telemetry.models import EventBatch, LogChunk, Sample, Series, SeriesChunk
from headrace.telemetry.problems import EventsGone
from tests.platform_tests.telemetry_rig import SAMPLE, Rig, metric, new_rig, push

pytestmark = pytest.mark.django_db
Member = Callable[..., User]
EVENTS = [metric(0.5), ("sample", SAMPLE), ("log", {"level": "info", "message": "hello", "source": "driver"})]


@pytest.fixture(autouse=True)
def _own_folders(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    settings.RUNS_DIR = tmp_path / "runs"
    settings.RUNS_DIR.mkdir()
    monkeypatch.setattr(retention, "_begun", None)
    monkeypatch.setattr(retention, "_work", None)
    cache.clear()
    yield
    cache.clear()


def over(rig: Rig, days: float, state: str = RunState.SUCCEEDED) -> Rig:
    """The run ended so long ago."""
    with lifecycle_writes():
        Run.unscoped.filter(pk=rig.run.pk).update(state=state, state_since=timezone.now() - timedelta(days=days))
    return rig


def full_rig(days: float = 30, state: str = RunState.SUCCEEDED) -> Rig:
    """A run with events, a series, a sample, a log line, a checkpoint on disk and a spool."""
    rig = new_rig()
    push(rig.attempt, EVENTS)
    folder = Path(retention.run_folder(rig.run)) / "attempt-1"
    (folder / "checkpoints" / "step-2").mkdir(parents=True)
    (folder / "checkpoints" / "step-2" / "weights.bin").write_bytes(b"x" * 1000)
    (folder / "events.spool").write_bytes(b"y" * 100)
    Attempt.unscoped.filter(pk=rig.attempt.pk).update(out_dir=str(folder))
    Artifact.objects.create(
        team=rig.team, run=rig.run, attempt=rig.attempt, kind="checkpoint", path="checkpoints/step-2", bytes=1000, step=2
    )
    return over(rig, days, state)


def left(rig: Rig) -> dict[str, int]:
    tables: dict[str, Any] = {"events": EventBatch, "samples": Sample, "logs": LogChunk, "series": Series, "chunks": SeriesChunk}
    return {name: model.unscoped.filter(attempt=rig.attempt).count() for name, model in tables.items()}


def round_of(now: Any = None) -> int:
    with TestCase.captureOnCommitCallbacks(execute=True):
        return sum(retention.steps(now or timezone.now()))


def test_a_policy_takes_the_old_and_keeps_the_series() -> None:
    rig = full_rig()
    RetentionPolicy.unscoped.create(team=rig.team, events_days=10, samples_days=10, logs_days=10, checkpoints_days=10)
    told = retention.plan(rig.team, retention.days_of(keeping.policy_of(rig.team)), timezone.now())
    assert {item.kind: item.items for item in told.due} == {"events": 1, "samples": 1, "logs": 1, "checkpoints": 1}
    assert told.runs == 1 and told.bytes > 1000
    assert round_of() == 4
    assert left(rig) == {"events": 0, "samples": 0, "logs": 0, "series": 1, "chunks": 1}
    folder = retention.run_folder(rig.run) / "attempt-1"
    assert not (folder / "checkpoints" / "step-2").exists() and (folder / "events.spool").exists()
    assert Artifact.unscoped.get(run=rig.run).state == Artifact.State.DELETED
    told = AuditEvent.unscoped.get(action="retention.enforce")
    assert told.team == rig.team and told.detail == {"events": 1, "samples": 1, "logs": 1, "checkpoints": 1}
    assert round_of() == 0
    assert AuditEvent.unscoped.filter(action="retention.enforce").count() == 1


def test_what_was_derived_is_not_cleared_once_its_events_are_gone() -> None:
    rig = full_rig()
    assert rebuild(rig.attempt) == 1
    RetentionPolicy.unscoped.create(team=rig.team, events_days=10)
    assert round_of() == 1
    with pytest.raises(EventsGone):
        rebuild(rig.attempt)
    assert left(rig)["series"] == 1 and left(rig)["samples"] == 1


@pytest.mark.parametrize("state", sorted(RunState.active()))
def test_an_active_run_is_never_touched(state: str) -> None:
    rig = full_rig(days=400, state=state)
    RetentionPolicy.unscoped.create(team=rig.team, events_days=8, samples_days=1, logs_days=1, checkpoints_days=1)
    before = left(rig)
    assert round_of() == 0 and left(rig) == before
    Run.unscoped.filter(pk=rig.run.pk).update(deleted_at=timezone.now() - timedelta(days=400))
    assert round_of() == 0 and left(rig) == before, "not even one that was marked as deleted past the service"


def test_what_is_kept_young_or_another_teams_stays() -> None:
    kept, young, other = full_rig(), full_rig(days=3), full_rig()
    Run.unscoped.filter(pk=kept.run.pk).update(keep=True)
    for rig in (kept, young):
        RetentionPolicy.unscoped.create(team=rig.team, events_days=10, samples_days=10, logs_days=10, checkpoints_days=10)
    before = [left(rig) for rig in (kept, young, other)]
    assert round_of() == 0
    assert [left(rig) for rig in (kept, young, other)] == before


def test_a_checkpoint_that_an_active_run_goes_on_from_stays() -> None:
    rig = full_rig()
    fork = new_rig()
    Run.unscoped.filter(pk=fork.run.pk).update(forked_from=Artifact.unscoped.get(run=rig.run))
    RetentionPolicy.unscoped.create(team=rig.team, checkpoints_days=1)
    assert round_of() == 0
    over(fork, 0)
    assert round_of() == 1


def test_a_policy_below_the_least_is_held_to_the_least() -> None:
    rig = full_rig(days=3)
    RetentionPolicy.unscoped.create(team=rig.team, events_days=0)
    assert round_of() == 0, "a spool may still arrive, and is compared with what is stored"


def test_links_are_not_followed_and_nothing_outside_is_removed(tmp_path: Path, settings: Any) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_text("keep me")
    link = settings.RUNS_DIR / "link"
    os.symlink(outside, link)
    assert not retention.remove_folder(link)
    assert not retention.remove_folder(outside)
    assert not retention.remove_folder(settings.RUNS_DIR / "x" / ".." / ".." / "outside")
    assert not retention.remove_folder(settings.RUNS_DIR)
    inside = settings.RUNS_DIR / "inside"
    inside.mkdir()
    os.symlink(outside, inside / "link")
    assert retention.remove_folder(inside) and (outside / "file").read_text() == "keep me"


def test_a_deleted_run_goes_for_good_after_the_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = full_rig(days=1)
    services.delete_run(rig.run, rig.user)
    now = timezone.now()
    assert round_of(now) == 0 and left(rig)["events"] == 1
    later = now + retention.DELETED_GRACE + timedelta(minutes=1)
    monkeypatch.setattr(remains, "gone", lambda run: False)
    assert round_of(later) == 0, "something of the run still lives"
    monkeypatch.setattr(remains, "gone", lambda run: True)
    assert round_of(later) > 0
    assert not Run.unscoped.filter(pk=rig.run.pk).exists() and set(left(rig).values()) == {0}
    assert not retention.run_folder(rig.run).exists()
    assert AuditEvent.unscoped.get(action="run.purge").object_id == rig.run.public_id


def test_a_deletion_is_taken_back_in_time(member: Member) -> None:
    rig = full_rig(days=1)
    browser = Client()
    browser.force_login(rig.user)
    services.delete_run(rig.run, rig.user)
    assert rig.run.public_id in browser.get("/team/storage/").content.decode()
    assert browser.post(f"/team/storage/runs/{rig.run.public_id}/restore/")["Location"] == f"/runs/{rig.run.public_id}/"
    assert browser.get(f"/runs/{rig.run.public_id}/").status_code == 200
    assert browser.post(f"/team/storage/runs/{rig.run.public_id}/restore/").status_code == 404
    Run.unscoped.filter(pk=rig.run.pk).update(deleted_at=timezone.now() - retention.DELETED_GRACE)
    with pytest.raises(WrongState):
        keeping.restore_run(rig.run, rig.user)
    viewer = member(rig.team, Role.VIEWER)
    with pytest.raises(NotAllowed):
        keeping.restore_run(rig.run, viewer)


def test_a_round_comes_once_a_day_in_small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = full_rig()
    RetentionPolicy.unscoped.create(team=rig.team, events_days=10, samples_days=10, logs_days=10)
    monkeypatch.setattr(retention, "BUDGET_S", 0.0)
    now = timezone.now()
    passes = 1
    while retention.go_on(now):
        passes += 1
    assert passes == 4 and left(rig)["logs"] == 0
    full = full_rig()
    RetentionPolicy.unscoped.create(team=full.team, logs_days=10)
    assert not retention.go_on(now + timedelta(hours=23)) and left(full)["logs"] == 1
    monkeypatch.setattr(retention, "BUDGET_S", 2.0)
    chores.daily(now + timedelta(hours=25))
    assert left(full)["logs"] == 0


def test_a_round_that_fails_ends_no_pass(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(now: Any) -> Iterator[int]:
        yield 1
        raise OSError("disk")

    monkeypatch.setattr(retention, "steps", broken)
    assert not retention.go_on(timezone.now())
    assert "round of retention failed" in caplog.text


def test_the_page_previews_before_it_saves(member: Member) -> None:
    rig = full_rig()
    browser = Client()
    browser.force_login(rig.user)
    page = browser.post("/team/storage/", {"logs": "9", "events": ""}).content.decode()
    assert "This would free" in page and "in 1 run" in page and "Save this policy" in page
    assert keeping.policy_of(rig.team) is None and left(rig)["logs"] == 1
    for wrong in ({"events": "7"}, {"logs": "0"}, {"logs": "many"}, {"checkpoints": "99999"}):
        assert browser.post("/team/storage/", {**wrong, "confirmed": "1"}).status_code == 422
    assert browser.post("/team/storage/", {"logs": "9", "confirmed": "1"}).status_code == 302
    assert retention.days_of(keeping.policy_of(rig.team)) == {"events": None, "samples": None, "logs": 9, "checkpoints": None}
    assert "next daily round frees" in browser.get("/team/storage/").content.decode()
    for wrong in ({"events": 7}, {"logs": 3651}):
        with pytest.raises(BadInput):
            keeping.edit_policy(by=rig.user, team=rig.team, days=wrong)
    with pytest.raises(NotAllowed):
        keeping.edit_policy(by=member(rig.team, Role.MAINTAINER), team=rig.team, days={})


def test_usage_by_kind_and_run() -> None:
    rig, other = full_rig(), full_rig()
    use = storage.measure(rig.team)
    assert use.items == {"events": 1, "series": 1, "samples": 1, "logs": 1}
    assert use.disk == {"checkpoints": 1000, "exports": 0, "spools": 100, "other files": 0, "probes": 0}
    assert [run.public_id for run in use.runs] == [rig.run.public_id] and use.runs[0].disk == 1100
    body = EventBatch.unscoped.get(attempt=rig.attempt).body
    assert use.database["events"] == len(bytes(body))
    assert len(use.growth) == storage.GROWTH_DAYS and use.growth[-1][1] == len(bytes(body)) + 1000
    browser = Client()
    browser.force_login(rig.user)
    page = browser.get("/team/storage/?again=1").content.decode()
    assert rig.run.public_id in page and other.run.public_id not in page


def test_keeping_a_run_for_ever(member: Member) -> None:
    rig, other = full_rig(), full_rig()
    browser = Client()
    browser.force_login(rig.user)
    address = f"/team/storage/runs/{rig.run.public_id}/keep/"
    assert browser.post(address, {"keep": "1"})["Location"] == f"/runs/{rig.run.public_id}/edit/"
    rig.run.refresh_from_db()
    assert rig.run.keep and "kept for ever" in browser.get(f"/runs/{rig.run.public_id}/edit/").content.decode()
    assert browser.post(address, {"keep": "0", "from": "storage"})["Location"] == "/team/storage/"
    assert browser.post(f"/team/storage/runs/{other.run.public_id}/keep/", {"keep": "1"}).status_code == 404
    assert browser.post(f"/team/storage/runs/{other.run.public_id}/restore/").status_code == 404
    viewer = Client()
    viewer.force_login(member(rig.team, Role.VIEWER))
    assert viewer.post(address, {"keep": "1"}).status_code == 403


def test_orphans_are_told_to_administrators(settings: Any, member: Member) -> None:
    rig = full_rig()
    lost = settings.RUNS_DIR / "abcdefghijkl"
    lost.mkdir()
    (lost / "file").write_bytes(b"z" * 10)
    assert storage.orphans() == [("abcdefghijkl", 10)]
    for staff, seen in ((True, True), (False, False)):
        user = member(rig.team, Role.OWNER, is_staff=staff)
        browser = Client()
        browser.force_login(user)
        assert ("abcdefghijkl" in browser.get("/team/storage/").content.decode()) == seen
    assert Membership.objects.for_team(rig.team).exists()


def test_a_tight_disk_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = new_rig()
    monkeypatch.setattr(storage, "disk", lambda: storage.Disk(1000, 50))
    browser = Client()
    browser.force_login(rig.user)
    assert "getting full" in browser.get("/team/storage/").content.decode()
    assert not storage.Disk(1000, 500).tight


def test_policies_are_one_a_team(team: Team, member: Member) -> None:
    owner = member(team, Role.OWNER)
    keeping.edit_policy(by=owner, team=team, days={"logs": 5})
    keeping.edit_policy(by=owner, team=team, days={"events": 20})
    policy = RetentionPolicy.objects.for_team(team).get()
    assert (policy.logs_days, policy.events_days) == (None, 20)
    assert AuditEvent.unscoped.filter(action="retention.edit").latest("pk").detail["before"]["logs"] == 5


def test_a_checkpoint_takes_its_export_along() -> None:
    rig = full_rig()
    checkpoint = Artifact.unscoped.get(run=rig.run)
    zipped = retention.run_folder(rig.run) / "exports" / "step-2.zip"
    zipped.parent.mkdir()
    zipped.write_bytes(b"z" * 50)
    result = Artifact.objects.create(team=rig.team, run=rig.run, attempt=rig.attempt, kind="export", path=str(zipped), bytes=50)
    Export.objects.create(team=rig.team, artifact=checkpoint, result=result, state=JobState.DONE)
    RetentionPolicy.unscoped.create(team=rig.team, checkpoints_days=10)
    assert round_of() == 1
    assert not zipped.exists() and not Export.unscoped.exists()
    result.refresh_from_db()
    assert result.state == Artifact.State.DELETED


@pytest.mark.parametrize("path", ["../../{other}/attempt-1", "{root}/{other}/attempt-1", "../../{other}"])
def test_a_path_that_an_event_told_never_reaches_another_run(path: str, settings: Any) -> None:
    rig, other = full_rig(), full_rig(days=1)
    told = path.format(other=other.run.public_id, root=settings.RUNS_DIR)
    Artifact.unscoped.filter(run=rig.run).update(path=told)
    RetentionPolicy.unscoped.create(team=rig.team, checkpoints_days=10)
    assert round_of() == 1
    assert (retention.run_folder(other.run) / "attempt-1" / "checkpoints" / "step-2" / "weights.bin").exists()


def test_what_is_forked_during_a_round_stays() -> None:
    rig = full_rig()
    checkpoint = Artifact.unscoped.get(run=rig.run)
    Artifact.objects.create(team=rig.team, run=rig.run, attempt=rig.attempt, kind="checkpoint", path="checkpoints/step-1", step=1)
    RetentionPolicy.unscoped.create(team=rig.team, checkpoints_days=10)
    work = retention.steps(timezone.now())
    first = next(work)
    fork = new_rig()
    left_over = Artifact.unscoped.get(run=rig.run, state=Artifact.State.COMPLETE)
    Run.unscoped.filter(pk=fork.run.pk).update(forked_from=left_over)
    assert first == 1 and sum(work) == 0
    left_over.refresh_from_db()
    assert left_over.state == Artifact.State.COMPLETE and checkpoint.pk


def test_a_deleted_run_waits_for_what_was_forked_from_it() -> None:
    rig = full_rig()
    fork = new_rig()
    Run.unscoped.filter(pk=fork.run.pk).update(forked_from=Artifact.unscoped.get(run=rig.run))
    Run.unscoped.filter(pk=rig.run.pk).update(deleted_at=timezone.now() - timedelta(days=30))
    assert round_of() == 0 and retention.run_folder(rig.run).is_dir()
    with lifecycle_writes():
        Run.unscoped.filter(pk=fork.run.pk).update(state=RunState.CANCELLED)
    assert round_of() > 0 and not retention.run_folder(rig.run).exists()
