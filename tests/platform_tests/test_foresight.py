"""Forecasts: which run they stand on, what is answered without one, what is kept with a run, and the way through the real planner."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from celery.exceptions import Retry
from django.core.cache import cache
from django.test import Client

from headrace import cli
from headrace.compare.races.models import Race
from headrace.dispatch.models import Cluster
from headrace.experiments import foresight, foresight_words, lifecycle, planner, services, tasks, wake
from headrace.experiments.models import Attempt, Project, Run
from headrace.teams.models import Role, Team, User
from headrace.telemetry.models import LatestState
from tests.platform_tests.race_rig import FORM
from tests.platform_tests.test_new_run import form
from tests.workers.told_runs import told_run
from workers.contract import loading
from workers.planner.costs import Costs
from workers.planner.speeds import Tabled

Start = Callable[..., Run]
Member = Callable[..., User]
TOLD: dict[str, Any] = {
    **{"samples_per_s": 12.5, "step_s": 5.12, "overlap": 0.8, "wall_s": 3725.0, "budget_steps": 700, "gpu_hours": 2.0},
    **{"lag": {"mean": 1.25, "p95": 2, "max": 3}, "buffer_depth": {"mean": 4.0, "unit": "group"}, "dropped_share": 0.0, "memory": None},
    "idle": {"generators": {"wait_depth_bound": 0.2, "wait_sync": 0.1}, "trainer": {}},
}


@pytest.fixture(autouse=True)
def _fresh(settings: Any, tmp_path: Path) -> Any:
    settings.RUNS_DIR = tmp_path / "runs"
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Every command line of the planner, which answers what is in `TOLD`."""
    seen: list[list[str]] = []

    def run(argv: list[str], **options: Any) -> subprocess.CompletedProcess[str]:
        assert argv[:3] == [sys.executable, "-m", "workers"] and not options.get("shell")
        assert not [name for name in options["env"] if "SECRET" in name or name.startswith("HEADRACE")]
        seen.append(argv[3:])
        if argv[3] == "calibrate":
            Path(argv[argv.index("--out") + 1]).write_text("{}")
        else:
            assert json.loads(Path(argv[4]).read_text())["model"]
        return subprocess.CompletedProcess(argv, 0, json.dumps(TOLD), "")

    monkeypatch.setattr(planner.subprocess, "run", run)
    return seen


@pytest.fixture
def finished(start: Start, tmp_path: Path) -> Start:
    """finished(team) makes a run that is over and whose folder is here."""

    def make(team: Team, **fields: Any) -> Run:
        run = start(team, **fields)
        lifecycle.transition(run, "launching")
        attempt = run.attempts.get()
        folder = tmp_path / "runs" / run.public_id / "attempt-1"
        (folder / "spool").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps(run.config.data))
        Attempt.unscoped.filter(pk=attempt.pk).update(out_dir=str(folder))
        lifecycle.attempt_finished(attempt, "succeeded")
        run.refresh_from_db()
        return run

    return make


@pytest.fixture
def browser(client: Client, team: Team, member: Member) -> Client:
    Project.unscoped.create(team=team, name="P", slug="p")
    client.force_login(member(team, Role.OWNER))
    return client


def predict(browser: Client, **changes: Any) -> dict[str, Any]:
    reply = browser.post("/runs/new/forecast.json", dict(form(**changes).lists()))
    assert reply.status_code == 200
    found: dict[str, Any] = reply.json()
    assert set(found) == {"source", "why", "predicted"}
    return found


def test_without_a_finished_run_nothing_is_predicted(
    browser: Client, team: Team, other_team: Team, start: Start, finished: Start, asked: Any
) -> None:
    start(team)
    finished(other_team)
    assert predict(browser) == {"source": None, "why": foresight.NONE_YET, "predicted": None}
    assert asked == [], "a run of another team is not even looked at"


