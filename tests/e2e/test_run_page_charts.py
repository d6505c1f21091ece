"""The run page's tabs, charts and timeline in a real browser: permalinks, zoom, smoothing, pins, the step slider, lanes, files."""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.axe import axe_faults
from tests.e2e.browsing import launch
from tests.e2e.web_rig import Driver, WebServer

pytestmark = pytest.mark.e2e
STEPS = 12
LANES = ("trainer", "generator/0")


@pytest.fixture(scope="module")
def options() -> dict[str, Any]:
    return {"accept_downloads": True}


def train(driver: Driver, spans: bool) -> None:
    """Twelve steps of two seconds each, ended just now."""
    began = time.time() - 2 * STEPS - 1
    driver.began = began
    driver.started(t=began)
    for step in range(1, STEPS + 1):
        t = began + 2 * step
        rows = [("trainer", "train", t - 2, t - 0.5), ("trainer", "wait_buffer_empty", t - 0.5, t), ("generator/0", "generate", t - 2, t)]
        if spans:
            driver.spans(step, *rows, t=t)
        entropy: Any = "NaN" if step == 4 else 2.0 / step
        driver.metrics(step, t, reward={"mean": step / STEPS}, loss={"entropy": entropy, "clip_share": 0.01})
        driver.metrics(step, t, samples={"trained": 64 * step, "tokens": 5000 * step}, engine={"generator/0/running": 20.0 + step})
        lanes = {"trainer": {"train": 1.5 * step, "wait_buffer_empty": 0.5 * step}, "generator/0": {"generate": 2.0 * step}}
        told = {"trained": {"n": 64 * step, "tokens_mean": 80.0, "reward_mean": 0.5, "difficulty_mean": 0.5}}
        told["stale"] = {"n": 8, "tokens_mean": 160.0, "reward_mean": 0.2, "difficulty_mean": 0.8}
        flow = {"slots": 64, "running": 40, "generate_samples_per_s": 16.0, "train_samples_per_s": 8.0, "throttle": None}
        state = {"status": "running", "step": step, "version": step, "steps_total": 40, "flow": flow}
        state["buffer"] = {"depth": 6, "capacity": 16, "unit": "group"}
        state["samples"] = {
            "dispatched": 64 * step + 8,
            "trained": 64 * step,
            "buffered": 0,
            "in_flight": 0,
            "dropped": {"stale": 8},
            "lost": 0,
        }
        state["samples"]["told"] = told
        state["time"] = {"wall_s": 2.0 * step, "lanes": lanes, "overlapped_s": {}}
        phases = {"export_s": 0.02, "transfer_s": 0.01, "apply_s": 0.005}
        sync = {"version": step, "bytes": 4_900_000, "transport": "shared_memory", "payload": "adapter", "phases": phases}
        sync |= {"pause_s": {"generator/0": 0.002}, "latency_s": 0.035, "note": {"merge_survived_share": 0.07}}
        driver.post([("lag", {"counts": {"0": 60, "1": 40}}), ("sync", sync), ("state", state)], step, t)


@pytest.fixture(scope="module")
def runs(server: WebServer, browser: Browser, signed_in: str) -> list[str]:
    """One run that tells its spans, and one that does not."""
    context = browser.new_context(storage_state=signed_in, base_url=server.url)
    page = context.new_page()
    found = []
    for name, spans in (("with lanes", True), ("without lanes", False)):
        run = launch(page, name)
        train(Driver(server, run), spans)
        found.append(run)
    context.close()
    return found


def tab(page: Page, name: str) -> None:
    page.get_by_role("tab", name=name, exact=True).click()


def x_range(page: Page, selector: str) -> list[float]:
    found: list[float] = page.evaluate("selector => document.querySelector(selector)._fullLayout.xaxis.range.map(Number)", selector)
    return found


