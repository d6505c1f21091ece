"""Keys of every page: the palette, the drawer of shortcuts, jumps by `g`, the search by `/`, the theme by `t`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.web_rig import WATCH, WebServer, chromium

pytestmark = pytest.mark.e2e
JUMPS = {
    "r": "/runs/",
    "n": "/runs/new/",
    "q": "/queue/",
    "c": "/compare/",
    "p": "/races/",
    "l": "/alerts/",
    "m": "/team/",
    "a": "/help/axes/",
}
FILL = """
import json, django
django.setup()
from django.test import Client
from headrace.experiments import services
from headrace.experiments.models import Project
from headrace.teams.models import Membership, Role, Team, User
from workers.contract import loading
team = Team.objects.create(name="Keys", slug="keys")
user = User.objects.create_user("ada@example.org", name="Ada")
Membership.objects.create(team=team, user=user, role=Role.OWNER)
project = Project.objects.create(team=team, name="P", slug="p")
config = services.create_config(team, loading.resolve({}, "demo", []))
run = services.start_run(team=team, user=user, config=config, project=project, name="the brook", idempotency_key="k")
client = Client()
client.force_login(user)
print(json.dumps([run.public_id, client.session.session_key]))
"""


@pytest.fixture(scope="module")
def opened(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Page, str]]:
    """A signed-in page and the id of the one run there is. An error or a breach of the policy fails the module."""
    web = WebServer(tmp_path_factory.mktemp("keys"))
    web.migrate()
    web.start()
    problems: list[str] = []
    try:
        run, session = json.loads(web.ask(FILL))
        with sync_playwright() as playwright:
            browser: Browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            context = browser.new_context(base_url=web.url, viewport={"width": 1280, "height": 900})
            context.add_cookies([{"name": "headrace-session", "value": session, "url": web.url}])
            context.add_init_script(WATCH)
            page = context.new_page()
            page.on("pageerror", lambda error: problems.append(str(error)))
            page.on("console", lambda line: problems.append(line.text) if line.type == "error" else None)
            yield page, run
            problems += page.evaluate("window.breaches")
            browser.close()
    finally:
        web.close()
    assert problems == []


def test_the_palette_finds_runs_pages_and_buttons_and_goes_there(opened: tuple[Page, str]) -> None:
    page, run = opened
    page.goto("/queue/")
    page.keyboard.press("Control+k")
    box, rows = page.get_by_role("combobox", name=re.compile("Find a page")), page.locator("#palette-list [role=option]")
    expect(box).to_be_focused()
    box.fill("brook")
    expect(rows.first).to_contain_text("the brook")
    expect(rows.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/runs/{run}/")
    page.keyboard.press("Control+k")
    box.fill("races")
    expect(rows.first).to_contain_text("Races")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    page.wait_for_url("**/races/")
    page.get_by_role("button", name=re.compile("Find anything")).click()
    box.fill("light and dark")
    expect(rows).to_have_count(1)
    before = page.evaluate("document.documentElement.dataset.theme ?? ''")
    page.keyboard.press("Enter")
    expect(page.locator("#palette")).to_be_hidden()
    assert page.evaluate("document.documentElement.dataset.theme") != before
    page.keyboard.press("Control+k")
    box.fill("nothing has this name")
    expect(page.locator("#palette-said")).to_contain_text("Nothing found")
    page.keyboard.press("Escape")
    expect(page.locator("#palette")).to_be_hidden()


def test_the_drawer_and_the_keys_it_tells_of(opened: tuple[Page, str]) -> None:
    page, _ = opened
    page.goto("/team/")
    for key in ("?", "Control+/"):
        page.keyboard.press(key)
        expect(page.get_by_role("heading", name="Keyboard shortcuts")).to_be_visible()
        page.keyboard.press("Escape")
        expect(page.locator("#shortcuts")).to_be_hidden()
    told = page.locator("#shortcuts").text_content() or ""
    for letter, place in JUMPS.items():
        page.keyboard.press("g")
        page.keyboard.press(letter)
        page.wait_for_url(f"**{place}")
        page.wait_for_load_state("load")
    page.goto("/runs/")
    page.keyboard.press("/")
    expect(page.locator("[data-search]").first).to_be_focused()
    page.keyboard.type("g")  # in a field keys are text
    page.keyboard.press("Escape")
    theme = page.evaluate("document.documentElement.dataset.theme ?? ''")
    page.keyboard.press("t")
    assert page.evaluate("document.documentElement.dataset.theme") != theme
    assert all(word in told for word in ("Find anything", "Queue, compare, races, alerts, team", "Light or dark", "probe", "timeline"))


def test_every_key_that_a_script_listens_to_is_told() -> None:
    """Letters in the scripts' key handlers are in the drawer, and the drawer names no others."""
    root = Path(__file__).resolve().parents[2] / "frontend"
    scripts = "\n".join(path.read_text() for path in (root / "static" / "js").rglob("*.js"))
    heard = set(re.findall(r'event\.key [!=]==? "([A-Za-z?/])"', scripts)) | set("jkgPCS") | set(JUMPS)
    drawer = (root / "templates" / "partials" / "shortcuts.html").read_text()
    told = set(re.findall(r"<kbd>([A-Za-z?/])</kbd>", drawer))
    assert {key for key in heard if key not in told} == set()
    assert {key for key in told if key not in heard | {"K"}} == set()
