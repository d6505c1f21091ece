"""What every test in a browser begins with: a server, a signed-in session, and a page on which nothing may go wrong unseen.

A file that needs more overrides one fixture: `served` (the server's environment), `signed_in`, `options` (of the browser's context)
or `forgiven` (what the console may say).
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.e2e.web_rig import PASSWORD, WATCH, WebServer, chromium

NOTHING = re.compile(r"(?!)")
# As long as a busy machine may take. What is there costs nothing.
PATIENCE_MS = 40_000
expect.set_options(timeout=PATIENCE_MS)


@pytest.fixture(scope="module")
def served() -> dict[str, str]:
    """Further environment of the server."""
    return {}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, served: dict[str, str]) -> Iterator[WebServer]:
    web = WebServer(tmp_path_factory.mktemp("web"))
    web.env |= served
    web.migrate()
    web.start()
    try:
        yield web
    finally:
        web.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def signed_in(server: WebServer, browser: Browser) -> str:
    """Goes through the one-time link as the first admin does. Returns the path of the browser's stored session."""
    link = server.bootstrap()
    context = browser.new_context()
    page = context.new_page()
    sign_up(page, link)
    kept = str(server.data / "session.json")
    context.storage_state(path=kept)
    page.goto(link)
    expect(page.get_by_role("heading", name="no longer works")).to_be_visible()
    context.close()
    return kept


@pytest.fixture(scope="module")
def options() -> dict[str, Any]:
    """Of the browser's context, for every test of the file."""
    return {}


@pytest.fixture(scope="module")
def forgiven() -> re.Pattern[str]:
    """Lines of the console that are no fault."""
    return NOTHING


@pytest.fixture
def page(
    request: pytest.FixtureRequest, server: WebServer, browser: Browser, signed_in: str, options: dict[str, Any], forgiven: re.Pattern[str]
) -> Iterator[Page]:
    """A signed-in page. `@pytest.mark.parametrize("page", [options], indirect=True)` gives the context's options."""
    chosen = {**options, **getattr(request, "param", {})}
    context = browser.new_context(storage_state=signed_in, base_url=server.url, **chosen)
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(WATCH)
    opened = context.new_page()
    problems = faults_of(opened, forgiven)
    yield opened
    if chosen.get("java_script_enabled", True):
        problems += opened.evaluate("window.breaches")
    context.close()
    assert problems == [], problems


def faults_of(page: Page, forgiven: re.Pattern[str] = NOTHING) -> list[str]:
    """A list that fills while the page is used: errors of scripts, dialogs nobody asked for, errors and warnings of the console."""
    found: list[str] = []
    page.on("pageerror", lambda error: found.append(str(error)))
    page.on("dialog", lambda dialog: (found.append(f"dialog: {dialog.message}"), dialog.dismiss()))
    page.on(
        "console", lambda line: found.append(line.text) if line.type in ("error", "warning") and not forgiven.search(line.text) else None
    )
    return found


def sign_up(page: Page, link: str) -> None:
    page.goto(link)
    page.get_by_label("E-mail").fill("ada@example.org")
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password again").fill(PASSWORD)
    page.get_by_role("button", name="Create my account").click()
    expect(page.get_by_role("heading", name="No runs yet")).to_be_visible()


def launch(page: Page, name: str) -> str:
    """Through the form, as a person does. Returns the run's id once its page is whole."""
    page.goto("/runs/new/")
    page.get_by_label("Name of the run").first.fill(name)
    page.get_by_role("button", name="Review").click()
    page.get_by_role("button", name="Launch").click()
    page.wait_for_url(re.compile(r"/runs/[a-z2-7]{12}/"), wait_until="load")
    found = re.search(r"/runs/([a-z2-7]{12})/", page.url)
    assert found
    return found.group(1)
