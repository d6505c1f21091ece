"""The way to a run beyond one form: the live check, the same by command and API, forks, sweeps, and what is known ahead."""

from __future__ import annotations

import json
import re
import shlex
import uuid
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.http import QueryDict
from django.test import Client
from django.utils import timezone

from headrace.dispatch.models import Cluster, TeamQuota
from headrace.experiments import equivalents, forecast, lifecycle, services, sweep_reads, sweeps
from headrace.experiments.draft import can_fork
from headrace.experiments.models import Artifact, Attempt, Experiment, Project, Run, Sweep
from headrace.experiments.problems import BadInput, IdempotencyConflict, QuotaReached
from headrace.experiments.sweeps import Plan
from headrace.teams.models import Role, Team, User
from headrace.teams.services import NotAllowed
from headrace.telemetry.models import Series
from tests.platform_tests.test_forms import posted
from workers.contract import loading, presets
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

Start = Callable[..., Run]
Member = Callable[..., User]
CHANGES = ["buffer.depth=96", "sampling.temperature=0.8", "evaluation.at_start=false", 'loss.kl={"coefficient": 0.02}', "budget.wall_s=60"]


@pytest.fixture
def ada(team: Team, member: Member) -> User:
    return member(team, Role.OWNER, name="Ada")


@pytest.fixture
def browser(client: Client, ada: User) -> Client:
    client.force_login(ada)
    return client


@pytest.fixture
def project(team: Team) -> Project:
    return Project.unscoped.create(team=team, name="P", slug="p")


def form(preset: str = "demo", extra: dict[str, str] | None = None, **changes: Any) -> QueryDict:
    query = posted(loading.resolve(None, preset=preset).as_json(), **changes)
    query.update({"name": "my run", "idempotency_key": "key-1", "preset_name": preset, **(extra or {})})
    return query


def check(browser: Client, query: QueryDict) -> dict[str, Any]:
    reply = browser.post("/runs/new/check.json", dict(query.lists()))
    assert reply.status_code == 200
    return reply.json()


# --- the live check --------------------------------------------------------------------------------------------------------------


def test_an_untouched_form_is_sound_and_differs_in_nothing(browser: Client, team: Team) -> None:
    answer = check(browser, form())
    assert (answer["ok"], answer["problems"], answer["changes"], answer["compared"]) == (True, [], [], "the preset demo")
    assert answer["digest"] == loading.resolve(None, preset="demo").digest()
    assert not Run.objects.for_team(team).exists()


def test_a_problem_has_its_field_its_input_and_its_cure(browser: Client) -> None:
    answer = check(browser, form(buffer__depth="2", batch__group_size="many", extra={"name": " "}))
    assert not answer["ok"] and answer["changes"] == []
    found = {row["path"]: row for row in answer["problems"]}
    assert found.keys() >= {"name", "batch.group_size", "buffer.depth"}
    assert found["buffer.depth"]["id"] == "field-buffer-depth" and "Set buffer.depth to 8 or more" in found["buffer.depth"]["text"]
    assert found["batch.group_size"]["title"] == "Completions a prompt" and found["name"]["id"] == "run-name"


def test_a_pointless_combination_is_a_warning_with_its_reason(browser: Client) -> None:
    answer = check(browser, form(sampling__top_k="5"))
    [row] = answer["warnings"]
    assert answer["ok"] and row["path"] == "sampling.top_k" and "importance weights are biased" in row["text"]
    assert [change["path"] for change in answer["changes"]] == ["sampling.top_k"]


def test_who_may_check(client: Client, team: Team, member: Member) -> None:
    client.force_login(member(team, Role.VIEWER))
    assert client.post("/runs/new/check.json", {}).status_code == 403
    client.force_login(member(team, Role.MEMBER))
    assert client.get("/runs/new/check.json").status_code == 405
    assert client.post("/runs/new/check.json", {"clone": "aaaaaaaaaaaa"}).status_code == 404
    client.logout()
    assert "/login/" in client.post("/runs/new/check.json", {})["Location"]


def test_a_hostile_form_is_answered(browser: Client) -> None:
    bad = form(extra={"priority": "1e9", "sweep.seeds": "x" * 3000, "sweep.path.1": "a" * 500, "sweep.values.1": "[" * 500})
    answer = check(browser, bad)
    assert {row["path"] for row in answer["problems"]} == {"priority", "sweep.seeds", "sweep.values.1"}
    assert check(browser, QueryDict("name=%00"))["ok"] is False


