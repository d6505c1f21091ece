"""Run control, time travel and alerts in a real browser: pressed, dragged, typed, tried. A breach of the CSP fails each test."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.e2e.axe import axe_faults
from tests.e2e.browsing import launch
from tests.e2e.web_rig import Driver, WebServer

pytestmark = pytest.mark.e2e
HOSTILE = "<img src=x onerror=alert(1)>"


class Hook(ThreadingHTTPServer):
    """Takes webhooks."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Take)
        self.got: list[dict[str, Any]] = []
        threading.Thread(target=self.serve_forever, daemon=True).start()


class _Take(BaseHTTPRequestHandler):
    server: Hook

    def do_POST(self) -> None:
        self.server.got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        """Silent."""


class Teller(Driver):
    """A driver whose clock can be set."""

    clock: float | None = None

    def post(self, events: list[tuple[str, dict[str, Any]]], step: int, t: float | None = None) -> None:
        super().post(events, step, self.clock if t is None else t)

    def ten_minutes(self) -> float:
        """20 steps, one every 30 s, that end now. Returns when it began."""
        began = time.time() - 610
        self.clock = self.began = began
        self.started()
        for step in range(1, 21):
            self.clock = began + 30 * step
            self.step(step, reward=0.2 + 0.03 * step if step < 15 else 0.1, completion=f"answer {step}", depth=step % 7)
            if step % 5 == 0:
                score = {"version": step, "n": 32, "mean": 0.3, "stderr": 0.02, "seconds": 2}
                saved = {"path": f"/x/step-{step:06d}", "step": step, "version": step, "bytes": 1000}
                self.post([("evaluation", score), ("checkpoint", saved)], step)
        self.clock = None
        return began


@pytest.fixture(scope="module")
def hook() -> Iterator[Hook]:
    server = Hook()
    yield server
    server.shutdown()
    server.server_close()


@pytest.fixture(scope="module")
def served(hook: Hook) -> dict[str, str]:
    return {"HEADRACE_ALERT_HOSTS": f"127.0.0.1:{hook.server_port}"}


@pytest.fixture(scope="module")
def options() -> dict[str, Any]:
    return {"viewport": {"width": 1280, "height": 900}}


@pytest.fixture(scope="module")
def forgiven() -> re.Pattern[str]:
    """What a refused press, and an answer that was spoilt on purpose, leave in the console."""
    return re.compile("the server responded with a status of 4|could not be|not fresh")


def launched(page: Page, server: WebServer, name: str) -> Teller:
    return Teller(server, launch(page, name))


def becomes(page: Page, expression: str, seconds: float = 40.0) -> None:
    """Waits until it is true. The page's policy forbids what Playwright's own waiting would do."""
    deadline = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < deadline, f"not within {seconds:.0f} s: {expression}"
        page.wait_for_timeout(100)


def check(page: Page) -> None:
    """axe in both themes and no sideways scrolling on a phone."""
    for scheme in ("light", "dark"):
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        assert axe_faults(page, colours_only=scheme == "dark") == [], scheme
    size = page.viewport_size
    page.set_viewport_size({"width": 390, "height": 844})
    becomes(page, "document.documentElement.scrollWidth <= innerWidth")  # charts follow a moment later
    page.set_viewport_size(size)


def test_any_second_of_a_run_is_shown_and_left_again(page: Page, server: WebServer) -> None:
    driver = launched(page, server, "travelled")
    began = driver.ten_minutes()
    page.goto(f"/runs/{driver.run}/")
    bar = page.locator("#travel-axis")
    expect(bar).to_be_visible()
    expect(page.locator('[data-vital="step"]')).to_contain_text("20")
    edge = bar.bounding_box()
    assert edge
    share = (8 * 30 + 15) / (time.time() - began)
    page.mouse.move(edge["x"] + edge["width"] - 2, edge["y"] + 20)
    page.mouse.down()
    page.mouse.move(edge["x"] + edge["width"] * share, edge["y"] + 20, steps=4)
    page.mouse.up()
    expect(page.locator("#travel-pill")).to_contain_text("The run as it was at")
    expect(page.locator('[data-vital="step"]')).to_contain_text("8")
    expect(page.locator("#sample-ledger")).to_contain_text("512")
    expect(page.locator("#evaluations tbody tr")).to_have_count(1)
    expect(bar).to_have_attribute("aria-valuetext", re.compile(r"4 min \d\d s in, step 8$"))
    ends = "document.querySelector('[data-chart] .js-plotly-plot, [data-plot].js-plotly-plot').data[0].x.at(-1)"
    becomes(page, f"{ends} < 9")
    expect(page.locator("#controls")).to_have_attribute("inert", "")
    page.wait_for_url(re.compile(r"[?&]t=\d+\.\d"))
    driver.step(21, reward=0.1)
    page.wait_for_timeout(400)
    expect(page.locator('[data-vital="step"]')).to_contain_text("8")
    check(page)

    page.reload()
    expect(page.locator('[data-vital="step"]')).to_contain_text("8")
    bar.focus()
    page.keyboard.press("Shift+ArrowRight")
    expect(page.locator('[data-vital="step"]')).to_contain_text("9")
    page.keyboard.press("ArrowUp")
    expect(page.locator("#travel-now")).to_contain_text("step 10")
    page.locator("#travel-speed").select_option("60")
    bar.focus()
    page.keyboard.press("Space")
    expect(page.locator("#travel-play")).to_have_attribute("aria-pressed", "true")
    expect(page.locator("#travel-now")).to_contain_text(re.compile("step 1[23456]"))
    page.keyboard.press("Space")
    page.keyboard.press("Home")
    expect(page.locator('[data-vital="reward"]')).to_contain_text("no data yet")
    page.get_by_role("tab", name="Logs").click()
    expect(page.locator("#panel-logs")).not_to_contain_text("step 1 done")
    page.keyboard.press("Escape")
    expect(page.locator("#travel-pill")).to_be_hidden()
    expect(page.locator('[data-vital="step"]')).to_contain_text("21")
    assert "t=" not in page.url

    # The way back of the browser is a way back in time, and what cannot be read is not claimed to be shown
    bar.focus()
    page.keyboard.press("Home")
    page.wait_for_url(re.compile(r"[?&]t="))
    page.get_by_role("tab", name="Overview").click()
    page.keyboard.press("Escape")
    expect(page.locator("#travel-pill")).to_be_hidden()
    page.go_back()
    expect(page.locator("#travel-pill")).to_be_visible()
    page.keyboard.press("Escape")
    page.route("**/then.json*", lambda route: route.fulfill(status=200, content_type="text/plain", body="x"))
    bar.focus()
    page.keyboard.press("Home")
    expect(page.locator("#travel-problem")).to_contain_text("could not be read")
    expect(page.locator("#travel-pill")).to_be_hidden()
    expect(page.locator('[data-vital="step"]')).to_contain_text("21")


