"""A forecast in a real browser: form, review, race and the run that was forecast, by the real planner at the costs of a finished run."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.axe import axe_faults
from tests.e2e.web_rig import WebServer

pytestmark = pytest.mark.e2e
SHOTS = os.environ.get("HEADRACE_TEST_SCREENSHOTS")
FINISHED = "import json, django; django.setup(); from tests.e2e import test_foresight_page as t; print(json.dumps(t.finished()))"


def finished() -> dict[str, str]:
    """Called in the server's environment: a run that is over and has left its events, and one whose forecast it was."""
    from django.conf import settings

    from headrace.experiments import foresight, lifecycle, services
    from headrace.experiments.models import Attempt, Project, Run
    from headrace.teams.models import Team
    from headrace.telemetry.models import LatestState
    from tests.workers.told_runs import told_run
    from workers.planner.costs import Costs
    from workers.planner.speeds import Tabled

    team = Team.objects.get()
    project = Project.objects.for_team(team).get()
    config = services.create_config(team, {"preset": "demo", "budget": {"steps": 12}})
    made: dict[str, Run] = {}
    for name in ("measured", "predicted"):
        made[name] = services.start_run(team=team, user=None, config=config, project=project, name=f"the {name} run", idempotency_key=name)
        lifecycle.transition(made[name], "launching")
    attempt = made["measured"].attempts.get()
    folder = Path(settings.RUNS_DIR) / made["measured"].public_id / "attempt-1"
    folder.mkdir(parents=True)
    told_run(folder, Tabled(running=(1.0, 64.0), seconds=(0.01, 0.03)), Costs(token_s=2e-4, batch_s=0.3, setup_s=0.2), preset="demo")
    Attempt.unscoped.filter(pk=attempt.pk).update(out_dir=str(folder))
    lifecycle.attempt_finished(attempt, "succeeded")
    assert foresight.fill(made["predicted"])
    lanes = {"trainer": {"startup": 9.0, "train": 32.0, "wait_buffer_empty": 8.0}}
    data = {"step": 10, "time": {"lanes": lanes}, "samples": {"trained": 640}, "lag": {"mean": 1.0}}
    LatestState.unscoped.create(attempt=made["predicted"].attempts.get(), state={"seq": 9, "t": 1.0, "data": data})
    return {name: run.public_id for name, run in made.items()}


@pytest.fixture(scope="module")
def runs(server: WebServer, signed_in: str) -> dict[str, str]:
    found: dict[str, str] = json.loads(server.ask(FINISHED).splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def options() -> dict[str, Any]:
    return {"viewport": {"width": 1440, "height": 1000}}


def sound(page: Page, name: str) -> None:
    """axe finds nothing."""
    if SHOTS:
        page.screenshot(path=f"{SHOTS}/{name}.png", full_page=name != "form")
    assert axe_faults(page) == []


def test_the_form_forecasts_and_asks_again_when_it_changes(page: Page, runs: dict[str, str]) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url) if request.url.endswith("forecast.json") else None)
    page.goto("/runs/new/")
    rows = page.locator("#foresight-rows")
    expect(rows).to_contain_text("Samples a second")
    expect(rows).to_contain_text("Trainer idle")
    expect(page.locator("#foresight-source a")).to_have_attribute("href", f"/runs/{runs['measured']}/")
    page.locator("#foresight").scroll_into_view_if_needed()
    sound(page, "form")
    before = rows.inner_text()
    page.locator("#run-name").fill("another name changes no config")
    expect(page.locator("#check-state")).to_have_text("Ready to launch")
    page.locator("#field-batch-group-size").fill("4")
    expect(rows).not_to_have_text(before, use_inner_text=True)
    expect(rows).not_to_have_class("sums greyed")
    assert len(asked) == 2
    page.get_by_role("button", name="Review").click()
    expect(page.locator("#foresight-rows")).to_contain_text("Samples a second")
    sound(page, "review")


def test_a_run_shows_what_was_predicted_of_it(page: Page, runs: dict[str, str]) -> None:
    page.goto(f"/runs/{runs['predicted']}/")
    card = page.locator("section", has=page.get_by_role("heading", name="Predicted and actual"))
    expect(card.locator("tbody tr")).to_have_count(4)
    expect(card).to_contain_text("the measured run")
    card.scroll_into_view_if_needed()
    sound(page, "overview")
    page.goto(f"/runs/{runs['measured']}/")
    expect(page.get_by_role("heading", name="Predicted and actual")).to_have_count(0)


def test_a_race_is_planned_first(page: Page, runs: dict[str, str]) -> None:
    page.goto("/races/new/")
    page.get_by_role("button", name="Plan it first").click()
    table = page.locator("section", has=page.get_by_role("heading", name="Planned")).locator("tbody tr")
    expect(table).to_have_count(2)
    expect(table.first).to_contain_text("%")
    sound(page, "race")


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_a_race_is_planned_without_scripts(page: Page, runs: dict[str, str]) -> None:
    page.goto("/races/new/")
    page.get_by_role("button", name="Plan it first").click()
    expect(page.locator("section", has=page.get_by_role("heading", name="Planned")).locator("tbody tr")).to_have_count(2)
