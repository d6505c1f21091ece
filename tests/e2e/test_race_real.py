"""One small race on the real stack: two contenders, two seeds, real engines. The supervisor is killed in the middle and started again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from headrace.supervisor.layout import free_ports
from tests.e2e.browsing import sign_up
from tests.e2e.conftest import wait_until
from tests.e2e.test_up import Up, assert_nothing_left
from tests.e2e.web_rig import WATCH, migrated_folder
from tests.workers.tiny_model import make_tiny_model

pytestmark = pytest.mark.e2e

WORKLOAD = {
    "batch-prompts": 2,
    "batch-group-size": 4,
    "sampling-max-new-tokens": 8,
    "evaluation-every-steps": 2,
    "evaluation-prompts": 4,
}


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    context = browser.new_context()
    context.add_init_script(WATCH)
    yield context.new_page()
    context.close()


def test_a_race_survives_a_kill_and_reports(page: Page, tmp_path: Path) -> None:
    data, port, before_all = migrated_folder(tmp_path / "data"), free_ports(1)[0], segments()
    up = Up(data, port)
    try:
        race = start(page, up, make_tiny_model(tmp_path / "tiny"))
        wait_until(lambda: live(page, race)["finished"] >= 1, 240, f"the first finished entry\n{up.text}")
        before = {cell["run"] for cell in live(page, race)["entries"] if cell["run"]}
        up.process.kill()
        up.process.wait()
        up = Up(data, port)
        up.link()  # what the killed one left still answers for a moment
        ended = wait_until(lambda: ended_one(page, race), 300, f"the end of the race\n{up.text}", every=0.5)
        after = {cell["run"] for cell in ended["entries"]}
        assert ended["finished"] == 4 and len(after) == 4, ended
        assert ended["entries"][0]["run"] in before and ended["entries"][0]["launched"] == 1, "what had finished was kept"
        page.goto(race)
        expect(page.locator(".verdict-box").nth(1)).to_contain_text("lag 1")
        expect(page.get_by_role("row", name="Samples a second").first).to_contain_text("±")
        expect(page.get_by_text("The same for every entry.").first).to_be_visible()
        found = page.request.get(f"{race}results.json").json()
        rows = {row["key"]: row["cells"] for row in found["rows"]}
        assert {cell["mean"] for cell in rows["samples"].values()} == {32.0}, "the rule ended every entry after as many samples"
        assert page.evaluate("window.breaches") == []
    finally:
        if up.process.poll() is None:
            up.stop()
    assert_nothing_left(up.layout)
    assert segments() <= before_all


def segments() -> set[Path]:
    return set(Path("/dev/shm").glob("hr-*"))


def start(page: Page, up: Up, tiny: Path) -> str:
    """As a new maintainer does: the link, the form, the button. Returns the race's address."""
    sign_up(page, up.link())
    page.goto(f"{up.layout.base_url}/races/new/?preset=demo&preset=trl-sync")
    page.get_by_role("checkbox", name="TRL: synchronous").uncheck()
    page.locator("#race-own summary").click()
    page.locator("#own-preset-1").select_option("demo")
    page.locator("#own-label-1").fill("lag 1")
    page.locator("#own-changes-1").fill("staleness.max_lag=1\nlora.rank=4\norchestration.kind=asyncio")
    page.locator("#field-model-path").fill(str(tiny))
    for name, value in WORKLOAD.items():
        page.locator(f"#field-{name}").fill(str(value))
    page.get_by_label("Seeds", exact=True).fill("1 2")
    page.get_by_label("An entry ends after").select_option("samples")
    page.locator("#race-stop-value").fill("32")
    expect(page.locator(".race-sum")).to_contain_text("4 entries")
    page.get_by_role("button", name="Start the race").click()
    expect(page.locator(".race-grid .chip")).to_have_count(4)
    return page.url


def live(page: Page, race: str) -> dict[str, Any]:
    found: dict[str, Any] = page.request.get(f"{race}live.json").json()
    return found


def ended_one(page: Page, race: str) -> dict[str, Any] | None:
    found = live(page, race)
    return found if found["closed"] else None
