"""The pages in a real browser: set-up, form, live run page, reconnect, failure, narrow screens. A breach of the CSP fails each test."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, Route, WebSocketRoute, expect

from tests.e2e.axe import axe_faults
from tests.e2e.browsing import launch
from tests.e2e.web_rig import Driver, WebServer

pytestmark = pytest.mark.e2e
HELP = ("/help/axes/", "/help/losses/", "/help/presets/", "/help/add-a-kind/")
HOSTILE = "<img src=x onerror=alert(1)><b>bold</b>"


@pytest.fixture(scope="module")
def forgiven() -> re.Pattern[str]:
    """What refused forms, a page that does not exist and a server that is stopped on purpose leave in the console."""
    return re.compile("status of (404|422)|ERR_CONNECTION_(REFUSED|RESET)|ERR_FAILED|Failed to fetch|chart library could not be fetched")


def open_tab(page: Page, name: str) -> None:
    """One of the run page's tabs."""
    page.get_by_role("tab", name=name, exact=True).click()


def test_the_form_shows_faults_at_their_field_then_the_resolved_config_then_launches(page: Page) -> None:
    page.goto("/runs/new/")
    page.get_by_label("Prompts a step").fill("many")
    page.get_by_role("button", name="Review").click()
    expect(page.locator("#field-batch-prompts")).to_have_attribute("aria-invalid", "true")
    page.locator("#error-summary a").first.click()
    expect(page.locator("#field-batch-prompts")).to_be_focused()
    page.locator("#field-batch-prompts").fill("4")
    page.get_by_role("button", name="Review").click()
    expect(page.locator("#resolved-config")).to_contain_text('"prompts": 4')
    expect(page.get_by_role("row", name="Prompts a step")).to_contain_text("8")
    page.get_by_role("button", name="Back to the form").click()
    expect(page.locator("#field-batch-prompts")).to_have_value("4")
    page.get_by_role("button", name="Review").click()
    page.get_by_role("button", name="Launch").click()
    expect(page.locator("#state-chip")).to_have_text("queued")
    expect(page.locator("[data-vital=reward]")).to_have_text("no data yet")
    expect(page.locator("[data-chart=reward] [data-plot]")).to_have_attribute("aria-label", re.compile("no data yet"))


def test_a_preset_fills_the_form_and_shows_what_it_is(page: Page) -> None:
    page.goto("/runs/new/")
    page.locator("#preset-choice").select_option("pipelinerl")
    expect(page.locator("#preset-text h2")).to_contain_text("PipelineRL")
    page.locator("#preset-text summary", has_text="Its own options").click()
    expect(page.get_by_role("cell", name="preprocess.ring_buffer_size")).to_be_visible()
    expect(page.locator("#field-buffer-kind")).to_have_value("stream")
    note = page.locator("[data-path='buffer.kind'] [data-chosen]")
    expect(note).to_contain_text("No backpressure")
    page.locator("#field-buffer-kind").select_option("double")
    expect(note).to_contain_text("Two batches")
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    page.locator("[data-fill=field-loss-kl]").click()
    expect(page.locator("#field-loss-kl")).to_have_value(re.compile('"estimator": "k3"'))
    page.locator("#field-loss-corrections").fill('[{"hi": 0.5}]')
    page.get_by_role("button", name="Review").click()
    expect(page.locator("#field-loss-corrections-errors")).to_contain_text("Item 1, hi")
    page.locator("#field-loss-corrections").fill('[{"hi": 3.0}]')
    page.get_by_role("button", name="Review").click()
    expect(page.locator("#resolved-config")).to_contain_text('"preset": "pipelinerl@1"')
    expect(page.locator("#preset-text")).to_contain_text("no pause is longer than one decode step")