def test_controls_are_pressed_followed_and_refused_in_words(page: Page, server: WebServer) -> None:
    driver = launched(page, server, "steered")
    driver.started()
    driver.step(1, reward=0.1)
    expect(page.locator("#flow")).to_contain_text("48 of 64 slots busy")
    said = page.locator("#control-said")
    page.get_by_role("button", name="Pause").click()
    expect(said).to_contain_text("pause: waiting for the end of step 2")
    page.keyboard.press("Shift+C")
    expect(said).to_contain_text("checkpoint: waiting for the end of step 2")
    driver.step(2, reward=0.1)
    driver.post([("checkpoint", {"path": "c", "step": 2, "version": 2, "bytes": 5})], 2)
    driver.post([("state", {"status": "paused", "step": 2, "version": 2, "steps_total": 40})], 2)
    expect(said).to_contain_text("checkpoint of step 2 is written")
    expect(said).to_contain_text("paused after step 2")
    page.get_by_role("button", name="Checkpoint now").click(force=True)  # disabled, and says why when it is pressed
    expect(page.locator("#control-problem")).to_contain_text("it is paused")
    page.get_by_role("button", name="Go on").click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.keyboard.press("Shift+B")
    page.get_by_label("Steps", exact=False).first.fill("1")
    page.get_by_role("button", name="Set the budget").click()
    expect(page.locator("#budget-menu [data-problem]")).to_contain_text("below what is done")
    page.locator("#budget-steps").fill("90")
    page.get_by_role("button", name="Set the budget").click()
    expect(said).to_contain_text("budget set to 90 steps")
    page.get_by_role("button", name="Cancel", exact=True).click()
    check(page)
    page.get_by_role("button", name="No, let it run").click()
    driver.failed(3)
    page.get_by_role("link", name="Resume…").click()
    expect(page.get_by_text("the end of step 2")).to_be_visible()
    expect(page.get_by_text("1 step", exact=True)).to_be_visible()
    check(page)
    page.get_by_role("button", name="Resume as attempt 2").click()
    expect(page.locator("#state-chip")).to_have_text("queued")


def test_a_rule_is_offered_tried_fires_and_is_told(page: Page, server: WebServer, hook: Hook) -> None:
    page.goto("/alerts/")
    expect(page.get_by_role("heading", name="Start with these")).to_be_visible()
    check(page)
    page.get_by_role("link", name="Signed webhook").click()
    page.get_by_label("Name").fill(f"hook {HOSTILE}")
    page.get_by_label("Address").fill("http://127.0.0.1:1/x")
    page.get_by_role("button", name="Save the channel").click()
    expect(page.locator(".errors")).to_contain_text("an administrator may allow")
    page.get_by_label("Address").fill(f"http://127.0.0.1:{hook.server_port}/secret-path")
    page.get_by_role("button", name="Save the channel").click()
    expect(page.locator(".secret")).to_contain_text("hrh_")
    page.get_by_role("button", name="Send a test message").click()
    expect(page.locator(".message")).to_contain_text("took the test message: answered 204")
    assert hook.got[0]["event"] == "test"
    assert "secret-path" not in page.content()
    page.get_by_role("button", name="Watch for these").click()
    expect(page.locator("#rules tbody tr")).to_have_count(5)
    check(page)

    driver = launched(page, server, "alarmed")
    driver.ten_minutes()
    page.goto(f"/alerts/rules/new/?kind=threshold&run={driver.run}")
    page.get_by_label("Name").fill(f"Low {HOSTILE}")
    page.get_by_label("Metric").fill("reward/mean")
    page.get_by_label("Value").fill("0.15")
    page.get_by_role("button", name="Try on this run").click()
    expect(page.locator("#tried")).to_contain_text("would have fired 1 time: at step 17")
    check(page)
    page.get_by_role("button", name="Save the rule").click()
    expect(page.locator("#rules")).to_contain_text(f"Low {HOSTILE}")
    driver.step(21, reward=0.1)
    page.goto(f"/runs/{driver.run}/")
    banner = page.locator("#run-alerts")
    expect(banner).to_contain_text("Train reward is 0.1, below 0.15 for 3 points")
    banner.get_by_role("button", name="See the run then").first.click()
    expect(page.locator("#travel-pill")).to_be_visible()
    page.goto("/alerts/")
    expect(page.locator("#history tbody tr").first).to_contain_text("open")
    expect(page.locator("#history")).to_contain_text("waiting")
    check(page)