def test_tabs_have_addresses_keys_and_a_way_back(page: Page, runs: list[str]) -> None:
    page.goto(f"/runs/{runs[0]}/")
    expect(page.get_by_role("tab", name="Overview")).to_have_attribute("aria-selected", "true")
    tab(page, "Timeline")
    expect(page).to_have_url(re.compile(r"\?tab=timeline$"))
    page.keyboard.press("ArrowLeft")
    expect(page.get_by_role("tab", name="Charts")).to_be_focused()
    expect(page.locator("#panel-charts")).to_be_visible()
    page.go_back()
    expect(page.locator("#panel-timeline")).to_be_visible()
    page.go_back()
    expect(page.locator("#panel-overview")).to_be_visible()
    page.keyboard.press("/")
    expect(page.locator("#series-search")).to_be_focused()
    page.goto(f"/runs/{runs[0]}/?tab=history")
    expect(page.locator("#history")).to_contain_text("running")


def test_the_overview_shows_the_flow_the_ledger_the_lags_and_the_syncs(page: Page, runs: list[str]) -> None:
    page.goto(f"/runs/{runs[0]}/")
    # 6 of 16 groups of 8, 8 samples a second more in than out: ten groups at one a second
    expect(page.locator("#flow")).to_contain_text(re.compile(r"full in 1\d s|full in 9 s"))
    expect(page.locator("#sample-check")).to_contain_text("closes")
    expect(page.get_by_role("row", name=re.compile("dropped, stale"))).to_contain_text("+100 %")
    expect(page.locator("#syncs")).to_contain_text("adapter over shared memory")
    expect(page.locator("#syncs .few").first).to_have_text("merge kept 7 %")
    expect(page.locator("#syncs li strong")).to_have_count(12)
    page.locator("[data-chart=lag]").scroll_into_view_if_needed()
    expect(page.locator("[data-chart=lag] [data-plot]")).to_have_attribute("aria-label", re.compile("lag 0: 60 %; lag 1: 40 %"))
    expect(page.locator("[data-chart=lag] .barlayer path").first).to_be_attached()


def test_every_series_is_found_smoothed_scaled_pinned_and_kept_in_the_address(page: Page, runs: list[str]) -> None:
    page.goto(f"/runs/{runs[0]}/?tab=charts")
    expect(page.locator("#series-found")).to_contain_text("series")
    page.locator("#series-search").fill("loss entr")
    card = page.locator("#explorer [data-series='loss/entropy']")
    expect(page.locator("#explorer figure")).to_have_count(1)
    expect(card.locator(".scatterlayer path.js-line").first).to_be_attached()
    # The point that was not finite is a gap with a mark, not a zero
    entropy = page.evaluate(
        "document.querySelector('#explorer [data-series=\"loss/entropy\"] .plot').data.map(line => [line.name, line.y])"
    )
    assert entropy[-2][1][:5] == pytest.approx([2.0, 1.0, 2 / 3, None, 0.4])
    assert entropy[-1][0] == "not finite" and len(entropy[-1][1]) == 1
    page.get_by_role("button", name="Pin Entropy to the overview").click()
    page.locator("#smooth-kind").select_option("ema")
    page.get_by_role("button", name="Log scale").click()
    page.get_by_role("button", name="samples", exact=True).click()
    expect(card).to_contain_text("samples trained")
    assert page.evaluate("document.querySelector('#explorer [data-series=\"loss/entropy\"] .plot')._fullLayout.yaxis.type") == "log"
    last = page.evaluate("document.querySelector('#explorer [data-series=\"loss/entropy\"] .plot').data.at(-2).x.at(-1)")
    assert last == 64 * STEPS
    for part in ("find=loss\\+entr", "x=samples", "smooth=ema%3A0\\.6", "log=1", "pins=loss%2Fentropy"):
        expect(page).to_have_url(re.compile(part))
    page.reload()
    expect(page.locator("#smooth-kind")).to_have_value("ema")
    expect(card).to_contain_text("samples trained")
    tab(page, "Overview")
    expect(page.locator("#pinned [data-series='loss/entropy']")).to_be_visible()
    page.goto(f"/runs/{runs[1]}/")
    expect(page.locator("#pinned [data-series='loss/entropy']")).to_be_visible()
    page.locator("#pinned .pin").click()
    expect(page.locator("#pinned")).to_be_hidden()