def test_the_run_page_follows_its_run_and_a_reload_shows_the_same(page: Page, server: WebServer) -> None:
    driver = Driver(server, launch(page, "live"))
    expect(page.locator("#live-mark")).to_have_text("live")
    driver.started()
    expect(page.locator("#state-chip")).to_have_text("running")
    expect(page.locator("#startup-list")).to_contain_text("loading model")
    for step in range(1, 4):
        driver.step(step, reward=0.2 * step, throttle="buffer_full" if step == 3 else None, completion=HOSTILE)

    def shown() -> None:
        open_tab(page, "Overview")
        expect(page.locator("[data-vital=step]")).to_contain_text("3")
        expect(page.locator("[data-vital=reward]")).to_contain_text("0.60")
        expect(page.locator("#flow")).to_contain_text("5 / 16")
        expect(page.locator("#flow")).to_contain_text("48 of 64 slots busy")
        expect(page.locator("#flow-words")).to_contain_text("buffer full: generation waits")
        expect(page.locator("#sample-check")).to_contain_text("closes")
        expect(page.locator("[data-chart=reward] [data-plot]")).to_have_attribute("aria-label", re.compile(r"train, each step: 0\.6"))
        expect(page.locator("[data-chart=reward] .scatterlayer path.js-line").first).to_be_attached()
        open_tab(page, "Timeline")
        expect(page.locator("#time-check")).to_contain_text("every lane sums to")
        open_tab(page, "Logs")
        expect(page.locator("#log")).to_contain_text("step 3 done")
        open_tab(page, "Samples")
        expect(page.locator("#samples .completion").first).to_have_text(HOSTILE)
        expect(page.locator("#samples .sample-row")).to_have_count(3)
        expect(page.locator("#sample-detail .tk[data-at]")).to_have_count(2)

    shown()
    assert page.locator("#panel-samples img").count() == 0
    page.reload()
    shown()
    open_tab(page, "Overview")
    page.get_by_role("button", name="time", exact=True).click()
    expect(page.locator("[data-chart=reward]")).to_contain_text("minutes since start")
    open_tab(page, "Config")
    expect(page.locator("#provenance")).to_contain_text("2.13.0")


def test_a_dropped_socket_reconnects_and_fills_the_gap(page: Page, server: WebServer) -> None:
    driver = Driver(server, launch(page, "dropped"))
    driver.started()
    driver.step(1, reward=0.1)
    expect(page.locator("[data-vital=step]")).to_contain_text("1")
    server.stop()
    expect(page.locator("#live-mark")).to_contain_text(re.compile("reconnecting"))
    server.start()
    for step in (2, 3, 4):
        driver.step(step, reward=0.1 * step)
    expect(page.locator("#live-mark")).to_have_text("live")
    expect(page.locator("[data-vital=step]")).to_contain_text("4")
    expect(page.locator("[data-chart=reward] [data-plot]")).to_have_attribute("aria-label", re.compile(r"train, each step: 0\.4"))
    points = page.evaluate("document.querySelector('[data-chart=reward] [data-plot]').data[0].x")
    assert points == [1, 2, 3, 4]


def test_a_failure_names_cause_and_cure_and_leads_to_the_field(page: Page, server: WebServer) -> None:
    driver = Driver(server, launch(page, "too hot"))
    driver.started()
    driver.failed(3)
    expect(page.locator("#failure")).to_contain_text("the loss was not finite")
    expect(page.locator("#failure")).to_contain_text("lower optimizer.learning_rate")
    expect(page.locator("#failure")).to_contain_text("step 3: loss nan")
    page.get_by_role("link", name="Clone and fix").click()
    rate = page.locator("#field-optimizer-learning-rate")
    expect(page.locator("#check-state")).not_to_have_text("Not checked yet")
    expect(rate).to_have_attribute("aria-invalid", "true")
    rate.fill("0.0001")
    expect(rate).not_to_have_attribute("aria-invalid", "true")