# --- the same by other doors -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", presets.names())
def test_command_and_call_give_the_same_config(name: str) -> None:
    config = loading.resolve(None, name, CHANGES)
    commands = {row["key"]: row["text"] for row in equivalents.commands(config, "it's a “name”", "http://h")}
    words = shlex.split(commands["workers"].replace("\\\n", " "))
    assert words[:4] == ["python", "-m", "workers", "run"] and words[-2:] == ["--out", "runs/it-s-a-name"]
    given = [words[number + 1] for number, word in enumerate(words) if word == "--set"]
    assert loading.resolve(None, words[words.index("--preset") + 1], given) == config
    body = json.loads(shlex.split(commands["api"].replace("\\\n", " "))[-1])
    assert loading.resolve(body["config"], body["preset"]) == config
    assert body["name"] == "it's a “name”" and "headrace launch" in commands["launch"]


def test_only_what_differs_is_said_and_another_task_says_all_of_itself() -> None:
    config = loading.resolve(None, "demo", ["budget.steps=9"])
    assert equivalents.sets(config, "demo") == ["budget.steps=9"]
    other = loading.resolve(None, "demo", ["environment.dataset=gcd"])
    assert loading.resolve(None, "demo", equivalents.sets(other, "demo")) == other
    bare = RunConfig.model_validate({})
    again = loading.resolve(None, "demo", equivalents.sets(bare, equivalents.base_of(bare)))
    assert again.model_copy(update={"preset": None}) == bare, "a config of no preset stands on the default one"


# --- clone and fork --------------------------------------------------------------------------------------------------------------


def checkpoint(run: Run, step: int, **fields: Any) -> Artifact:
    attempt = run.attempts.get()
    values = {"team": run.team, "run": run, "attempt": attempt, "kind": "checkpoint", "path": f"checkpoints/step-{step:06}", "step": step}
    return Artifact.unscoped.create(**{**values, **fields})


def test_a_clone_is_compared_with_its_parent_live(browser: Client, team: Team, project: Project, start: Start) -> None:
    run = start(team, steps=9)
    query = posted(run.config.data, budget__steps="11")
    query.update({"name": "n", "clone": run.public_id})
    answer = check(browser, query)
    assert answer["compared"] == "the run “a run”"
    assert answer["changes"] == [{"path": "budget.steps", "title": "Steps", "before": "9", "after": "11"}]


@pytest.mark.skipif(not can_fork(), reason="the config of this version has no model.init_from")
def test_a_fork_starts_from_a_checkpoint_of_its_parent(browser: Client, team: Team, project: Project, start: Start) -> None:
    run = start(team, steps=9)
    old, new = checkpoint(run, 3), checkpoint(run, 6)
    checkpoint(run, 9, state="missing")
    page = browser.get(f"/runs/new/?clone={run.public_id}&from={old.public_id}").content.decode()
    assert "checkpoint of step 6" in page and "checkpoint of step 9" not in page and "(from step 3)" in page
    assert re.search(rf'<option value="{old.public_id}" selected>', page)
    query = posted(run.config.data)
    query.update({"name": "fork", "idempotency_key": "f", "clone": run.public_id, "forked_from": new.public_id, "action": "launch"})
    folder = f"{run.attempts.get().out_dir}/checkpoints/step-000006"
    assert [(row["path"], row["after"]) for row in check(browser, query)["changes"]] == [("model.init_from", folder)]
    assert browser.post("/runs/new/", dict(query.lists())).status_code == 302
    child = Run.objects.for_team(team).exclude(pk=run.pk).get()
    assert (child.forked_from, child.parent, child.config.data["model"]["init_from"]) == (new, run, folder)
    # back to the model's own weights: the folder that the choice had written goes with it
    query["forked_from"], query["model.init_from"] = "", folder
    assert check(browser, query)["changes"] == []
    query["forked_from"] = "aaaaaaaaaaaa"
    assert check(browser, query)["problems"][0]["id"] == "run-fork"
    assert browser.get(f"/runs/new/?clone={run.public_id}&from=aaaaaaaaaaaa").status_code == 404