def test_zoom_is_linked_kept_and_reset_and_the_step_slider_reads_every_chart(page: Page, runs: list[str]) -> None:
    page.goto(f"/runs/{runs[0]}/?tab=charts&find=mean")
    plot = page.locator("[data-series='reward/mean'] .plot")
    drag = plot.locator(".nsewdrag").first
    expect(drag).to_be_attached()
    plot.scroll_into_view_if_needed()
    box = drag.bounding_box()
    assert box
    y = box["y"] + box["height"] / 2
    page.mouse.move(box["x"] + box["width"] * 0.25, y)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.75, y, steps=4)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"zoom=[\d.]+\*[\d.]+"))
    zoomed = x_range(page, "[data-series='reward/mean'] .plot")
    assert 2 < zoomed[0] < 5 and 8 < zoomed[1] < 11
    page.reload()
    expect(drag).to_be_attached()
    assert x_range(page, "[data-series='reward/mean'] .plot") == pytest.approx(zoomed, rel=1e-6)
    steps: list[Any] = []
    page.expose_function("chosen", lambda step: steps.append(step))
    page.evaluate("document.addEventListener('headrace:step', event => window.chosen(event.detail.step))")
    page.locator("#step-slider").fill("6")
    expect(page.locator("#step-words")).to_have_text("step 6")
    expect(plot).to_have_attribute("aria-label", re.compile(r"At step 6: 0\.5"))
    assert steps == [6]
    page.get_by_role("button", name="Reset zoom").first.click()
    expect(page).not_to_have_url(re.compile("zoom="))
    page.get_by_role("button", name="Back to the latest step").click()
    expect(plot).to_have_attribute("aria-label", re.compile("Latest: 1$"))


OPEN_FOR_LONG = """async () => {
  const link = [...document.querySelectorAll("link[rel=modulepreload]")].find((one) => one.href.includes("run/store"));
  const { applyEvent, emptyStore, takeSnapshot } = await import(link.href);
  const store = emptyStore();
  takeSnapshot(store, { run: {}, attempt: { number: 1, ingested_through: 0 }, began: null });
  let seq = 0;
  const tell = (step, kind, data) => applyEvent(store, { seq: ++seq, t: 1000 + seq, step, kind, data });
  for (let step = 1; step <= 20000; step += 1) {
    tell(step, "metrics", { values: { x: step === 4 ? 99 : step === 5 ? "NaN" : 1 } });
    tell(step, "lag", { counts: { 0: 1, 3: 2 } });
    tell(step, "evaluation", { mean: 0.5 });
  }
  const x = store.series.get("x");
  const sum = (list) => list.reduce((all, some) => all + some, 0);
  const tokens = sum([...store.lag.values()].map((counts) => counts.get(0) + counts.get(3)));
  return { points: x.value.length, highest: Math.max(...x.high), bad: sum(x.bad), steps: store.lag.size, tokens,
    rising: x.step.every((step, index) => !index || step > x.step[index - 1]), evaluations: store.evaluations.length, began: store.began };
}"""


def test_a_page_that_stays_open_stays_light_and_loses_no_extreme(page: Page, runs: list[str]) -> None:
    page.goto(f"/runs/{runs[0]}/")
    kept = page.evaluate(OPEN_FOR_LONG)
    assert kept["points"] <= 6000 and kept["steps"] <= 2000 and kept["evaluations"] == 500 and kept["rising"]
    assert (kept["highest"], kept["bad"], kept["tokens"], kept["began"]) == (99, 1, 60_000, 1001)


COUNT_DRAWINGS = """() => {
  const real = Plotly.react;
  window.drawings = new Map();
  Plotly.react = (node, ...more) => {
    window.drawings.set(node, (window.drawings.get(node) || 0) + 1);
    return real(node, ...more);
  };
}"""


def test_charts_without_data_are_not_drawn_over_and_over(page: Page, runs: list[str]) -> None:
    page.set_viewport_size({"width": 1280, "height": 2400})
    page.goto(f"/runs/{runs[0]}/")
    expect(page.locator(".js-plotly-plot").first).to_be_visible()
    page.wait_for_timeout(1500)
    page.evaluate(COUNT_DRAWINGS)
    page.wait_for_timeout(3000)
    assert page.evaluate("Math.max(0, ...window.drawings.values())") <= 2


