"""A race from the form to the report, in a real browser. The entries' drivers are played by the test, which posts their events."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.axe import axe_faults
from tests.e2e.web_rig import WebServer

pytestmark = pytest.mark.e2e
# One pass of the reconciler over the races; prints [[contender, seed, state, attempt, token]] of those that wait for a driver.
ADVANCE = """
import json, django
django.setup()
from django.utils import timezone
from headrace.compare.races import progress
from headrace.compare.races.models import RaceEntry
from headrace.experiments.tokens import issue_run_token
progress.advance(timezone.now())
found = []
for entry in RaceEntry.unscoped.filter(run__state="queued").select_related("run").order_by("place"):
    attempt = entry.run.attempts.get()
    found.append([entry.contender, entry.seed, attempt.public_id, issue_run_token(attempt)])
print(json.dumps(found))
"""


def advance(server: WebServer) -> list[list[Any]]:
    return json.loads(server.ask(ADVANCE))


def train(server: WebServer, entry: list[Any], outcome: str = "succeeded") -> None:
    """Five minutes of a driver's events, told at once. The second contender learns faster."""
    contender, seed, attempt, token = entry
    began, steps = time.time() - 300, 20
    told: list[tuple[float, int, str, dict[str, Any]]] = [
        (began, 0, "started", {"config_digest": "d", "provenance": {}, "resumed_from": None})
    ]
    for step in range(1, steps + 1):
        reward = (0.02 + 0.02 * contender) * step + 0.001 * seed
        values = {"reward/mean": reward, "samples/trained": 64.0 * step, "samples/tokens": 700.0 * step, "sync/pause_s": 0.004}
        if step in (1, 10, steps):
            values["eval/reward_mean"] = reward + 0.003 * seed * contender
        told.append((began + 14 * step, step, "metrics", {"values": values}))
        told.append((began + 14 * step, step, "lag", {"counts": {"0": 60, "1": 40}}))
    lanes = {"generator/0": {"startup": 20.0, "generate": 220.0, "idle": 60.0}, "trainer": {"startup": 20.0, "train": 160.0, "idle": 120.0}}
    ledger = {"dispatched": 64 * steps, "trained": 64 * steps, "dropped": {}}
    summary = {"wall_s": 300.0, "samples_trained": 64 * steps, "tokens_trained": 14_000, "time_ledger": lanes, "sample_ledger": ledger}
    told.append((began + 300, steps, "finished", {"outcome": outcome, "cause": None, "summary": summary}))
    body = {"fence": 1, "first_seq": 1} | {key: [row[index] for row in told] for index, key in enumerate(("t", "step", "kind", "data"))}
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    reply = httpx.post(f"{server.url}/api/v1/attempts/{attempt}/events", content=json.dumps(body), headers=headers, timeout=20)
    assert reply.status_code == 200, reply.text


def look(page: Page) -> None:
    """No sideways scrolling, and nothing that axe objects to."""
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert axe_faults(page) == []