def test_a_checkpoint_of_another_team_does_not_exist(team: Team, other_team: Team, project: Project, start: Start) -> None:
    foreign = checkpoint(start(other_team), 3)
    with pytest.raises(BadInput, match="not in this team"):
        start(team, forked_from=foreign)
    own = checkpoint(start(team), 3)
    with pytest.raises(BadInput, match="does not start from this checkpoint"):
        start(team, forked_from=own)


# --- several times ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "seeds"),
    [("", []), ("7", [7]), ("1-3, 9", [1, 2, 3, 9]), ("5..6,5", [5, 6]), (" 2 , 1 ", [2, 1]), (f"{2**31 - 1}", [2**31 - 1])],
)
def test_seeds_are_read(text: str, seeds: list[int]) -> None:
    assert sweeps.read_seeds(text) == seeds


@pytest.mark.parametrize("text", ["one", "3-1", "1-999", str(2**31), "-1", "1.5", "٣", "1," * 2000])
def test_seeds_that_are_none_are_said(text: str) -> None:
    with pytest.raises(BadInput) as caught:
        sweeps.read_seeds(text)
    assert caught.value.field == "sweep.seeds" and caught.value.cure


def test_values_have_the_types_of_their_field() -> None:
    assert sweeps.read_axis("buffer.depth", "8, 16,16")["values"] == [8, 16]
    assert sweeps.read_axis("loss.dual_clip", "none, 3")["values"] == [None, 3]
    assert sweeps.read_axis("buffer.kind", "bounded, double")["values"] == ["bounded", "double"]
    assert sweeps.read_axis("loss.kl", '[null, {"coefficient": 0.1}]')["values"] == [None, {"coefficient": 0.1}]
    for path, text in (("nothing.here", "1"), ("seed", "1"), ("buffer.depth", ""), ("buffer.depth", "[1"), ("loss.kl", "x")):
        with pytest.raises((BadInput, ConfigError)):
            sweeps.read_axis(path, text)
    with pytest.raises(BadInput, match="varied already"):
        sweeps.read_axis("buffer.depth", "1", taken=["buffer.depth"])


def test_the_grid_names_the_combination_that_cannot_run() -> None:
    config = loading.resolve(None, "demo")
    grid = Plan(seeds=[1, 2], axes=[{"path": "buffer.depth", "values": [8, 16]}, {"path": "optimizer.learning_rate", "values": [1e-4]}])
    made = sweeps.variants(config, grid)
    assert [variant.label for variant in made][:2] == ["depth=8, learning_rate=0.0001, seed 1", "depth=8, learning_rate=0.0001, seed 2"]
    assert len({variant.config.digest() for variant in made}) == grid.count() == 4
    with pytest.raises(ConfigError, match=r"with buffer.depth=2: the buffer"):
        sweeps.variants(config, Plan(axes=[{"path": "buffer.depth", "values": [8, 2]}]))


def test_too_many_runs_are_said_before(browser: Client) -> None:
    answer = check(browser, form(extra={"sweep.seeds": "1-20", "sweep.path.1": "staleness.max_lag", "sweep.values.1": "1,2,3,4"}))
    assert not answer["ok"] and "This makes 80 runs; at most 64" in answer["problems"][0]["text"]


def test_a_sweep_from_the_form_to_its_page(browser: Client, client: Client, team: Team, project: Project, member: Member) -> None:
    extra = {"sweep.seeds": "1-3", "sweep.path.1": "staleness.max_lag", "sweep.values.1": "1, 4", "action": "review"}
    answer = check(browser, form(extra=extra))
    assert answer["ok"] and answer["sweep"]["count"] == 6 and answer["sweep"]["runs"][0] == "max_lag=1, seed 1"
    review = browser.post("/runs/new/", dict(form(extra=extra).lists())).content.decode()
    assert "Launch 6 runs" in review and "max_lag=4, seed 3" in review
    query = form(extra={**extra, "action": "launch"})
    location = browser.post("/runs/new/", dict(query.lists()))["Location"]
    sweep = Sweep.objects.for_team(team).get()
    runs = list(sweep.runs.order_by("pk"))
    assert location == f"/sweeps/{sweep.public_id}/" and len(runs) == 6
    assert {run.group for run in runs} == {sweep.public_id} and [run.seed for run in runs] == [1, 2, 3, 1, 2, 3]
    assert all(run.config.parent == sweep.config for run in runs)
    assert browser.post("/runs/new/", dict(query.lists()))["Location"] == location, "a double click is one sweep"
    assert Run.objects.for_team(team).count() == 6
    query["sweep.seeds"] = "1-2"
    assert b"launched a run already" in browser.post("/runs/new/", dict(query.lists())).content
    # its page: the best by held-out reward first
    for number, run in enumerate(runs[:2]):
        Series.unscoped.create(attempt=run.attempts.get(), name="eval/reward_mean", last_value=0.5 + number / 10, last_step=3)
    page = browser.get(location).content.decode()
    assert f"/compare/?group={sweep.public_id}" in page and "Best by held-out reward" in page
    assert page.index(runs[1].public_id) < page.index(runs[0].public_id)
    assert "<title>" not in browser.get(f"{location}?rows=1").content.decode()
    assert browser.post(f"{location}cancel/").status_code == 302
    assert {run.state for run in sweep.runs.all()} == {"cancelled"}
    assert sweep_reads.context(None, sweep)["state"] == "cancelled"


