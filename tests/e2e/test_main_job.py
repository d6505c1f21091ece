"""The main job, whole: the form in a browser -> Celery -> Ray -> engine -> ingest -> socket -> the chart moved. Then cancel, resume, fail.

Everything is real but the size of the model: two layers of random weights learn nothing, and take the same road.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.dispatch import remains
from headrace.supervisor.layout import free_ports
from tests.e2e.browsing import sign_up
from tests.e2e.conftest import wait_until
from tests.e2e.test_up import Up, assert_nothing_left
from tests.e2e.web_rig import WATCH, migrated_folder
from tests.workers.tiny_model import make_tiny_model
from workers.contract import presets

pytestmark = pytest.mark.e2e

SMALL = {
    "batch.prompts": 2,
    "batch.group_size": 4,
    "sampling.max_new_tokens": 8,
    "rollout.max_running": 8,
    "buffer.depth": 2,
    "lora.rank": 2,
    "evaluation.prompts": 4,
    "evaluation.every_steps": 0,
    "checkpoint.every_steps": 5,
    "budget.steps": 5000,
}
POINTS = (
    "document.querySelector('[data-chart=reward] [data-plot]')?.data?.reduce((most, trace) => Math.max(most, trace.x?.length ?? 0), 0) ?? 0"
)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Up]:
    started = Up(migrated_folder(tmp_path_factory.mktemp("main") / "data"), free_ports(1)[0])
    try:
        started.link()
        yield started
    finally:
        if started.process.poll() is None:
            started.stop()
        assert_nothing_left(started.layout)


@pytest.fixture(scope="module")
def page(up: Up, browser: Browser) -> Iterator[Page]:
    """Signed in through the printed link, as its first admin."""
    context = browser.new_context(base_url=up.layout.base_url)
    context.add_init_script(WATCH)
    opened = context.new_page()
    opened.set_default_timeout(90_000)
    breaches: list[str] = []
    opened.on("console", lambda line: breaches.append(line.text) if "Content Security Policy" in line.text else None)
    sign_up(opened, up.link())
    yield opened
    assert breaches + opened.evaluate("window.breaches") == []
    context.close()


def launch(page: Page, name: str, tiny: Path, preset: str = "demo", **changes: object) -> str:
    """Fills the form, reads the review, launches. Returns the run's id."""
    page.goto(f"/runs/new/?preset={preset}")
    page.get_by_label("Name of the run").fill(name)
    values: dict[str, object] = {**SMALL, "model.path": tiny, **{path.replace("__", "."): value for path, value in changes.items()}}
    for details in page.locator("form details").all():
        details.evaluate("element => { element.open = true }")
    for path, value in values.items():
        page.locator("#field-" + path.replace(".", "-").replace("_", "-")).fill(str(value))
    page.get_by_role("button", name="Review").click()
    expect(page.locator("#resolved-config")).to_contain_text(str(tiny))
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("#state-chip")).to_be_visible()
    page.wait_for_load_state()
    return page.url.rstrip("/").rpartition("/")[2]


def step_shown(page: Page) -> int:
    found = re.search(r"\d+", page.locator("[data-vital=step]").inner_text())
    return int(found.group(0)) if found else 0


