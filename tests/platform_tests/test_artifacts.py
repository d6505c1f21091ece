"""Files and probes of a run: who may do what, paths that stay inside, what a broken world leads to, and that every probe ends."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
import zipfile
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import AsyncClient, Client
from django.utils import timezone

from headrace.artifacts import exporting, places, probing, selectors, services
from headrace.artifacts.models import Export, JobState, Probe
from headrace.dispatch.ray_jobs import ABSENT
from headrace.experiments.models import Artifact, Attempt, Run
from headrace.experiments.problems import BadInput, QuotaReached, WrongState
from headrace.experiments.states import lifecycle_writes
from headrace.teams.models import Membership, Role, Team, User
from headrace.teams.services import NotAllowed
from tests.e2e.samples_rig import ANSWER, checkpoint
from tests.platform_tests.dispatch_rig import serve_ray
from tests.platform_tests.telemetry_rig import push

Member = Callable[..., User]
CARD = "# A card\n<script>alert(1)</script>"


class Driver:
    """As the e2e driver posts, straight into ingest."""

    def __init__(self, attempt: Attempt) -> None:
        self.attempt, self.seq = attempt, 1

    def post(self, events: list[tuple[str, dict[str, Any]]], step: int) -> None:
        push(self.attempt, events, first=self.seq, step=step)
        self.seq += len(events)


@pytest.fixture
def owner(team: Team, member: Member) -> User:
    return member(team, Role.OWNER)


@pytest.fixture
def run(team: Team, owner: User, start: Callable[..., Run], settings: Any, tmp_path: Path) -> Run:
    settings.RUNS_DIR = tmp_path / "runs"
    run = start(team, owner)
    folder = settings.RUNS_DIR / run.public_id / "attempt-1"
    folder.mkdir(parents=True)
    Attempt.unscoped.filter(run=run).update(out_dir=str(folder))
    return run


@pytest.fixture
def driver(run: Run) -> Driver:
    return Driver(Attempt.unscoped.get(run=run))


@pytest.fixture
def artifact(run: Run, driver: Driver) -> Artifact:
    checkpoint(driver, Path(driver.attempt.out_dir), 2)  # type: ignore[arg-type]
    return Artifact.unscoped.select_related("run", "attempt", "team").get(run=run)


@pytest.fixture(autouse=True)
def woken(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    sent: list[tuple[str, str]] = []
    monkeypatch.setattr(services, "wake", lambda task, public_id: sent.append((task, public_id)))
    monkeypatch.setattr(exporting, "wake", lambda task, public_id: sent.append((task, public_id)))
    return sent


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> None:
    def write(source: Path, out: Path) -> None:
        out.mkdir()
        shutil.copy(source / "adapter_model.safetensors", out)
        (out / "README.md").write_text(CARD)

    monkeypatch.setattr(exporting, "run_exporter", write)


@pytest.fixture
def ray(settings: Any) -> Iterator[dict[str, Any]]:
    told: dict[str, Any] = {"status": "RUNNING", "code": 200, "submitted": [], "stopped": []}
    with serve_ray(told) as address:
        settings.RAY_ADDRESS, settings.RAY_TOKEN_FILE = address, ""
        probing._asked.clear()
        yield told


def signed_in(user: User) -> Client:
    client = Client()
    client.force_login(user)
    return client


def over(run: Run) -> None:
    with lifecycle_writes():
        Run.unscoped.filter(pk=run.pk).update(state="succeeded")
        Attempt.unscoped.filter(run=run).update(state="succeeded")
    run.refresh_from_db()


# --- who


def test_nobody_outside_the_team_reaches_anything(run: Run, artifact: Artifact, other_team: Team, member: Member, owner: User) -> None:
    probe = services.ask_probe(run, owner, prompts=["a"], sampling={}, artifact=None)
    stranger = signed_in(member(other_team, Role.OWNER))
    base = f"/runs/{run.public_id}/"
    for path in ("artifacts/", f"artifacts/{artifact.public_id}/download/", "probes.json", f"probes/{probe.public_id}.json"):
        assert stranger.get(base + path).status_code == 404
        assert Client().get(base + path).status_code in (302, 401)
    presses = ("export", "verify", "delete")
    for path in (*(f"artifacts/{artifact.public_id}/{name}/" for name in presses), "probes/", f"probes/{probe.public_id}/cancel/"):
        assert stranger.post(base + path, {"prompt": "a"}).status_code == 404
        assert signed_in(owner).get(base + path).status_code == 405
    artifact.refresh_from_db()
    assert artifact.state == "complete" and not Export.unscoped.exists() and Probe.unscoped.count() == 1


def test_an_object_of_another_run_does_not_exist_under_this_one(
    run: Run, artifact: Artifact, start: Callable[..., Run], team: Team, owner: User
) -> None:
    other = start(team, owner)
    probe = services.ask_probe(run, owner, prompts=["a"], sampling={}, artifact=None)
    client = signed_in(owner)
    assert client.get(f"/runs/{other.public_id}/probes/{probe.public_id}.json").status_code == 404
    assert client.post(f"/runs/{other.public_id}/artifacts/{artifact.public_id}/delete/").status_code == 404
    asked = client.post(f"/runs/{other.public_id}/probes/", {"prompt": "a", "checkpoint": artifact.public_id})
    assert asked.status_code == 422 and asked.json()["field"] == "artifact"
    with pytest.raises(BadInput, match="not a checkpoint of this run"):
        services.ask_probe(other, owner, prompts=["a"], sampling={}, artifact=artifact)


def test_roles(run: Run, artifact: Artifact, team: Team, member: Member) -> None:
    viewer, plain, maintainer = (member(team, role) for role in (Role.VIEWER, Role.MEMBER, Role.MAINTAINER))
    base = f"/runs/{run.public_id}/"
    page = signed_in(viewer).get(base + "artifacts/").content.decode()
    assert "step-000002" in page and "/delete/" not in page and "/runs/new/?clone=" not in page
    assert signed_in(viewer).post(base + "probes/", {"prompt": "a"}).status_code == 403
    assert signed_in(plain).post(base + "probes/", {"prompt": "a"}).status_code == 201
    for refused in (viewer, plain):
        assert signed_in(refused).post(f"{base}artifacts/{artifact.public_id}/delete/").status_code == 403
        with pytest.raises(NotAllowed):
            services.delete_artifact(artifact, refused)
    assert "/delete/" in signed_in(maintainer).get(base + "artifacts/").content.decode()
    Membership.unscoped.filter(user=plain).delete()
    with pytest.raises(NotAllowed):
        services.cancel_probe(Probe.unscoped.get(), plain)


# --- where


@pytest.mark.parametrize(
    "path", ["/etc", "/etc/passwd", "../../../..", "..", ".", "checkpoints/../../../other/attempt-1", "\x00", "a" * 999]
)
def test_a_path_outside_the_runs_folder_is_not_believed(path: str, artifact: Artifact, owner: User, settings: Any, driver: Driver) -> None:
    (settings.RUNS_DIR / "other" / "attempt-1").mkdir(parents=True)
    artifact.path = path
    if path == ".":
        artifact.path = str(settings.RUNS_DIR / artifact.run.public_id)
    with pytest.raises(places.NotHere):
        places.locate(artifact)
    with pytest.raises(places.NotHere):
        services.ask_export(artifact, owner)
    with pytest.raises(places.NotHere):
        services.check_artifact(artifact, owner)


def test_a_link_out_of_the_folder_is_not_followed(artifact: Artifact, owner: User, tmp_path: Path, exporter: None) -> None:
    secret = tmp_path / "secret"
    secret.mkdir()
    (secret / "key").write_text("top secret")
    folder = Path(artifact.path)
    (folder.parent / "step-000009").symlink_to(secret)
    artifact.path = str(folder.parent / "step-000009")
    with pytest.raises(places.NotHere):
        places.locate(artifact)
    artifact.path = str(folder)
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.safetensors").symlink_to(secret / "key")
    with pytest.raises(places.Damaged, match="no plain file"):
        services.check_artifact(artifact, owner)
    export = services.ask_export(artifact, owner)
    assert exporting.make(export.public_id) is False
    export.refresh_from_db()
    assert export.state == JobState.FAILED and export.problem and "no plain file" in export.problem["message"]
    assert (
        list((folder.parent.parent.parent / "exports").glob("*.zip")) == [] if (folder.parent.parent.parent / "exports").exists() else True
    )


def test_fork_from_it_opens_the_form_with_the_checkpoint_chosen(artifact: Artifact, owner: User) -> None:
    client = signed_in(owner)
    rows = client.get(f"/runs/{artifact.run.public_id}/artifacts/").content.decode()
    link = html.unescape(next(iter(re.findall(r'href="(/runs/new/[^"]+)">Fork from it', rows))))
    page = client.get(link).content.decode()
    assert f'<option value="{artifact.public_id}" selected>' in page and "(from step 2)" in page


def test_checkpoints_the_run_itself_let_go_are_replaced_not_missing(artifact: Artifact, driver: Driver) -> None:
    folder = Path(driver.attempt.out_dir)
    for step in (3, 4, 5):
        checkpoint(driver, folder, step)
    for step in (2, 4):
        shutil.rmtree(folder / "checkpoints" / f"step-{step:06d}")
    told = {row["artifact"].step: (row["state"], row.get("kept")) for row in selectors.checkpoints(artifact.run)}
    assert told == {5: ("complete", None), 4: ("missing", None), 3: ("complete", None), 2: ("replaced", 2)}


def test_a_checkpoint_of_another_machine_says_so(artifact: Artifact, owner: User) -> None:
    shutil.rmtree(artifact.path)
    assert selectors.checkpoints(artifact.run)[0]["state"] == "missing"
    Attempt.unscoped.filter(pk=artifact.attempt_id).update(out_dir="")
    artifact = selectors.artifact_of(artifact.run, artifact.public_id)  # type: ignore[assignment]
    assert selectors.checkpoints(artifact.run)[0]["state"] == "elsewhere"
    with pytest.raises(places.NotHere, match="another machine"):
        services.ask_export(artifact, owner)


# --- files


def test_an_adapter_is_made_once_and_taken_away(artifact: Artifact, owner: User, exporter: None, woken: list[Any]) -> None:
    client = signed_in(owner)
    base = f"/runs/{artifact.run.public_id}/artifacts/"
    assert client.get(f"{base}{artifact.public_id}/download/").status_code == 404
    assert client.post(f"{base}{artifact.public_id}/export/", {"from": "page"})["Location"] == base
    assert "being made ready" in client.get(base).content.decode()
    again = services.ask_export(artifact, owner)
    assert Export.unscoped.count() == 1 and exporting.make(again.public_id) is True and exporting.make(again.public_id) is False
    again.refresh_from_db()
    assert again.result and again.result.kind == "export" and again.result.step == 2 and again.card == CARD
    page = client.get(base + "?rows=1").content.decode()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page and "<script" not in page
    reply = client.get(f"{base}{again.result.public_id}/download/")
    assert reply["Content-Type"] == "application/zip" and reply["X-Content-Type-Options"] == "nosniff"
    assert reply["Content-Disposition"].startswith("attachment") and "sandbox" in reply["Content-Security-Policy"]
    body = b"".join(reply.streaming_content)  # type: ignore[attr-defined]
    assert len(body) == int(reply["Content-Length"]) == again.result.bytes
    saved = Path(artifact.path).parent / "fetched.zip"
    saved.write_bytes(body)
    with zipfile.ZipFile(saved) as archive:
        assert archive.namelist() == ["step-000002/README.md", "step-000002/adapter_model.safetensors"]
    assert services.check_artifact(again.result, owner)["files"] == 1
    services.ask_export(artifact, owner)
    again.refresh_from_db()
    assert again.state == JobState.DONE
    Path(again.result.path).unlink()
    assert client.get(f"{base}{again.result.public_id}/download/").status_code == 404
    services.ask_export(artifact, owner)
    again.refresh_from_db()
    assert again.state == JobState.QUEUED


@pytest.mark.django_db(transaction=True)
async def test_a_download_streams_under_asgi(run: Run, artifact: Artifact, owner: User, exporter: None) -> None:
    from asgiref.sync import sync_to_async

    export = await sync_to_async(services.ask_export)(artifact, owner)
    await sync_to_async(exporting.make)(export.public_id)
    result = await Artifact.unscoped.aget(kind="export")
    client = AsyncClient()
    await client.aforce_login(owner)
    reply = await client.get(f"/runs/{run.public_id}/artifacts/{result.public_id}/download/")
    assert reply.is_async and len(b"".join([piece async for piece in reply.streaming_content])) == result.bytes  # type: ignore[attr-defined, union-attr]


def test_an_exporter_that_fails_says_why(artifact: Artifact, owner: User, monkeypatch: pytest.MonkeyPatch) -> None:
    export = services.ask_export(artifact, owner)
    said = subprocess.CompletedProcess([], 2, "", "noise\nerror: CHECKPOINT: is no checkpoint -> name a folder\n")
    monkeypatch.setattr(exporting.subprocess, "run", lambda *a, **k: said)
    assert exporting.make(export.public_id) is False
    export.refresh_from_db()
    assert export.problem == {"message": "CHECKPOINT: is no checkpoint", "cure": "name a folder"}
    page = signed_in(owner).get(f"/runs/{artifact.run.public_id}/artifacts/").content.decode()
    assert "CHECKPOINT: is no checkpoint" in page and "Try again" in page


def test_a_forgotten_export_is_woken_and_a_cut_off_one_ends(artifact: Artifact, owner: User, woken: list[Any]) -> None:
    export = services.ask_export(artifact, owner)
    long_ago = timezone.now() - timedelta(hours=1)
    Export.unscoped.update(state_since=long_ago)
    exporting.advance(lambda: None)
    exporting.advance(lambda: None)
    assert woken.count((services.EXPORT_TASK, export.public_id)) == 1
    Export.unscoped.update(state=JobState.RUNNING, state_since=long_ago)
    exporting.advance(lambda: None)
    export.refresh_from_db()
    assert export.state == JobState.FAILED and export.problem and export.problem["cure"]


def test_verify_finds_a_changed_byte_and_a_missing_file(artifact: Artifact, owner: User) -> None:
    assert services.check_artifact(artifact, owner) == {"files": 3, "bytes": 7004}
    client = signed_in(owner)
    address = f"/runs/{artifact.run.public_id}/artifacts/{artifact.public_id}/verify/"
    assert "All 3 files agree" in client.post(address, {"from": "page"}, follow=True).content.decode()
    weights = Path(artifact.path) / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"x")
    assert "is not what was recorded" in client.post(address, {"from": "page"}, follow=True).content.decode()
    (Path(artifact.path) / "MANIFEST.json").write_text("{")
    with pytest.raises(places.Damaged):
        services.check_artifact(artifact, owner)
    shutil.rmtree(artifact.path)
    with pytest.raises(places.NotHere):
        services.check_artifact(artifact, owner)
    artifact.refresh_from_db()
    assert artifact.state == "missing"


@pytest.mark.parametrize(
    "text", ["[]", '{"files": 3}', '{"files": {"../../x": {"bytes": 1, "sha256": "0"}}}', '{"files": {"a": null}}', "x" * 10]
)
def test_a_manifest_that_lies_does_no_harm(text: str, artifact: Artifact, owner: User) -> None:
    (Path(artifact.path) / "MANIFEST.json").write_text(text)
    Artifact.unscoped.update(sha256="")
    artifact.refresh_from_db()
    assert isinstance(selectors.checkpoints(artifact.run)[0]["files"], list)
    with pytest.raises(places.Damaged):
        services.check_artifact(artifact, owner)


def test_deleting(
    artifact: Artifact, driver: Driver, owner: User, exporter: None, django_capture_on_commit_callbacks: Callable[..., Any]
) -> None:
    with pytest.raises(WrongState, match="goes on"):
        services.delete_artifact(artifact, owner)
    over(artifact.run)
    probe = services.ask_probe(artifact.run, owner, prompts=["a"], sampling={}, artifact=artifact)
    with pytest.raises(WrongState, match="probe reads it"):
        services.delete_artifact(artifact, owner)
    services.cancel_probe(probe, owner)
    export = services.ask_export(artifact, owner)
    with pytest.raises(WrongState, match="export reads it"):
        services.delete_artifact(artifact, owner)
    exporting.make(export.public_id)
    export.refresh_from_db()
    assert export.result is not None
    zipped, folder = Path(export.result.path), Path(artifact.path)
    artifact.run.refresh_from_db()
    with django_capture_on_commit_callbacks(execute=True):
        services.delete_artifact(artifact, owner)
    assert not folder.exists() and not zipped.exists() and not list(folder.parent.iterdir())
    artifact.refresh_from_db()
    assert artifact.state == "deleted"
    with pytest.raises(WrongState, match="deleted already"):
        services.delete_artifact(artifact, owner)
    assert "deleted" in signed_in(owner).get(f"/runs/{artifact.run.public_id}/artifacts/").content.decode()


# --- probes


@pytest.mark.parametrize(
    "data, field",
    [
        ({}, "prompts"),
        ({"prompt": "  \n"}, "prompts"),
        ({"prompt": ["a"] * 5}, "prompts"),
        ({"prompt": "a" * 8001}, "prompts"),
        ({"prompt": "a", "temperature": "hot"}, "temperature"),
        ({"prompt": "a", "temperature": "nan"}, "temperature"),
        ({"prompt": "a", "temperature": "0"}, "temperature"),
        ({"prompt": "a", "top_p": "0"}, "top_p"),
        ({"prompt": "a", "max_new_tokens": "1e3"}, "max_new_tokens"),
        ({"prompt": "a", "max_new_tokens": "513"}, "max_new_tokens"),
        ({"prompt": "a", "seed": "-1"}, "seed"),
        ({"prompt": "a", "checkpoint": "../../etc"}, "artifact"),
    ],
)
def test_a_bad_probe_names_its_field(data: dict[str, Any], field: str, run: Run, owner: User) -> None:
    reply = signed_in(owner).post(f"/runs/{run.public_id}/probes/", data)
    assert reply.status_code == 422 and reply.json()["field"] == field and reply.json()["cure"]
    assert not Probe.unscoped.exists()


def test_a_team_may_have_so_many_waiting(run: Run, owner: User) -> None:
    for _ in range(services.WAITING_A_TEAM):
        services.ask_probe(run, owner, prompts=["a"], sampling={}, artifact=None)
    with pytest.raises(QuotaReached):
        services.ask_probe(run, owner, prompts=["a"], sampling={}, artifact=None)
    assert signed_in(owner).post(f"/runs/{run.public_id}/probes/", {"prompt": "a"}).status_code == 409


def asked(artifact: Artifact, owner: User) -> Probe:
    return services.ask_probe(artifact.run, owner, prompts=["3 + 4 =\u2028"], sampling={"seed": "3"}, artifact=artifact)


def test_a_probe_is_launched_once_answered_and_read(artifact: Artifact, owner: User, ray: dict[str, Any]) -> None:
    probe = asked(artifact, owner)
    assert probing.launch(probe.public_id) is True and probing.launch(probe.public_id) is False
    ((submission, command),) = ray["submitted"]
    assert submission == f"probe-{probe.public_id}" and " -m workers probe " in command
    spec = json.loads((probing.folder_of(probe) / "spec.json").read_text())
    assert spec["checkpoint"] == artifact.path and spec["sampling"]["seed"] == 3 and spec["prompts"] == ["3 + 4 =\u2028"]
    assert set(spec) == {"model", "checkpoint", "prompts", "max_new_tokens", "sampling", "system_prompt", "out"}
    assert oct((probing.folder_of(probe) / "spec.json").stat().st_mode & 0o777) == "0o600"
    probing.advance(lambda: None)
    probe.refresh_from_db()
    assert probe.state == JobState.RUNNING
    Path(spec["out"]).write_text(json.dumps(ANSWER))
    probing.advance(lambda: None)
    got = signed_in(owner).get(f"/runs/{artifact.run.public_id}/probes/{probe.public_id}.json").json()
    assert got["state"] == "done" and got["result"]["answers"][0]["trained"]["completion"] == "7" and got["seconds"] >= 0
    listed = signed_in(owner).get(f"/runs/{artifact.run.public_id}/probes.json").json()
    assert "result" not in listed["probes"][0] and listed["may"] and listed["checkpoints"][0]["id"] == artifact.public_id
    with pytest.raises(WrongState):
        services.cancel_probe(probe, owner)


def test_two_of_a_team_run_and_the_rest_waits_its_turn(artifact: Artifact, owner: User, ray: dict[str, Any]) -> None:
    made = [asked(artifact, owner) for _ in range(3)]
    assert [probing.launch(probe.public_id) for probe in made] == [True, True, False]
    Probe.unscoped.filter(pk=made[0].pk).update(state=JobState.DONE)
    Probe.unscoped.update(state_since=timezone.now() - timedelta(seconds=30))
    probing.advance(lambda: None)
    assert len(ray["submitted"]) == 3


@pytest.mark.parametrize(
    "status, lines, words",
    [
        ("FAILED", "x\nerror: model.path: is not there (given: 'm') -> prepare it", "model.path: is not there (given: 'm')"),
        ("FAILED", "Traceback\nMemoryError", "MemoryError"),
        ("SUCCEEDED", "", "no last words"),
        (ABSENT, "", "vanished"),
    ],
)
def test_a_job_without_an_answer_ends_in_words(
    status: str, lines: str, words: str, artifact: Artifact, owner: User, ray: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probing.RayJobs, "last_lines", lambda *_: lines.splitlines())
    probe = asked(artifact, owner)
    probing.launch(probe.public_id)
    ray["status"] = status
    if status == ABSENT:  # a job that is just being submitted is not there yet either
        probing.advance(lambda: None)
        probe.refresh_from_db()
        assert probe.state == JobState.RUNNING
        Probe.unscoped.filter(pk=probe.pk).update(state_since=timezone.now() - probing.BEING_SUBMITTED)
        probing._asked.clear()
    probing.advance(lambda: None)
    probe.refresh_from_db()
    assert probe.state == JobState.FAILED and probe.problem and words in probe.problem["message"] and probe.problem["cure"]


def test_cancel_timeout_and_a_ray_that_is_away(artifact: Artifact, owner: User, ray: dict[str, Any], settings: Any) -> None:
    probe, slow, late = (asked(artifact, owner) for _ in range(3))
    probing.launch(probe.public_id)
    probing.launch(slow.public_id)
    services.cancel_probe(probe, owner)
    Probe.unscoped.filter(pk=slow.pk).update(state_since=timezone.now() - timedelta(hours=1))
    probing.advance(lambda: None)
    probe.refresh_from_db()
    slow.refresh_from_db()
    assert probe.state == JobState.CANCELLED and slow.state == JobState.FAILED and len(ray["stopped"]) == 2
    settings.RAY_ADDRESS = "http://127.0.0.1:1"
    assert probing.launch(late.public_id) is False
    late.refresh_from_db()
    assert late.state == JobState.QUEUED and late.problem and late.problem["type"] == "RayUnreachable"
    Probe.unscoped.filter(pk=late.pk).update(created_at=timezone.now() - timedelta(hours=1))
    probing.advance(lambda: None)
    late.refresh_from_db()
    assert late.state == JobState.FAILED


def test_a_ray_that_refuses_ends_the_probe(artifact: Artifact, owner: User, ray: dict[str, Any]) -> None:
    ray |= {"code": 400, "error": "bad runtime_env"}
    probe = asked(artifact, owner)
    assert probing.launch(probe.public_id) is False
    probe.refresh_from_db()
    assert probe.state == JobState.FAILED and probe.problem and "Ray refused" in probe.problem["message"]


def test_the_files_tab_leads_to_every_table_in_every_format(run: Run, owner: User) -> None:
    client = Client()
    client.force_login(owner)
    for page in (f"/runs/{run.public_id}/", f"/runs/{run.public_id}/artifacts/"):
        links = {html.unescape(link) for link in re.findall(r'href="(/api/v1/runs/[^"]+/export[^"]*)"', client.get(page).content.decode())}
        assert len(links) == 12, page
    for link in links:
        answer = client.get(link)
        assert answer.status_code == 200 and "attachment" in answer["Content-Disposition"], link