def test_who_sees_and_ends_a_sweep(client: Client, team: Team, other_team: Team, project: Project, member: Member, ada: User) -> None:
    config = loading.resolve(None, "demo")
    given = {"team": team, "config": config, "plan": Plan(seeds=[1, 2]), "project": project, "name": "s", "idempotency_key": "k"}
    sweep = sweeps.start_sweep(user=ada, **given)
    path = f"/sweeps/{sweep.public_id}/"
    client.force_login(member(other_team, Role.OWNER))
    assert client.get(path).status_code == client.post(f"{path}cancel/").status_code == 404
    client.force_login(member(team, Role.VIEWER))
    assert client.get(path).status_code == 200 and b"Cancel all" not in client.get(path).content
    assert client.post(f"{path}cancel/").status_code == 403
    assert {run.state for run in sweep.runs.all()} == {"queued"}
    with pytest.raises(NotAllowed):
        sweeps.start_sweep(user=member(team, Role.VIEWER), **{**given, "idempotency_key": "v"})
    with pytest.raises(IdempotencyConflict):
        sweeps.start_sweep(user=ada, **{**given, "name": "another"})


def test_all_of_a_sweep_is_queued_or_nothing(team: Team, project: Project, ada: User) -> None:
    TeamQuota.unscoped.create(team=team, most_queued=2)
    given = {"team": team, "user": ada, "config": loading.resolve(None, "demo"), "project": project, "name": "s"}
    with pytest.raises(QuotaReached):
        sweeps.start_sweep(plan=Plan(seeds=[1, 2, 3]), idempotency_key="k", **given)
    assert not Run.objects.for_team(team).exists() and not Sweep.objects.for_team(team).exists()
    for plan in (Plan(seeds=list(range(65))), Plan(errors={"sweep.seeds": ["x"]})):
        with pytest.raises(BadInput):
            sweeps.start_sweep(plan=plan, idempotency_key="k", **given)
    assert sweeps.start_sweep(plan=Plan(seeds=[1, 2]), idempotency_key="k", **given).runs.count() == 2


def test_what_a_sweep_is_follows_from_its_runs(team: Team, project: Project, ada: User, start: Start) -> None:
    first, second = start(team), start(team)
    assert sweep_reads.state_of([first, second]) == "queued"
    lifecycle.transition(first, "launching")
    assert sweep_reads.state_of([first, second]) == "running"
    lifecycle.attempt_finished(first.attempts.get(), "succeeded")
    first.refresh_from_db()
    assert sweep_reads.state_of([first, second]) == "running"
    services.cancel_run(second, None)
    assert sweep_reads.state_of([first, second]) == "ended" and sweep_reads.state_of([first]) == "succeeded"


# --- what is known ahead ---------------------------------------------------------------------------------------------------------


