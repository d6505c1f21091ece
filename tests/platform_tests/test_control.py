"""What people ask of a run after its start: permissions, limits, what the page says, and the preview of a resume."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.test import Client

from headrace.dispatch.launcher import entrypoint
from headrace.experiments import control, lifecycle, services
from headrace.experiments.budget import budget_of, used_up
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.experiments.resume_preview import preview
from headrace.experiments.states import RunState
from headrace.teams.models import AuditEvent, Role, Team, User
from headrace.teams.services import NotAllowed
from tests.platform_tests.telemetry_rig import STATE, metric, push

pytestmark = pytest.mark.django_db
Member = Callable[..., User]
Start = Callable[..., Run]


@pytest.fixture
def running(team: Team, member: Member, start: Start) -> tuple[Run, User]:
    """A run of 20 steps that has done 3, and its maker."""
    user = member(team)
    run = start(team, user, steps=20)
    attempt = run.attempts.get()
    state = {**STATE, "time": {"wall_s": 42.0, "lanes": {}}, "samples": {"trained": 96}}
    push(attempt, [("started", {"provenance": {}}), metric(100.0, "samples/tokens"), ("state", state)], step=3)
    run.refresh_from_db()
    assert run.state == RunState.RUNNING
    return run, user


def finish(run: Run, outcome: str = "succeeded", **summary: Any) -> None:
    lifecycle.attempt_finished(run.attempts.latest("number"), outcome, summary=summary)
    run.refresh_from_db()


def test_a_pause_is_asked_followed_and_taken_back(running: tuple[Run, User]) -> None:
    run, user = running
    control.pause_run(run, user)
    assert run.control["pause"] is True
    said = control.buttons(run, user)
    assert [line["words"] for line in said["said"]] == ["pause: waiting for the end of step 4"]
    assert said["go_on"]["shown"] and not said["pause"]["shown"]
    push(run.attempts.get(), [("state", {**STATE, "status": "paused"})], first=4, step=4)
    run.refresh_from_db()
    if run.state == RunState.PAUSED:
        now = control.buttons(run, user)
        assert now["said"][0]["done"] and now["checkpoint"]["why"].startswith("it is paused")
    control.go_on(run, user)
    assert run.control["pause"] is False and "pause" not in run.control["asked"]


def test_checkpoint_counts_presses_and_shows_what_was_written(running: tuple[Run, User]) -> None:
    run, user = running
    control.checkpoint_now(run, user)
    control.checkpoint_now(run, user)
    assert run.control["checkpoint_now"] == 2
    assert control.buttons(run, user)["said"][0]["words"] == "checkpoint: waiting for the end of step 4"
    push(run.attempts.get(), [("checkpoint", {"path": "/x/step-000004", "step": 4, "version": 4, "bytes": 9})], first=4, step=4)
    line = control.buttons(run, user)["said"][0]
    assert line["done"] and line["words"] == "checkpoint of step 4 is written"
    assert AuditEvent.unscoped.filter(action="run.control", object_id=run.public_id).count() == 2


@pytest.mark.parametrize(
    ("steps", "wall_s", "field"),
    [
        (2, None, "steps"),
        (0, None, "steps"),
        (2**63, None, "steps"),
        (20, 10.0, "wall_s"),
        (20, float("nan"), "wall_s"),
        (20, -1.0, "wall_s"),
    ],
)
def test_a_budget_below_what_is_done_or_out_of_range_is_refused(
    running: tuple[Run, User], steps: int, wall_s: float | None, field: str
) -> None:
    run, user = running
    with pytest.raises(BadInput) as fault:
        control.extend_budget(run, user, steps=steps, wall_s=wall_s)
    assert fault.value.field == field and fault.value.cure
    run.refresh_from_db()
    assert run.control.get("steps") is None


def test_a_budget_grows_shrinks_and_goes_back(running: tuple[Run, User]) -> None:
    run, user = running
    assert control.extend_budget(run, user, steps=60, wall_s=3600.0).steps == 60
    assert (run.control["steps"], run.control["wall_s"]) == (60, 3600.0)
    assert control.extend_budget(run, user, steps=3, wall_s=None).steps == 3
    assert control.extend_budget(run, user, steps=20, wall_s=None).extended is False
    assert run.control["steps"] is None


def test_a_run_that_did_all_its_steps_goes_on_with_more(running: tuple[Run, User]) -> None:
    run, user = running
    finish(run, steps=20)
    assert used_up(run) == "all 20 steps of its budget are done"
    with pytest.raises(WrongState, match="nothing is left"):
        services.resume_run(run, user)
    with pytest.raises(BadInput, match="below what is done"):
        control.resume_with_budget(run, user, steps=19)
    attempt = control.resume_with_budget(run, user, steps=30)
    run.refresh_from_db()
    assert (run.state, attempt.number, budget_of(run).steps) == (RunState.QUEUED, 2, 30)
    assert run.control["stop_after_step"] is False
    assert entrypoint(attempt, Path("/tmp/f")).endswith("--set budget.steps=30")


def test_a_run_that_was_stopped_early_resumes_as_it_is(running: tuple[Run, User]) -> None:
    run, user = running
    control.stop_after_step(run, user)
    finish(run, steps=4)
    assert used_up(run) is None
    assert services.resume_run(run, user).number == 2


def test_only_who_may_and_only_what_can_be_asked(
    running: tuple[Run, User], team: Team, other_team: Team, member: Member, start: Start
) -> None:
    run, user = running
    calls = (control.pause_run, control.go_on, control.checkpoint_now, control.stop_after_step)
    for stranger in (member(team, Role.VIEWER), member(team, Role.MEMBER), member(other_team, Role.OWNER)):
        for call in calls:
            with pytest.raises(NotAllowed):
                call(run, stranger)
        with pytest.raises(NotAllowed):
            control.extend_budget(run, stranger, steps=30, wall_s=None)
        assert not any(value["shown"] for value in control.buttons(run, stranger).values() if isinstance(value, dict) and "shown" in value)
    queued = start(team, user)
    for call in calls:
        with pytest.raises(WrongState):
            call(queued, user)
    assert control.buttons(queued, user)["pause"]["why"] == "it has not started yet"
    services.cancel_run(run, user)
    with pytest.raises(WrongState):
        control.extend_budget(run, user, steps=30, wall_s=None)
    assert control.buttons(run, user)["cancel"]["why"] == "it is stopping already"


def test_presses_answer_forms_and_scripts(client: Client, running: tuple[Run, User], other_team: Team, member: Member) -> None:
    run, user = running
    at = f"/runs/{run.public_id}/"
    assert client.post(f"{at}pause/", headers={"accept": "application/json"}).status_code == 401
    assert client.post(f"{at}pause/").headers["Location"].startswith("/login/")
    client.force_login(member(other_team, Role.OWNER))
    for name in ("pause", "go-on", "checkpoint", "stop", "cancel", "budget", "resume"):
        assert client.post(f"{at}{name}/").status_code == 404, name
    for name in ("control.json", "resume.json", "resume/"):
        assert client.get(f"{at}{name}").status_code == 404, name
    client.force_login(user)
    assert client.get(f"{at}pause/").status_code == 405
    assert client.post(f"{at}pause/").headers["Location"] == at
    body = client.post(f"{at}pause/", headers={"accept": "application/json"}).json()
    assert body["go_on"]["shown"] is True
    assert client.get(f"{at}control.json").json()["said"][0]["what"] == "pause"
    bad = client.post(f"{at}budget/", {"steps": "1e9"}, headers={"accept": "application/json"})
    assert (bad.status_code, bad.json()["field"]) == (400, "steps")
    early = client.post(f"{at}resume/")
    assert early.status_code == 409 and b"cancel it first" in early.content
    assert client.post(f"{at}budget/", {"steps": "25", "wall_s": ""}, follow=True).status_code == 200
    run.refresh_from_db()
    assert run.control["steps"] == 25
    services.cancel_run(run, user)
    late = client.post(f"{at}pause/", headers={"accept": "application/json"})
    assert (late.status_code, late.json()["field"]) == (409, "state")


def test_the_preview_tells_what_comes_back_and_what_is_lost(running: tuple[Run, User], tmp_path: Path, client: Client) -> None:
    run, user = running
    attempt = run.attempts.get()
    attempt.out_dir = str(tmp_path)
    attempt.save(update_fields=["out_dir"])
    folder = tmp_path / "checkpoints" / "step-000003"
    folder.mkdir(parents=True)
    files = {
        name: {"bytes": 7, "sha256": "x"} for name in ("adapter_model.safetensors", "optimizer.safetensors", "trainer.json", "driver.json")
    }
    (folder / "MANIFEST.json").write_text(json.dumps({"step": 3, "version": 3, "config_digest": "d", "files": files}))
    driver = {"buffer": [{}, {}], "samples": {"trained": 96}, "under_way": [{"id": "g", "slots": [0, 1, 2]}]}
    (folder / "driver.json").write_text(json.dumps(driver))
    push(attempt, [("checkpoint", {"path": str(folder), "step": 3, "version": 3, "bytes": 28})], first=4, step=3)
    push(attempt, [metric(700.0, "samples/tokens"), ("state", {**STATE, "step": 8})], first=5, step=8)
    cause = {"message": "the loss was not finite", "cure": "lower the learning rate", "retryable": False}
    lifecycle.attempt_finished(attempt, "failed", cause=cause)
    run.refresh_from_db()
    facts = preview(run)
    assert (facts["checkpoint"]["step"], facts["checkpoint"]["here"], facts["next_attempt"]) == (3, True, 2)
    assert [row["name"] for row in facts["restored"]][:4] == ["weights", "optimizer", "counters", "flow"]
    assert "3 unfinished samples" in facts["again"][0]
    assert facts["lost"] == {"steps": 5, "tokens": 600, "seconds": pytest.approx(2.0)}
    client.force_login(user)
    page = client.get(f"/runs/{run.public_id}/resume/").content.decode()
    assert "the end of step 3" in page and "5 steps" in page and "lower the learning rate" in page
    assert client.post(f"/runs/{run.public_id}/resume/").headers["Location"] == f"/runs/{run.public_id}/"
    run.refresh_from_db()
    assert run.state == RunState.QUEUED


def test_the_preview_says_what_it_does_not_know(running: tuple[Run, User], tmp_path: Path) -> None:
    run, _ = running
    attempt = run.attempts.get()
    finish(run, "failed")
    assert preview(run)["checkpoint"] is None
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "MANIFEST.json").write_text("{}")
    attempt.out_dir = str(tmp_path / "own")
    attempt.save(update_fields=["out_dir"])
    push(attempt, [("checkpoint", {"path": "../outside", "step": 2, "version": 2, "bytes": 1})], first=4, step=3, replay=True)
    facts = preview(run)
    assert facts["checkpoint"]["here"] is False and facts["restored"] == []
    assert "not known" in facts["again"][0]