def test_the_newest_run_is_calibrated_once_and_every_config_is_forecast_once(
    browser: Client, team: Team, finished: Start, asked: Any
) -> None:
    finished(team, name="old")
    source = finished(team, name="new")
    found = predict(browser)
    assert found["source"] == {"id": source.public_id, "name": "new"} and found["why"] is None
    assert Path(source.attempts.get().out_dir, "calibration.json").is_file()
    assert not list(Path(source.attempts.get().out_dir).glob(".calibration*")), "what was written aside has got its name"
    predict(browser)
    assert [line[0] for line in asked] == ["calibrate", "forecast"]
    predict(browser, budget__steps="77")
    assert [line[0] for line in asked] == ["calibrate", "forecast", "forecast"]


def test_the_figures_in_words(browser: Client, team: Team, finished: Start, asked: Any) -> None:
    finished(team)
    rows = {row["label"]: row["value"] for row in predict(browser)["predicted"]["rows"]}
    assert rows == {
        "Samples a second": "12.5",
        "Seconds a step": "5.12",
        "The whole budget": "1 h 02 min for 700 steps",
        "Engines idle": "30 %, most of it while the bound on work ahead is reached",
        "Trainer idle": "never",
        "Lag": "1.25 on average, 95th percentile 2",
        "Buffer": "4 groups on average",
        "Dropped": "0.0 %",
    }
    Cluster.unscoped.create(team=None, name="this server's cluster", address="x", price_per_device_hour=36, currency="EUR")
    found = predict(browser)["predicted"]
    assert found["money"] == {"amount": 72.0, "currency": "EUR"}


def test_what_differs_from_the_measured_run_is_said(browser: Client, team: Team, finished: Start, asked: Any) -> None:
    source = finished(team)
    config = loading.resolve(None, "demo", ["transport.kind=filesystem"])
    assert foresight.unlike(source, config) == [f"transport.kind filesystem, measured with {source.config.data['transport']['kind']}"]
    assert foresight.unlike(source, loading.resolve(None, "demo")) == []


def test_a_run_of_another_model_and_one_without_its_events_are_no_source(team: Team, finished: Start, asked: Any) -> None:
    config = loading.resolve(None, "demo", ["model.path=elsewhere/model"])
    gone = finished(team)
    assert foresight.answer(team, config)["why"] == foresight.NONE_YET
    Attempt.unscoped.filter(run=gone).update(out_dir="/nowhere/at/all")
    assert foresight.answer(team, loading.resolve(None, "demo"))["why"] == foresight.NONE_YET


@pytest.mark.parametrize(
    ("done", "words"),
    [
        (
            subprocess.CompletedProcess([], 2, "", "note\nerror: run: has trained too little -> give a longer run\n"),
            "has trained too little. To do: give",
        ),
        (subprocess.CompletedProcess([], 0, "no json", ""), "could not be read"),
        (subprocess.TimeoutExpired("x", 1), "took longer than"),
        (OSError(12, "Cannot allocate memory"), "Cannot allocate memory"),
    ],
)
def test_a_planner_that_fails_is_an_answer(
    browser: Client, team: Team, finished: Start, monkeypatch: pytest.MonkeyPatch, done: Any, words: str
) -> None:
    source = finished(team)
    Path(source.attempts.get().out_dir, "calibration.json").write_text("{}")
    calls: list[int] = []

    def run(argv: Any, **options: Any) -> Any:
        calls.append(1)
        if isinstance(done, Exception):
            raise done
        return done

    monkeypatch.setattr(planner.subprocess, "run", run)
    found = predict(browser)
    assert found["predicted"] is None and found["source"]["id"] == source.public_id
    assert found["why"].startswith("No forecast: ") and words in found["why"]
    predict(browser)
    assert calls == [1], "the same question is not asked again at once"


