"""Samples, log and files in a real browser: filters, shading, keys, permalinks, probes, downloads; payloads stay inert on all of them."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.axe import axe_faults
from tests.e2e.browsing import launch
from tests.e2e.samples_rig import ANSWER, MANAGE, PAYLOADS, sample, tell
from tests.e2e.web_rig import ROOT, Driver, WebServer

pytestmark = pytest.mark.e2e
MARKS = (
    "img",
    "script:not([src]):not([type='application/json'])",
    "iframe",
    "svg[onload]",
    "base",
    "style:not([id])",
    "a[href^='javascript']",
)


@pytest.fixture(scope="module")
def forgiven() -> re.Pattern[str]:
    """What refused filters and questions leave in the console."""
    return re.compile("status of (400|422)")


@pytest.fixture(scope="module")
def driver(server: WebServer, browser: Browser, signed_in: str) -> Driver:
    """One run with everything to show."""
    context = browser.new_context(base_url=server.url, storage_state=signed_in)
    made = Driver(server, launch(context.new_page(), "samples"))
    context.close()
    tell(server, made)
    return made


def python(server: WebServer, what: str, run: str, given: str = "") -> str:
    done = subprocess.run(
        [sys.executable, "-c", MANAGE, what, run], cwd=ROOT, env=server.env, input=given, capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def inert(page: Page, scope: str) -> None:
    for mark in MARKS:
        assert page.locator(f"{scope} {mark}").count() == 0, mark


def test_samples_are_filtered_sorted_and_shared_by_their_address(page: Page, driver: Driver) -> None:
    page.goto(f"/runs/{driver.run}/?tab=samples")
    expect(page.locator("#samples-count")).to_have_text("41 samples")
    expect(page.locator("#sample-outcome option[value=dropped]")).to_have_text("dropped (4)")
    page.get_by_label("Outcome").select_option("dropped")
    expect(page.locator("#samples-count")).to_have_text("4 samples")
    expect(page.locator(".sample-row").first).to_contain_text("dropped: zero variance")
    page.get_by_role("button", name="Clear filters").click()
    page.get_by_label("Search prompts, completions and answers").fill("carry nothing")
    expect(page.locator("#samples-count")).to_have_text("24 samples")
    expect(page.locator(".sample-row mark").first).to_have_text("carry nothing")
    page.locator("#samples-step").fill("3")
    page.keyboard.press("Tab")
    expect(page.locator("#samples-count")).to_have_text("6 samples")
    page.get_by_role("button", name="The next step that has samples").click()
    expect(page.locator("#samples-step")).to_have_value("4")
    page.get_by_label("Sort").select_option("reward")
    expect(page.locator(".sample-row").first).to_contain_text(re.compile("0.50.*step 4"))
    page.locator(".sample-row").nth(2).click()
    chosen = f"Sample {(page.locator('.sample-row').nth(2).get_attribute('data-sample') or '').partition('/')[2]}, step 4"
    expect(page.locator("#sample-detail-title")).to_have_text(chosen)
    page.get_by_label("Shade tokens by").select_option("mismatch")
    address = page.get_by_role("link", name="Open as a page").get_attribute("href")
    assert address and "s.shade=mismatch" in address and "s.sample=1" in address
    page.goto(address)
    expect(page.locator("#samples-count")).to_have_text("6 samples")
    expect(page.locator("#sample-detail-title")).to_have_text(chosen)
    expect(page.get_by_label("Shade tokens by")).to_have_value("mismatch")
    page.evaluate("document.dispatchEvent(new CustomEvent('headrace:step', { detail: { step: 2 } }))")
    expect(page.locator(".sample-row").first).to_contain_text("step 2")
    page.goto(f"/runs/{driver.run}/samples/?s.step=99")
    expect(page.locator("#samples")).to_contain_text("The nearest are at step 4")
    page.goto(f"/runs/{driver.run}/samples/?s.reward_min=much")
    expect(page.locator("#samples-problem")).to_contain_text("reward_min: not a finite number; a reward")


def test_every_token_tells_its_numbers_by_pointer_and_by_keys(page: Page, driver: Driver) -> None:
    page.goto(f"/runs/{driver.run}/samples/?s.q=carry&s.step=4")
    tokens = page.locator("#sample-detail .token-view div.tokens .tk")
    expect(tokens).to_have_count(16)
    expect(page.locator(".tk[data-mark]")).to_have_count(3)
    expect(page.locator(".legend")).to_contain_text("v2, lag 2: 6")
    shades = page.get_by_label("Shade tokens by")
    shades.select_option("logprob")
    expect(page.locator(".legend")).to_contain_text("Mean -")
    shades.select_option("mask")
    expect(page.locator(".legend")).to_contain_text("trained on: ")
    shades.select_option("mismatch")
    expect(page.locator(".legend")).to_contain_text("largest -0.9000 at token 6")
    expect(tokens.nth(5)).to_have_attribute("data-bin", "0")
    tokens.nth(3).hover()
    tip = page.locator("#token-tip")
    expect(tip).to_contain_text("id 103")
    expect(tip).to_contain_text("0.6000")
    tokens.first.focus()
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    expect(tokens.nth(5)).to_be_focused()
    expect(tip).to_contain_text("id 105")
    page.keyboard.press("End")
    expect(tokens.last).to_be_focused()
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()
    first = page.locator("#sample-detail-title").inner_text()
    page.keyboard.press("j")
    expect(page.locator("#sample-detail-title")).not_to_have_text(first)
    page.keyboard.press("k")
    expect(page.locator("#sample-detail-title")).to_have_text(first)
    page.get_by_role("button", name="By prompt").click()
    expect(page.locator(".sample-group").first).to_contain_text("2 of 8 kept")
    expect(page.locator(".sample-group").first).to_contain_text("mean 0.75")
    page.locator(".group-column").nth(1).click()
    expect(page.locator(".sibling[aria-current=true]")).to_contain_text("0.50")


def test_the_list_follows_the_run_until_it_is_held(page: Page, driver: Driver) -> None:
    page.goto(f"/runs/{driver.run}/?tab=samples&s.group=late-0")
    expect(page.locator("#samples")).to_contain_text("No sample matches")
    expect(page.locator("#live-mark")).to_have_text("live")
    driver.post([sample(4, 0, 0, "came later", reward=1.0, group="late-0")], 4)
    expect(page.locator("#samples")).to_contain_text("came later")


def test_payloads_in_prompts_completions_and_logs_stay_text(page: Page, driver: Driver) -> None:
    for at, payload in enumerate(PAYLOADS):
        page.goto(f"/runs/{driver.run}/samples/?s.group=g4-{20 + at}")
        if "\u202e" not in payload:
            expect(page.locator(".row-completion")).to_have_text(payload)
            expect(page.locator("#sample-detail .prompt-text")).to_have_text(payload)
            expect(page.locator("#sample-detail div.tokens.completion")).to_have_text(payload)
        else:
            expect(page.locator(".row-completion")).to_have_text(re.compile(r"^<U\+202E>gnp"))
            expect(page.locator("#sample-detail .prompt-text .ws-hidden")).to_have_count(6)
        page.locator("#sample-detail .tk").first.hover()
        inert(page, "main")
    page.goto(f"/runs/{driver.run}/?tab=logs")
    for payload in PAYLOADS:
        if "\u202e" not in payload:
            expect(page.locator("#log .text", has_text=payload).first).to_be_visible()
    inert(page, "#panel-logs")


def test_the_log_is_searched_paged_followed_and_downloaded(page: Page, driver: Driver) -> None:
    page.goto(f"/runs/{driver.run}/?tab=logs")
    expect(page.locator("#log")).to_contain_text("step 4 done")
    expect(page.locator("#log")).not_to_contain_text("packed batch")
    page.get_by_label("Level", exact=True).select_option("debug")
    expect(page.locator("#log")).to_contain_text("packed batch 4")
    page.get_by_label("Source", exact=True).select_option("trainer")
    expect(page.locator(".log-line")).to_have_count(4)
    page.get_by_label("Search the log").fill("BATCH 2")
    expect(page.locator(".log-line")).to_have_count(1)
    expect(page.locator(".log-line mark")).to_have_text("batch 2")
    page.reload()
    expect(page.get_by_label("Search the log")).to_have_value("BATCH 2")
    page.get_by_label("Search the log").fill("")
    expect(page.locator("#log")).to_contain_text("step 4 done")
    driver.post([("log", {"level": "info", "message": f"tail {at}", "source": "driver"}) for at in range(900)], 4)
    expect(page.locator("#log")).to_contain_text("tail 899")
    page.reload()
    expect(page.locator("#log")).to_contain_text("tail 899")
    expect(page.locator("#log")).not_to_contain_text("tail 400")
    page.get_by_role("button", name="Earlier lines").click()
    expect(page.locator("#log")).to_contain_text("tail 400")
    expect(page.get_by_role("button", name="Follow", exact=True)).to_be_visible()
    page.get_by_label("Jump to a time").fill("2020-01-01T00:00")
    page.get_by_role("button", name="Jump").click()
    expect(page.locator(".log-line").first).to_contain_text("step 1 done")
    expect(page.get_by_role("button", name="Later lines")).to_be_visible()
    with page.expect_download() as fetched:
        page.get_by_role("link", name="Download", exact=True).click()
    text = Path(fetched.value.path()).read_text()
    assert (
        "tail 0\n" in text and "tail 899\n" in text and "\x1b" not in text and fetched.value.suggested_filename.endswith("-attempt-1.log")
    )


def test_an_adapter_is_fetched_and_a_checkpoint_verified_and_deleted(page: Page, server: WebServer, driver: Driver) -> None:
    page.goto(f"/runs/{driver.run}/?tab=files")
    row = page.locator("[data-artifact]")
    expect(row).to_contain_text("step-000004")
    expect(page.get_by_role("link", name="Fork from it")).to_have_attribute(
        "href", re.compile(r"/runs/new/\?clone=[a-z2-7]{12}&from=[a-z2-7]{12}$")
    )
    page.get_by_role("button", name="Verify").click()
    expect(page.get_by_text("All 3 files agree")).to_be_visible()
    page.get_by_role("button", name="Prepare adapter").click()
    expect(row).to_contain_text("being made ready")
    assert "True" in python(server, "exported", driver.run, "# <img src=x onerror=alert(1)> card")
    with page.expect_download() as fetched:
        page.get_by_role("link", name="Download adapter").click()
    with zipfile.ZipFile(fetched.value.path()) as archive:
        assert archive.namelist() == ["step-000004/README.md", "step-000004/adapter_model.safetensors"]
    page.get_by_text("Model card", exact=True).click()
    expect(page.locator(".model-card")).to_have_text("# <img src=x onerror=alert(1)> card")
    inert(page, "#panel-files")
    page.goto(f"/runs/{driver.run}/artifacts/")
    page.evaluate("window.confirm = () => true")
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("The run goes on and this is its newest checkpoint", exact=False)).to_be_visible()


def test_both_models_answer_side_by_side(page: Page, server: WebServer, driver: Driver) -> None:
    page.goto(f"/runs/{driver.run}/artifacts/")
    expect(page.locator("#probe-history")).to_contain_text("No probe yet")
    page.get_by_role("button", name="Ask both").click()
    expect(page.locator("#probe-problem")).to_contain_text("No prompt. Write what both models shall answer.")
    page.locator("#probe-prompt").fill("3 + 4 =\n---\n<script>alert(8)</script>")
    page.get_by_label("Temperature").fill("hot")
    page.get_by_role("button", name="Ask both").click()
    expect(page.locator("#probe-problem")).to_contain_text("Temperature")
    expect(page.get_by_label("Temperature")).to_be_focused()
    page.get_by_label("Temperature").fill("0.7")
    page.locator("#probe-prompt").press("Control+Enter")
    expect(page.locator("#probe-answer")).to_contain_text("Waiting for its turn")
    expect(page.locator("#probe-history button")).to_have_count(1)
    assert python(server, "answer", driver.run, json.dumps(ANSWER)).strip() == "1"
    expect(page.locator(".probe-side")).to_have_count(2)
    expect(page.locator(".probe-side div.tokens").first).to_have_text(ANSWER["answers"][0]["base"]["completion"])
    page.get_by_label("Shade by").select_option("mismatch")
    expect(page.locator(".probe-side .legend").last).to_contain_text("largest -2.3900 at token 1")
    inert(page, "#probe-answer")
    page.locator("#probe-prompt").fill("another")
    page.get_by_role("button", name="Ask both").click()
    page.get_by_role("button", name="Cancel").click()
    expect(page.locator("#probe-answer")).to_contain_text("Cancelled before it answered")


@pytest.mark.parametrize(
    "page",
    [
        {"viewport": {"width": 390, "height": 844}, "color_scheme": "light", "reduced_motion": "reduce"},
        {"viewport": {"width": 1440, "height": 900}, "color_scheme": "dark", "reduced_motion": "reduce"},
    ],
    indirect=True,
    ids=["narrow and light", "wide and dark"],
)
def test_the_pages_fit_and_are_accessible(page: Page, driver: Driver) -> None:
    found: list[str] = []
    pages = {
        f"/runs/{driver.run}/samples/?s.q=carry&s.step=4&s.shade=mismatch": "#sample-detail .tk",
        f"/runs/{driver.run}/samples/?s.view=groups&s.step=3": ".sample-group",
        f"/runs/{driver.run}/artifacts/": "[data-artifact]",
        f"/runs/{driver.run}/?tab=logs&l.q=step": ".log-line",
    }
    for path, shown in pages.items():
        page.goto(path)
        expect(page.locator(shown).first).to_be_visible()
        part = "#panel-logs" if "tab=" in path else "main"
        page.evaluate("part => document.querySelectorAll(`${part} details`).forEach(fold => { fold.open = true; })", part)
        assert part != "main" or page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, path
        found += [f"{path}: {fault}" for fault in axe_faults(page, part)]
    assert found == []