def test_from_the_empty_list_to_the_report(page: Page, server: WebServer, browser: Browser, tmp_path: Path) -> None:
    page.goto("/races/")
    expect(page.get_by_role("heading", name="No races yet")).to_be_visible()
    look(page)
    page.get_by_role("main").get_by_role("link", name="New race").click()
    expect(page.get_by_role("checkbox", name="TRL: synchronous")).to_be_checked()
    plan = page.locator("#race-preview")
    expect(plan.locator(".race-sum")).to_contain_text("6 entries")
    page.get_by_label("Seeds", exact=True).fill("1 x")
    expect(plan.locator("#error-summary")).to_contain_text("No list of seeds")
    expect(page.get_by_label("Seeds", exact=True)).to_have_attribute("aria-invalid", "true")
    page.get_by_label("Seeds", exact=True).fill("1 2")
    page.get_by_label("Devices an entry").fill("3")
    page.get_by_label("Side by side").fill("4")
    expect(plan.locator(".race-sum")).to_contain_text("4 entries")
    expect(plan).to_contain_text("4 side by side")
    plan.get_by_role("button", name="1e-05").click()
    expect(plan).to_contain_text("Made the same by hand")
    expect(plan).to_contain_text("Learning rate: 1e-05")
    page.get_by_role("searchbox", name="Find a style").fill("restart")
    expect(page.locator(".preset-card:visible")).to_have_count(3)
    page.get_by_label("Name of the race").fill("Sync <b>or</b> async")
    look(page)
    plan.get_by_role("button", name="Start the race").click()
    expect(page.get_by_role("heading", name="Sync <b>or</b> async", level=1)).to_be_visible()
    expect(page.locator(".race-grid .chip[data-state=waiting]")).to_have_count(4)

    waiting = advance(server)
    assert [row[:2] for row in waiting] == [[0, 1], [1, 1], [1, 2], [0, 2]]
    expect(page.locator(".race-grid .chip[data-state=queued]")).to_have_count(4)
    for entry in waiting[:3]:
        train(server, entry)
    expect(page.locator(".race-grid .chip[data-state=succeeded]")).to_have_count(3)
    expect(page.locator(".verdicts")).to_contain_text("3 of 4 entries have finished")
    expect(page.locator(".verdict-box").first).to_contain_text("No clear winner")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#race-state")).to_have_text("paused")
    page.get_by_role("button", name="Go on").click()
    train(server, waiting[3])
    advance(server)
    advance(server)
    expect(page.locator("#race-state")).to_have_text("succeeded")
    expect(page.get_by_role("button", name="Cancel")).to_have_count(0)
    expect(page.locator(".verdict-box").first).to_contain_text("trl-async is ahead of the other")
    expect(page.locator("[data-plot=heldout] .main-svg").first).to_be_visible()
    page.get_by_role("group", name="Horizontal axis of Held-out reward").get_by_role("button", name="equal samples").click()
    expect(page.locator("[data-plot=heldout]")).to_contain_text("samples trained")
    page.reload()
    expect(page.locator("[data-plot=train]")).to_contain_text("samples trained")
    expect(page.get_by_role("row", name="Samples a second").first).to_contain_text("4.571")

    with page.expect_download() as report:
        page.get_by_role("link", name="Report").click()
    file = tmp_path / "report.html"
    report.value.save_as(file)
    read_offline(browser, file)
    with page.expect_download() as table:
        page.get_by_role("link", name="CSV").click()
    table.value.save_as(tmp_path / "race.csv")
    lines = (tmp_path / "race.csv").read_text().splitlines()
    assert lines[0].startswith("race,contender,preset,seed") and any("Held-out reward at equal wall time" in line for line in lines)


def read_offline(browser: Browser, file: Path) -> None:
    """The report stands alone: nothing is asked of any network, and it is whole."""
    context = browser.new_context(offline=True, viewport={"width": 390, "height": 800})
    page = context.new_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(file.as_uri())
    expect(page.get_by_role("heading", name="Sync <b>or</b> async", level=1)).to_be_visible()
    expect(page.locator("svg.race-chart polyline")).to_have_count(8)
    expect(page.get_by_text("trl-async is ahead of the other").first).to_be_visible()
    expect(page.get_by_role("heading", name="Fairness checklist")).to_be_visible()
    look(page)
    assert asked == [file.as_uri()]
    context.close()


@pytest.mark.parametrize(
    "page",
    [
        {"viewport": {"width": 390, "height": 844}, "color_scheme": "dark"},
        {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark"},
        {"viewport": {"width": 390, "height": 844}, "color_scheme": "light"},
    ],
    indirect=True,
    ids=["narrow-dark", "wide-dark", "narrow-light"],
)
def test_every_page_at_every_size(page: Page) -> None:
    page.goto("/races/")
    look(page)
    page.locator(".race-name a").first.click()
    expect(page.locator("[data-plot=heldout] .main-svg").first).to_be_visible()
    look(page)
    page.get_by_role("link", name="Race again").click()
    expect(page.get_by_label("Name of the race")).to_have_value("Sync <b>or</b> async (again)")
    expect(page.locator("#race-preview")).to_contain_text("4 of 4, finished before; 0 will run")
    look(page)


@pytest.mark.parametrize("page", [{"java_script_enabled": False}], indirect=True)
def test_without_script(page: Page) -> None:
    page.goto("/races/new/?preset=trl-sync&preset=atropos")
    expect(page.get_by_role("heading", name="Fairness checklist")).to_be_visible()
    page.get_by_role("button", name="1e-05").click()
    expect(page.locator("#race-preview")).to_contain_text("Learning rate: 1e-05")
    page.get_by_label("Seeds", exact=True).fill("7")
    page.get_by_role("button", name="Check again").click()
    expect(page.locator("#race-preview")).to_contain_text("One seed (7)")
    expect(page.locator("#race-preview")).to_contain_text("Learning rate: 1e-05")
    page.goto("/races/")
    page.locator(".race-name a").first.click()
    expect(page.locator("[data-drawn=wall_s] svg.race-chart").first).to_be_visible()
