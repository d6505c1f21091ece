"""The way to a run in a real browser: presets, search, live checks, commands, a clone's difference, a fork, a sweep, the queue."""

from __future__ import annotations

import re
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.axe import axe_faults
from tests.e2e.browsing import launch
from tests.e2e.web_rig import Driver, WebServer

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module")
def options() -> dict[str, Any]:
    return {"viewport": {"width": 1440, "height": 900}, "permissions": ["clipboard-read", "clipboard-write"]}


def checked(page: Page, words: str | re.Pattern[str]) -> None:
    expect(page.locator("#check-state")).to_have_text(words)


def test_the_form_is_searched_checked_and_told_by_command(page: Page) -> None:
    page.goto("/runs/new/")
    checked(page, "Ready to launch")
    expect(page.locator("#forecast-rows")).to_contain_text("64 = 8 prompts × 8")
    expect(page.locator("#forecast-words")).to_contain_text("nothing is known of its time")
    # search: by the keyboard alone to a field whose fold was closed
    page.keyboard.press("/")
    page.keyboard.type("overlong zone")
    expect(page.locator("#field-search-told")).to_have_text("1 field, Enter goes to the first")
    expect(page.locator("#section-buffer")).to_be_hidden()
    page.keyboard.press("Enter")
    expect(page.locator("#field-rewards-overlong-tokens")).to_be_focused()
    page.locator("#field-search").fill("nothing like this")
    expect(page.locator("#nothing-found")).to_contain_text("nothing like this")
    page.locator("#field-search").press("Escape")
    expect(page.locator("#section-buffer")).to_be_visible()
    # a problem appears at its field and in the list, and goes again
    depth = page.locator("#field-buffer-depth")
    depth.fill("2")
    checked(page, "1 problem")
    expect(page.locator("#field-buffer-depth-errors")).to_contain_text("Set buffer.depth to 8 or more")
    expect(depth).to_have_attribute("aria-invalid", "true")
    page.locator("#fold-all").click()
    page.locator("#verdict-list").get_by_role("button", name="Buffer depth").click()
    expect(depth).to_be_focused()
    depth.fill("24")
    checked(page, "Ready to launch")
    expect(page.locator("#field-buffer-depth-errors")).to_be_empty()
    # a warning says why
    page.locator("#field-sampling-temperature").evaluate(
        "node => { for (const fold of document.querySelectorAll('details')) fold.open = true; }"
    )
    page.locator("#field-sampling-temperature").fill("0.05")
    checked(page, "1 warning")
    expect(page.locator("#field-sampling-temperature-warnings")).to_contain_text("equal rewards teach nothing")
    # what differs, by table and by command
    expect(page.get_by_role("row", name="Buffer depth").get_by_role("cell")).to_have_text(["8", "24"])
    expect(page.locator("#command-workers")).to_contain_text("--set buffer.depth=24")
    expect(page.locator("#command-api")).to_contain_text('"temperature": 0.05')
    page.get_by_role("button", name="Copy: headrace").click()
    expect(page.get_by_role("button", name="Copy: headrace")).to_have_text("Copied")
    assert "--set sampling.temperature=0.05" in page.evaluate("navigator.clipboard.readText()")
    # only what was changed; put one back
    page.get_by_label("Only changed").check()
    expect(page.locator(".field[data-path]:visible")).to_have_count(2)
    expect(page.locator("#section-buffer [data-changed]")).to_have_text("1 changed")
    page.get_by_role("button", name="put back Buffer depth, as in the preset demo").click()
    expect(depth).to_have_value("8")
    expect(page.locator("#changed-count")).to_have_text("1")


def test_a_preset_says_what_it_approximates_before_it_fills_the_form(page: Page) -> None:
    page.goto("/runs/new/")
    page.locator("#preset-choice").select_option("pipelinerl")
    expect(page.locator("#preset-text details").first).to_have_attribute("open", "")
    expect(page.locator("#preset-text")).to_contain_text("Redis streams are Valkey's.")
    expect(page.locator("#section-buffer .kind-chip")).to_have_text("stream")
    expect(page.locator("#changes-from")).to_have_text("from the preset pipelinerl")
    help_link = page.locator("#section-staleness .section-help a")
    assert help_link.get_attribute("href") == "/help/axes/#staleness"