@pytest.mark.parametrize("page", [{"viewport": {"width": 390, "height": 844}}], indirect=True)
def test_nothing_moves_when_the_time_bar_comes(page: Page, runs: list[str]) -> None:
    held: list[Any] = []
    page.route("**/axis.json", lambda route: held.append(route))
    page.goto(f"/runs/{runs[0]}/")
    expect(page.locator('[data-vital="step"]')).to_contain_text(str(STEPS))
    expect(page.locator("#travel")).to_have_class(re.compile("awaited"))
    before = page.locator("#run-tabs").bounding_box()
    for route in held:
        route.continue_()
    expect(page.locator("#travel")).to_be_visible()
    expect(page.locator("#travel")).not_to_have_class(re.compile("awaited"))
    assert page.locator("#run-tabs").bounding_box() == before


def test_a_chart_is_saved_as_a_picture_and_as_a_file(page: Page, runs: list[str]) -> None:
    page.goto(f"/runs/{runs[0]}/?tab=charts&find=entropy")
    card = page.locator("#explorer [data-series='loss/entropy']")
    expect(card.locator(".scatterlayer path.js-line").first).to_be_attached()
    card.locator("summary").click()
    with page.expect_download() as picture:
        page.get_by_role("button", name="Save as PNG").click()
    assert Path(picture.value.path()).read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as file:
        card.get_by_role("link", name="Download CSV").click()
    lines = Path(file.value.path()).read_text(encoding="utf-8").splitlines()
    assert len(lines) == 1 + STEPS and "loss/entropy" in lines[1]


def test_the_timeline_shows_zooms_and_explains_and_the_ledger_sums(page: Page, server: WebServer, runs: list[str]) -> None:
    page.goto(f"/runs/{runs[0]}/?tab=timeline")
    lane = page.locator("canvas[data-lane=trainer]")
    expect(lane).to_have_attribute("aria-label", re.compile("train 7[0-9] %"))
    expect(page.locator("#lanes-legend")).to_contain_text("waits: buffer empty")
    expect(page.locator("#time-check")).to_contain_text("every lane sums to 24.0 s")
    expect(page.locator("#time-ledger")).to_contain_text("12.5 %")
    expect(page.get_by_role("link", name="Set it at the cluster")).to_be_visible()
    box = lane.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + 10)
    expect(page.locator("#lanes-tip")).to_contain_text(re.compile("train: 1.5 s|waits: buffer empty: 500 ms"))
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.7, box["y"] + 10, steps=3)
    page.mouse.up()
    expect(page).to_have_url(re.compile(r"window=[\d.]+\*[\d.]+"))
    expect(lane).to_have_attribute("aria-label", re.compile(r"trainer, 4\.\d s shown"))
    page.locator("#lanes").focus()
    page.keyboard.press("0")
    expect(page).not_to_have_url(re.compile("window="))
    page.goto(f"/runs/{runs[1]}/?tab=timeline")
    expect(page.locator("#lanes-words")).to_contain_text("tells no single stretches")
    expect(lane).to_have_attribute("aria-label", re.compile("train 7[0-9] %"))


def test_the_timeline_follows_a_live_run(page: Page, server: WebServer) -> None:
    driver = Driver(server, launch(page, "lively"))
    now = time.time()
    driver.began = now - 4
    driver.started(t=now - 4)
    driver.step(1, reward=0.1)
    driver.spans(1, ("trainer", "train", now - 4, now - 1))
    tab(page, "Timeline")
    expect(page.locator("canvas[data-lane=trainer]")).to_be_visible()
    driver.spans(2, ("generator/0", "generate", now - 4, now))
    driver.step(2, reward=0.2)
    expect(page.locator("canvas[data-lane='generator/0']")).to_be_visible()


@pytest.mark.parametrize("page", [{"viewport": {"width": 390, "height": 800}}, {"viewport": {"width": 1440, "height": 900}}], indirect=True)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_tabs_are_accessible_and_as_wide_as_the_screen(page: Page, runs: list[str], scheme: str) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    found: list[str] = []
    for name, ready in (
        ("overview", "#syncs strong"),
        ("charts", "#explorer figure"),
        ("timeline", "canvas[data-lane=trainer]"),
        ("config", "#design"),
    ):
        page.goto(f"/runs/{runs[0]}/?tab={name}&step=3")
        expect(page.locator(ready).first).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, name
        found += [f"{name}: {fault}" for fault in axe_faults(page, colours_only=scheme == "dark")]
    assert found == []