def test_a_resume_goes_on_in_the_open_page(page: Page, server: WebServer) -> None:
    run = launch(page, "resumed")
    driver = Driver(server, run)
    driver.started()
    for step in (1, 2, 3):
        driver.step(step, reward=0.1 * step)
    driver.failed(3)
    expect(page.locator("#state-chip")).to_have_text("failed")
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume as attempt 2").click()
    expect(page.locator("#state-chip")).to_have_text("queued")
    second = Driver(server, run, fence=2)
    second.started({"step": 2, "version": 2})
    for step in (3, 4):
        second.step(step, reward=0.2 * step)
    expect(page.locator("[data-vital=step]")).to_contain_text("4")
    expect(page.locator("[data-vital=reward]")).to_contain_text("0.80")
    expect(page.locator("#failure")).to_be_hidden()
    page.reload()
    expect(page.locator("[data-vital=step]")).to_contain_text("4")
    page.locator("[data-chart=reward]").scroll_into_view_if_needed()
    expect(page.locator("[data-chart=reward] [data-plot]")).to_have_attribute("aria-label", re.compile(r"train, each step: 0\.8"))
    lines = page.evaluate(
        "document.querySelector('[data-chart=reward] [data-plot]').data.map(line => [line.name, line.showlegend !== false, line.x])"
    )
    assert lines[0][2] == [1, 2, 3, 4]
    assert [line for line in lines if not line[1] and line[2]] == [["train, each step", False, [3]]]


def test_an_earlier_attempt_is_chosen_for_log_and_provenance(page: Page, server: WebServer) -> None:
    run = launch(page, "twice")
    driver = Driver(server, run)
    driver.started()
    driver.step(1, reward=0.1)
    open_tab(page, "Logs")
    expect(page.locator("#log")).to_contain_text("step 1 done")
    expect(page.locator("#log-attempt")).to_be_hidden()
    driver.failed(1)
    page.get_by_role("link", name="Resume").click()
    page.get_by_role("button", name="Resume as attempt 2").click()
    second = Driver(server, run, fence=2)
    second.started({"step": 1, "version": 1})
    second.step(2, reward=0.2)
    open_tab(page, "Logs")
    expect(page.locator("#log")).to_contain_text("step 2 done")
    page.locator("#log-attempt").select_option("1")
    expect(page.locator("#log")).to_contain_text("step 1 done")
    expect(page.locator("#log")).not_to_contain_text("step 2 done")
    open_tab(page, "Config")
    expect(page.locator("#provenance")).to_contain_text(f"1 ({driver.attempt})")
    page.locator("#provenance-attempt").select_option("2")
    expect(page.locator("#provenance")).to_contain_text(f"2 ({second.attempt})")


def test_what_is_asked_of_a_run_is_seen_and_silence_and_the_end_are_said(page: Page, server: WebServer) -> None:
    driver = Driver(server, launch(page, "asked"))
    driver.started()
    driver.step(1, reward=0.1)
    expect(page.locator("#flow")).to_contain_text("48 of 64 slots busy")
    page.get_by_role("button", name="Checkpoint now").click()
    expect(page.locator("#control-said")).to_contain_text("checkpoint: waiting for the end of step 2")
    page.get_by_role("button", name="Stop after this step").click()
    expect(page.locator("#control-said")).to_contain_text("waiting for the end of step")
    expect(page.get_by_role("button", name="Stop after this step")).to_have_attribute("aria-disabled", "true")
    expect(page.locator("#run-quiet")).to_be_hidden()
    expect(page.locator("#run-quiet")).to_contain_text(re.compile(r"Nothing heard from the run for \d+ s"))
    driver.step(2, reward=0.2)
    expect(page.locator("#run-quiet")).to_be_hidden()
    driver.failed(2)
    expect(page.locator("#flow-words")).to_contain_text("both pools are at rest")
    expect(page.locator("#flow")).not_to_contain_text("slots busy")
    expect(page.get_by_role("button", name="Checkpoint now")).to_be_hidden()