def test_clone_fork_and_queue(page: Page, server: WebServer) -> None:
    page.goto("/runs/new/")
    parent = launch(page, "the parent")
    expect(page.locator("#queue-place-words")).to_contain_text("Number 1 of 1 of the team: starts in a moment")
    driver = Driver(server, parent)
    driver.started()
    driver.post([("checkpoint", {"path": "checkpoints/step-000003", "bytes": 1000, "step": 3, "version": 3})], 3)
    page.goto(f"/runs/new/?clone={parent}")
    checked(page, "Ready to launch")
    page.locator("#field-budget-steps").fill("11")
    expect(page.get_by_role("row", name="Steps budget.steps")).to_contain_text("60")
    expect(page.locator("#changes-from")).to_have_text("from the run “the parent”")
    page.locator("#run-fork").select_option(index=1)
    expect(page.get_by_role("row", name="model.init_from")).to_contain_text("checkpoints/step-000003")
    page.get_by_label("Name of the run").fill("the fork")
    page.get_by_role("button", name="Review").click()
    expect(page.get_by_text("It starts from the weights of checkpoint step 3")).to_be_visible()
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("#queue-place-words")).to_contain_text(re.compile("waiting for 2 CPUs|starts in a moment"))
    # the queue: what runs, what waits, and a priority
    page.goto("/queue/")
    expect(page.get_by_role("row", name="the parent")).to_contain_text("running")
    page.get_by_label("Priority of the fork").select_option("High")
    expect(page.get_by_label("Priority of the fork")).to_have_value("10")
    page.get_by_text("Change the quota").click()
    page.get_by_label("Running at once").fill("1")
    page.get_by_role("button", name="Save the quota").click()
    expect(page.get_by_text("The quota is saved.")).to_be_visible()
    expect(page.get_by_role("row", name="the fork")).to_contain_text("the team's quota: 1 running at once")
    page.get_by_text("Change the price").click()
    page.get_by_label("A device-hour costs").fill("0.5")
    page.get_by_role("button", name="Save the price").click()
    expect(page.get_by_text("0.5 EUR")).to_be_visible()


def test_a_sweep_is_told_before_launched_at_once_and_ended_at_once(page: Page) -> None:
    page.goto("/runs/new/")
    page.locator("#several > summary").click()
    page.get_by_role("button", name="3 seeds").click()
    expect(page.locator("#several-count")).to_have_text("3 runs")
    page.get_by_label("Varied field 1").fill("staleness.max_lag")
    page.locator("#sweep-values-1").fill("1, 2, x")
    expect(page.locator("#sweep-values-1-errors")).to_contain_text("With staleness.max_lag=x")
    page.locator("#sweep-values-1").fill("1, 2")
    expect(page.locator("#several-preview")).to_contain_text("6 runs of at most 64")
    page.get_by_label("Name of the run").fill("how much lag")
    page.get_by_role("button", name="Review").click()
    page.get_by_role("button", name="Launch 6 runs").click()
    page.wait_for_url("**/sweeps/*/")
    expect(page.locator(".sweep-table tbody tr")).to_have_count(6)
    asking = page.context.new_page()  # the page of the fixture takes a question for a fault
    asking.goto(page.url)
    asking.once("dialog", lambda dialog: dialog.accept())
    asking.get_by_role("button", name="Cancel all").click()
    expect(asking.get_by_text("6 runs were asked to stop")).to_be_visible()
    expect(asking.locator(".sweep-table [data-state=cancelled]")).to_have_count(6)


@pytest.mark.parametrize(
    "page",
    [{"color_scheme": "light"}, {"color_scheme": "dark", "viewport": {"width": 390, "height": 800}}],
    indirect=True,
    ids=["light", "dark-narrow"],
)
def test_axe_finds_nothing_and_nothing_is_wider_than_the_page(page: Page) -> None:
    page.goto("/runs/")
    sweep = page.evaluate("async () => (await (await fetch('/queue/?rows=1')).text()).match(/sweeps.([a-z2-7]{12})/)?.[1] ?? ''")
    for path in ("/runs/new/", "/queue/", *([f"/sweeps/{sweep}/"] if sweep else [])):
        page.goto(path)
        if path == "/runs/new/":
            checked(page, "Ready to launch")
            page.locator("#field-buffer-depth").fill("2")
            checked(page, "1 problem")
            page.evaluate("document.querySelectorAll('details:not(.menu)').forEach(fold => { fold.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"), path
        assert axe_faults(page) == [], path