def test_from_the_form_to_a_moving_chart_then_cancel_and_resume(page: Page, up: Up, tiny: Path) -> None:
    run = launch(page, "whole road", tiny)
    expect(page.locator("#state-chip")).to_have_text("running", timeout=90_000)
    wait_until(lambda: step_shown(page) >= 3, 90, f"three steps on the page\n{up.text}")
    page.locator("[data-chart=reward]").scroll_into_view_if_needed()
    before = wait_until(lambda: page.evaluate(POINTS), 30, "a first point in the reward chart")
    wait_until(lambda: page.evaluate(POINTS) > before, 30, "the chart moved without a reload")
    expect(page.locator("#sample-check")).to_contain_text("closes")
    page.get_by_role("tab", name="Timeline").click()
    expect(page.locator("#time-check")).to_contain_text("every lane sums to")
    page.get_by_role("tab", name="Logs").click()
    expect(page.locator("#log")).to_contain_text("starting 1 engine(s)")
    assert remains.processes(run), "driver, engine and trainer carry the run's id"

    wait_until(lambda: step_shown(page) >= 6, 60, "a checkpoint is behind us")
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    confirm = page.get_by_role("dialog").get_by_role("button", name=re.compile("cancel", re.IGNORECASE))
    if confirm.count():
        confirm.last.click()
    expect(page.locator("#state-chip")).to_have_text("cancelled")
    wait_until(lambda: remains.gone(run), 10, "nothing of the run is left")

    stopped_at = step_shown(page)
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume as attempt 2").click()
    expect(page.locator("#state-chip")).to_have_text("running", timeout=90_000)
    wait_until(lambda: step_shown(page) > stopped_at, 90, "it goes on past the step it was cancelled at")
    summary = json.loads((up.layout.runs / run / "attempt-1" / "summary.json").read_text())
    assert summary["outcome"] == "cancelled"
    page.once("dialog", lambda dialog: dialog.accept())
    page.get_by_role("button", name="Cancel").click()
    if confirm.count():
        confirm.last.click()
    expect(page.locator("#state-chip")).to_have_text("cancelled")
    wait_until(lambda: remains.gone(run), 10, "nothing of the second attempt is left")


def test_a_failure_shows_its_first_cause_and_the_cure(page: Page, up: Up, tiny: Path) -> None:
    run = launch(page, "no such file", tiny, environment__dataset="/nowhere/data.jsonl", environment__options="{}")
    expect(page.locator("#state-chip")).to_have_text("failed", timeout=90_000)
    expect(page.locator("#failure")).to_contain_text("environment.dataset")
    expect(page.locator("#failure")).to_contain_text("/nowhere/data.jsonl")
    expect(page.get_by_role("link", name="Clone and fix")).to_be_visible()
    wait_until(lambda: remains.gone(run), 10, "nothing of the run is left")


def test_a_short_run_succeeds_and_a_clone_of_it_starts_from_its_numbers(page: Page, tiny: Path) -> None:
    launch(page, "short", tiny, budget__steps=3)
    expect(page.locator("#state-chip")).to_have_text("succeeded", timeout=120_000)
    expect(page.locator("#evaluations")).to_contain_text("v3")
    page.get_by_role("link", name="Clone").click()
    expect(page.locator("#field-budget-steps")).to_have_value("3")
    expect(page.locator("#field-model-path")).to_have_value(str(tiny))


IN_EVERY_SUITE = ("atropos",)  # over HTTP; the road by Ray is the one of the tests above


@pytest.mark.parametrize(
    "preset", [name if name in IN_EVERY_SUITE else pytest.param(name, marks=pytest.mark.full) for name in presets.LIBRARIES]
)
def test_a_librarys_style_is_launched_from_the_form_and_its_page_shows_it(page: Page, tiny: Path, preset: str) -> None:
    # Groups of 8: of fewer samples of a random model nearly all are equal, which some styles refuse to train
    run = launch(page, f"as {preset}", tiny, preset, budget__steps=4, buffer__depth=16, batch__group_size=8)
    expect(page.locator("#state-chip")).to_have_text(re.compile("succeeded|failed"), timeout=180_000)
    assert page.inner_text("#state-chip") == "succeeded", page.inner_text("#failure")
    for axis, kinds in presets.described(preset)["axes"].items():
        for kind in kinds:
            expect(page.locator(f"#design [data-axis-kind={axis}]")).to_contain_text(kind)
    expect(page.locator("#sample-check")).to_contain_text("closes")
    wait_until(lambda: remains.gone(run), 10, "nothing of the run is left")
    folder = os.environ.get("SCREENSHOTS")
    if folder:
        page.screenshot(path=f"{folder}/{preset}.png", full_page=True)