def test_a_refetch_that_fails_ends_in_a_new_connection(page: Page, server: WebServer) -> None:
    """The second frame is held back, so the third leaves a hole; its refetch is refused once."""
    opened: list[int] = []
    held: list[int] = []
    refused: list[str] = []

    def relay(socket: WebSocketRoute) -> None:
        opened.append(1)
        upstream = socket.connect_to_server()

        def pass_on(text: str | bytes) -> None:
            if '"step 2 done"' in str(text) and not held:
                held.append(1)
                return
            socket.send(text)

        upstream.on_message(pass_on)

    def refuse_once(route: Route) -> None:
        if held and not refused:
            refused.append(route.request.url)
            route.abort()
        else:
            route.continue_()

    page.route_web_socket(re.compile("/ws/runs/"), relay)
    page.route("**/events.json*", refuse_once)
    driver = Driver(server, launch(page, "hole"))
    driver.started()
    driver.step(1, reward=0.1)
    expect(page.locator("[data-vital=step]")).to_contain_text("1")
    before = len(opened)
    driver.step(2, reward=0.2)
    page.wait_for_timeout(400)
    driver.step(3, reward=0.3)
    expect(page.locator("[data-vital=step]")).to_contain_text("3")
    open_tab(page, "Logs")
    expect(page.locator("#log")).to_contain_text("step 2 done")
    assert held and refused and len(opened) == before + 1


def test_cancel_before_launch(page: Page) -> None:
    launch(page, "cancelled")
    page.get_by_role("button", name="Cancel").click()
    page.get_by_role("button", name="Yes, cancel it").click()
    expect(page.locator("#state-chip")).to_have_text("cancelled")
    expect(page.get_by_role("link", name="Resume")).to_be_visible()


def test_what_cannot_be_undone_is_asked_before_any_module_has_come(server: WebServer, browser: Browser, signed_in: str) -> None:
    context = browser.new_context(storage_state=signed_in, base_url=server.url)
    page = context.new_page()
    run = launch(page, "not by accident")
    page.route("**/static/js/run/**", lambda route: route.abort())
    page.reload()
    asked: list[str] = []
    page.on("dialog", lambda dialog: (asked.append(dialog.message), dialog.dismiss()))
    page.get_by_role("button", name="Cancel", exact=True).click()
    assert [words[:16] for words in asked] == ["Cancel this run?"]
    page.goto(f"/runs/{run}/")
    expect(page.locator("#state-chip")).to_have_text("queued")
    context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_with_folds_are_accessible(page: Page, server: WebServer, scheme: str) -> None:
    """axe-core's rules for WCAG 2.2 A and AA, colour contrast included, and its best practices. All others: test_every_page.py."""
    run = launch(page, "accessible")
    driver = Driver(server, run)
    driver.started()
    driver.step(1, reward=0.4)
    driver.step(2, reward=0.5, completion="It is 7")
    driver.failed(2)
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found: list[str] = []
    for path in (
        "/runs/new/",
        f"/runs/new/?clone={run}&fix=optimizer.learning_rate",
        f"/runs/{run}/",
        *HELP,
        "/nothing/",
    ):
        page.goto(path)
        if path == f"/runs/{run}/":
            expect(page.locator("#failure")).to_be_visible()
            open_tab(page, "Samples")
            expect(page.locator("#sample-detail .tk").first).to_be_visible()
        # The user menu lies over the page: it is opened on one that it hides nothing of.
        folds = "details" if path == "/nothing/" else "main details"
        page.evaluate("name => document.querySelectorAll(name).forEach(fold => { fold.open = true; })", folds)
        found += [f"{path}: {fault}" for fault in axe_faults(page, colours_only=scheme == "dark")]
    assert found == []


def test_keyboard_theme_and_list(page: Page, server: WebServer) -> None:
    page.goto("/runs/")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to content")).to_be_focused()
    page.keyboard.press("?")
    expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Switch between light and dark").click()
    chosen = page.evaluate("document.documentElement.dataset.theme")
    page.reload()
    assert page.evaluate("document.documentElement.dataset.theme") == chosen
    page.keyboard.press("/")
    page.keyboard.type("no such run")
    expect(page.locator("#runs")).to_contain_text("No run matches")


def test_the_set_up_session_is_kept(page: Page, tmp_path: Path) -> None:
    page.goto("/")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    page.locator("#user-menu summary").click()
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()