def test_a_run_that_cannot_be_calibrated_gives_way_to_the_one_before(
    team: Team, finished: Start, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = finished(team, name="old"), finished(team, name="new")
    real = planner.calibrate

    def calibrate(folder: Path, target: Path, **options: Any) -> None:
        if new.public_id in str(folder):
            raise planner.PlannerFailed("has trained too little", cure="give a longer run")
        real(folder, target, **options)

    monkeypatch.setattr(planner, "calibrate", calibrate)
    config = loading.resolve(None, "demo")
    assert foresight.answer(team, config)["source"]["id"] == old.public_id
    Run.unscoped.filter(pk=old.pk).update(deleted_at=old.created_at)
    told = foresight.answer(team, config)
    assert told["why"] == "The run “new” could not be calibrated: Has trained too little. To do: give a longer run."


def test_one_at_a_time(team: Team, finished: Start, asked: Any) -> None:
    finished(team)
    config = loading.resolve(None, "demo")
    with planner._one, pytest.raises(planner.PlannerBusy):
        foresight.foresee(team, config, wait_s=0.0)
    assert foresight.answer(team, config)["predicted"]


def test_a_form_with_problems_is_not_forecast(browser: Client, asked: Any) -> None:
    assert "problems" in predict(browser, batch__prompts="many")["why"]


def test_who_may_not_start_runs_gets_no_forecast(client: Client, team: Team, member: Member) -> None:
    assert client.post("/runs/new/forecast.json", {}).status_code == 302
    client.force_login(member(team, Role.VIEWER))
    assert client.post("/runs/new/forecast.json", dict(form().lists())).status_code == 403
    assert client.get("/runs/new/forecast.json").status_code == 405


# --- what is kept with a run ----------------------------------------------------------------------------------------------------------


def test_a_launch_asks_for_a_forecast_whatever_its_door(
    team: Team, start: Start, monkeypatch: pytest.MonkeyPatch, django_capture_on_commit_callbacks: Any
) -> None:
    woken: list[str] = []
    monkeypatch.setattr(services, "wake_launcher", lambda attempt: True)
    monkeypatch.setattr(services, "wake_forecast", lambda run: woken.append(run.public_id))
    with django_capture_on_commit_callbacks(execute=True):
        runs = [start(team, source=source) for source in ("web", "api", "cli", "demo")]
        services.create_upload(team=team, user=None, data={"preset": "demo"}, name="up", idempotency_key="u")
    assert woken == [run.public_id for run in runs]


def test_a_broker_that_is_away_fails_no_launch(team: Team, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(*args: Any, **options: Any) -> None:
        raise ConnectionError("away")

    monkeypatch.setattr("headrace.celery.app.send_task", away)
    assert wake.wake_forecast(start(team)) is False


def test_the_task_keeps_what_was_predicted(team: Team, start: Start, finished: Start, asked: Any, browser: Client) -> None:
    run = start(team)
    tasks.forecast(run.public_id)
    tasks.forecast("aaaaaaaaaaaa")
    run.refresh_from_db()
    assert run.forecast is None, "no run has finished: nothing is predicted"
    source = finished(team)
    tasks.forecast(run.public_id)
    run.refresh_from_db()
    assert run.forecast["source"]["id"] == source.public_id and run.forecast["predicted"]["samples_per_s"] == 12.5
    assert browser.get(f"/api/v1/runs/{run.public_id}").json()["forecast"] == run.forecast
    asked.clear()
    tasks.forecast(run.public_id)
    assert asked == [], "a doubled message changes nothing"


def test_a_run_is_no_source_of_its_own(team: Team, finished: Start, asked: Any) -> None:
    run = finished(team)
    assert foresight.fill(run) is False and asked == []


def test_the_task_steps_back_while_another_forecast_is_made(team: Team, start: Start, finished: Start, asked: Any) -> None:
    finished(team)
    with planner._one, pytest.raises((Retry, planner.PlannerBusy)):
        tasks.forecast(start(team).public_id)


def test_predicted_and_actual_stand_side_by_side(team: Team, start: Start, finished: Start, asked: Any, browser: Client) -> None:
    run = start(team)
    assert "Predicted and actual" not in browser.get(f"/runs/{run.public_id}/").content.decode()
    source = finished(team)
    foresight.fill(run)
    page = browser.get(f"/runs/{run.public_id}/").content.decode()
    assert "Predicted and actual" in page and f"/runs/{source.public_id}/" in page and "12.5" in page
    lanes = {"trainer": {"startup": 100.0, "evaluation": 5.0, "train": 32.0, "wait_buffer_empty": 8.0}}
    data = {"step": 10, "time": {"lanes": lanes}, "samples": {"trained": 640}, "lag": {"mean": 1.0}}
    LatestState.unscoped.update_or_create(attempt=run.attempts.get(), defaults={"state": {"seq": 9, "t": 1.0, "data": data}})
    run.refresh_from_db()
    rows = foresight_words.compared(run.forecast, data, 64)
    assert [(row["label"], row["predicted"], row["actual"], row["off"]) for row in rows] == [
        ("Samples a second", "12.5", "16", "+28 %"),
        ("Seconds a step", "5.12", "4", "−22 %"),
        ("Lag, mean", "1.25", "1.00", "−20 %"),
        ("Trainer waits", "0 %", "20 %", "–"),
    ]
    assert "+28 %" in browser.get(f"/runs/{run.public_id}/").content.decode()
    assert [row["actual"] for row in foresight_words.compared(run.forecast, data, None)][:2] == ["–", "–"]
    assert foresight_words.compared(None, data, 64) == []


# --- the command line -------------------------------------------------------------------------------------------------------------------


def test_the_planner_from_the_one_command_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines: list[list[str]] = []
    monkeypatch.setattr(cli.subprocess, "run", lambda argv, **_: lines.append(argv[3:]) or subprocess.CompletedProcess(argv, 7))
    for given in (["--list"], ["plan", "--list"], ["race", "--scenario", "balanced"], ["forecast", "run.json", "--scenario", "mine.json"]):
        assert cli.main(["plan", *given]) == 7
    assert [line[0] for line in lines] == ["plan", "plan", "race", "forecast"] and lines[0] == lines[1]
    assert cli.main(["plan", "--help"]) == 0 and "headrace plan sweep" in capsys.readouterr().out
    assert cli.main(["plan"]) == 2 and len(lines) == 4


# --- races ------------------------------------------------------------------------------------------------------------------------------


RACE = {**FORM, "action": "plan"}


def test_a_race_is_planned_before_it_is_run(
    team: Team, finished: Start, browser: Client, asked: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = browser.post("/races/new/", RACE).content.decode()
    assert page.count(foresight.NONE_YET) == 1 and 'id="planned-title"' in page
    source = finished(team)
    for path in ("/races/new/", "/races/preview/"):
        page = browser.post(path, RACE).content.decode()
        assert page.count("<td>12.5</td>") == 2 and f"/runs/{source.public_id}/" in page
    assert [line[0] for line in asked] == ["calibrate", "forecast", "forecast"], "one a contender, of one seed, once"
    assert 'id="planned-title"' not in browser.post("/races/new/", {**RACE, "seeds": "none"}).content.decode()
    assert 'id="planned-title"' not in browser.post("/races/preview/", {**RACE, "action": ""}).content.decode()
    monkeypatch.setattr("headrace.compare.races.planning.LONGEST_S", -1.0)
    assert "Plan again for the rest" in browser.post("/races/preview/", RACE).content.decode()
    assert not Race.unscoped.exists()


# --- the real planner -------------------------------------------------------------------------------------------------------------------


def test_the_whole_way_through_the_real_planner(team: Team, finished: Start, browser: Client) -> None:
    source = finished(team)
    folder = Path(source.attempts.get().out_dir)
    told_run(folder, Tabled(running=(1.0, 64.0), seconds=(0.01, 0.03)), Costs(token_s=2e-4, batch_s=0.3), steps=6)
    found = predict(browser)
    assert found["why"] is None and found["source"]["id"] == source.public_id
    assert found["predicted"]["samples_per_s"] > 0 and found["predicted"]["idle"]["trainer"]["share"] >= 0
    assert json.loads((folder / "calibration.json").read_text())["generation"]