def test_arithmetic_and_what_the_last_one_took(browser: Client, team: Team, other_team: Team, project: Project, start: Start) -> None:
    answer = check(browser, form(budget__steps="10"))["forecast"]
    rows = {row["label"]: row["value"] for row in answer["rows"]}
    assert rows["Samples a step"] == "64 = 8 prompts × 8" and rows["Samples in all"] == "640 in 10 steps"
    assert rows["Devices"] == "2: 1 engine, 1 trainer rank"
    assert answer["last"] is None and answer["queue"]["at_once"] is True
    for where in (team, other_team):
        done = start(where, steps=4)
        lifecycle.transition(done, "launching")
        lifecycle.attempt_finished(done.attempts.get(), "succeeded")
        began = timezone.now() - timedelta(seconds=20 if where == team else 900)
        Attempt.unscoped.filter(run=done).update(started_at=began, ended_at=began + timedelta(seconds=20))
    found = check(browser, form(budget__steps="10"))["forecast"]["last"]
    assert (round(found["seconds_a_step"]), round(found["seconds"]), found["same_batch"], found["money"]) == (5, 50, True, None)
    Cluster.unscoped.create(team=None, name="this server's cluster", address="x", price_per_device_hour=36, currency="EUR")
    assert check(browser, form(budget__steps="10"))["forecast"]["last"]["money"] == "1.00 EUR"
    Run.unscoped.filter(team=team).update(summary={"steps": 2, "startup_s": 12.0})
    found = check(browser, form(budget__steps="10"))["forecast"]["last"]
    assert (found["seconds_a_step"], found["seconds"]) == (4, 52), "start-up counts once, and the steps are those that were done"
    Run.unscoped.filter(team=team).update(summary={})
    assert check(browser, form(batch__prompts="4"))["forecast"]["last"]["same_batch"] is False
    assert check(browser, form(preset="pipelinerl"))["forecast"]["last"] is None, "another preset's time says nothing"


def test_the_aside_says_what_a_launch_would_wait_for(browser: Client, team: Team, start: Start, settings: Any) -> None:
    settings.MAX_RUNS = 1
    lifecycle.transition(start(team), "launching")
    start(team)
    found = forecast.of(team, loading.resolve(None, "demo"))["queue"]
    assert (found["at_once"], found["before"]) == (False, 1) and "at most 1 run at once" in found["why"]


def test_priorities_offered_are_those_one_may_give(client: Client, team: Team, member: Member, project: Project) -> None:
    client.force_login(member(team, Role.MEMBER))
    assert 'value="20"' not in client.get("/runs/new/").content.decode()
    query = form(extra={"priority": "20", "action": "launch", "idempotency_key": uuid.uuid4().hex})
    refused = client.post("/runs/new/", dict(query.lists()))
    assert refused.status_code == 422 and b"does not allow" in refused.content and not Run.objects.for_team(team).exists()
    client.force_login(member(team, Role.MAINTAINER))
    assert '<option value="20"' in client.get("/runs/new/").content.decode()


def test_a_run_joins_an_experiment_of_its_project(browser: Client, team: Team, project: Project) -> None:
    assert 'name="experiment"' not in browser.get("/runs/new/").content.decode(), "there is none to choose"
    question = Experiment.unscoped.create(team=team, project=project, name="Does lag hurt?")
    elsewhere = Experiment.unscoped.create(team=team, project=Project.unscoped.create(team=team, name="Q", slug="q"), name="Other")
    page = browser.get("/runs/new/").content.decode()
    assert "Does lag hurt?" in page and '<optgroup label="Q">' in page
    chosen = {"action": "launch", "project": project.public_id, "experiment": elsewhere.public_id}
    refused = browser.post("/runs/new/", dict(form(extra=chosen).lists()))
    assert "not in this project" in refused.content.decode() and not Run.unscoped.exists()
    browser.post("/runs/new/", dict(form(extra={**chosen, "experiment": question.public_id}).lists()))
    run = Run.unscoped.get()
    assert run.experiment == question
    assert f'value="{question.public_id}" selected' in browser.get(f"/runs/new/?clone={run.public_id}").content.decode()


def test_past_sweeps_are_listed(browser: Client, client: Client, team: Team, other_team: Team, project: Project, member: Member) -> None:
    assert "No sweeps yet" in browser.get("/sweeps/").content.decode()
    plan = Plan(seeds=[1, 2], axes=[{"path": "buffer.depth", "values": [32, 64]}])
    sweep = sweeps.start_sweep(
        team=team, user=None, config=loading.resolve(None, preset="demo"), plan=plan, project=project, name="depths", idempotency_key="s"
    )
    page = browser.get("/sweeps/").content.decode()
    assert f"/sweeps/{sweep.public_id}/" in page and "buffer.depth" in page and "2 seeds" in page and "0 of 4" in page
    assert "depths" not in browser.get("/sweeps/?page=2").content.decode()
    client.force_login(member(other_team, Role.OWNER))
    assert "depths" not in client.get("/sweeps/").content.decode()
