"""Sixty hostile texts wherever people, models and drivers write, on every page that shows them: nothing runs, loads or disguises."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.hostile import PAYLOADS
from tests.e2e.web_rig import WATCH, WebServer

pytestmark = pytest.mark.e2e

# What no text may have become: a handler, a frame, a link or picture of somewhere else.
FOUND = """() => {
  const found = [];
  for (const node of document.querySelectorAll("*")) {
    if (/^(iframe|object|embed|base|marquee|math|video|audio)$/i.test(node.tagName)) found.push(node.outerHTML.slice(0, 90));
    for (const one of node.attributes) {
      if (/^on/i.test(one.name)) found.push(`${one.name}=${one.value}`.slice(0, 90));
      if (/^(href|src|action|formaction|xlink:href|data|poster)$/i.test(one.name)) {
        let url = null;
        try { url = new URL(one.value, document.baseURI); } catch { continue; }
        const plain = /^(https?|blob|file|mailto):$/.test(url.protocol) || (url.protocol === "data:" && node.tagName !== "A");
        if (!plain || url.hostname.includes("evil")) found.push(`${one.name}=${one.value}`.slice(0, 90));
      }
    }
  }
  return [...found, ...(window.fired === undefined ? [] : ["fired"]), ...(window.breaches || [])];
}"""
PAGES = (
    *("/runs/", "/runs/?page=2", "/runs/?q=name:evil", "/runs/{run}/", "/runs/{run}/?tab=charts", "/runs/{run}/?tab=timeline"),
    *("/runs/{run}/?tab=samples", "/runs/{run}/?tab=logs", "/runs/{run}/?tab=files", "/runs/{run}/?tab=config", "/runs/{run}/?tab=history"),
    *(
        "/runs/{run}/samples/",
        "/runs/{run}/artifacts/",
        "/runs/{run}/edit/",
        "/runs/{gone_}/",
        "/runs/new/?clone={run}",
        "/queue/",
        "/alerts/",
    ),
    *("/alerts/rules/{rule}/", "/alerts/channels/{channel}/", "/team/", "/team/audit/", "/team/audit/?page=2", "/team/tokens/"),
    *("/team/projects/", "/team/projects/{project}/", "/team/storage/", "/team/settings/", "/team/invitations/", "/account/", "/views/"),
    *(
        "/sweeps/{sweep}/",
        "/races/",
        "/races/{race}/",
        "/races/new/?like={race}",
        "/admin/",
        "/admin/experiments/run/",
        "/admin/alerts/alert/",
    ),
    *("/admin/teams/auditevent/", "/admin/compare/race/", "/admin/artifacts/probe/"),
)


@pytest.fixture(scope="module")
def told(server: WebServer) -> dict[str, Any]:
    return json.loads(server.ask("import json; from tests.e2e import hostile; print(json.dumps(hostile.fill()))").splitlines()[-1])


@pytest.fixture
def page(server: WebServer, browser: Browser, told: dict[str, Any]) -> Iterator[Page]:
    """A signed-in page. Whatever is asked of another server, a dialog, a fault or a breach of the policy fails the test."""
    context = browser.new_context(base_url=server.url)
    context.add_cookies([{"name": "headrace-session", "value": told["session"], "url": server.url}])
    context.add_init_script(WATCH)
    opened = context.new_page()
    problems: list[str] = []
    opened.on(
        "request", lambda sent: None if sent.url.startswith((server.url, "data:", "blob:", "file:", "ws")) else problems.append(sent.url)
    )
    opened.on("dialog", lambda dialog: (problems.append(dialog.message), dialog.dismiss()))
    opened.on("pageerror", lambda error: problems.append(str(error)))
    opened.on("console", lambda line: problems.append(line.text) if "Content Security Policy" in line.text else None)
    yield opened
    problems += opened.evaluate(FOUND)
    context.close()
    assert problems == []


def test_there_are_sixty_and_no_two_alike() -> None:
    assert len(set(PAYLOADS)) == len(PAYLOADS) == 60


def test_every_page_shows_them_as_text(page: Page, told: dict[str, Any]) -> None:
    hurt = {}
    for address in PAGES:
        at = address.format(**told["ids"], gone_=told["curves"][-1])
        answer = page.goto(at, wait_until="load")
        assert answer is not None and answer.status == 200, (at, answer and answer.status)
        page.wait_for_timeout(250)
        found = page.evaluate(FOUND)
        if found:
            hurt[address] = found[:4]
    assert hurt == {}


def test_samples_tokens_and_log_lines_stand_as_they_were_written(page: Page, told: dict[str, Any]) -> None:
    run = told["ids"]["run"]
    page.goto(f"/runs/{run}/samples/")
    rows = page.locator(".sample-row")
    expect(rows.first).to_be_visible()
    text = page.locator("main").text_content() or ""
    assert "<script>window.fired=1</script>" in text or "<img src=x onerror=window.fired=1>" in text
    for index in range(0, min(6, rows.count())):
        rows.nth(index).click()
    page.goto(f"/runs/{run}/?tab=logs")
    expect(page.locator("#panel-logs")).to_contain_text("</title><script>window.fired=1</script>")
    expect(page.locator("#panel-logs")).to_contain_text("evil.example")
    assert page.evaluate(FOUND) == []


def test_charts_and_the_palette_take_names_for_text(page: Page, told: dict[str, Any]) -> None:
    page.goto("/compare/?runs=" + ",".join(told["curves"][:5]) + "&m=reward/mean")
    expect(page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_attached()
    plot = page.locator(".js-plotly-plot").first
    box = plot.bounding_box()
    assert box is not None
    for share in (0.3, 0.6):
        page.mouse.move(box["x"] + box["width"] * share, box["y"] + box["height"] * 0.5)
        page.wait_for_timeout(150)
    assert page.locator(".js-plotly-plot a[href]:not(.modebar-btn)").count() == 0
    page.keyboard.press("Control+k")
    page.locator("#palette-input").fill("fired")
    expect(page.locator("#palette-list li").first).to_be_visible()
    assert page.evaluate(FOUND) == []


def test_a_race_and_its_report_take_labels_for_text(page: Page, told: dict[str, Any], tmp_path: Path) -> None:
    page.goto(f"/races/{told['ids']['race']}/")
    expect(page.locator(".js-plotly-plot .scatterlayer .trace").first).to_be_attached()
    expect(page.locator(".js-plotly-plot .legendtext").first).to_be_attached()
    assert page.locator(".js-plotly-plot .legendtext").first.text_content() == '<a href="https://evil.example">evil</a>'
    assert page.locator(".js-plotly-plot .legendtext a").count() == 0
    with page.expect_download() as saving:
        page.evaluate(f"location.href = '/races/{told['ids']['race']}/report.html'")
    report = tmp_path / "report.html"
    saving.value.save_as(report)
    assert "<a href=&quot;https://evil.example&quot;" in report.read_text() or "&lt;a href=" in report.read_text()
    page.goto(report.as_uri())
    assert page.evaluate(FOUND) == []
    page.goto(f"/races/{told['ids']['race']}/")
