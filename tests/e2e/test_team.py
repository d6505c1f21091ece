"""The team's and the account's pages in a browser: an invitation spent, a role changed and told, tokens, retention."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.e2e.web_rig import PASSWORD, WATCH, WebServer

pytestmark = pytest.mark.e2e
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def owner(server: WebServer, browser: Browser) -> str:
    """The first administrator's stored session."""
    page = browser.new_context().new_page()
    page.goto(server.bootstrap())
    page.get_by_label("E-mail").fill("ada@example.org")
    page.get_by_label("Name").fill("Ada")
    sign_up(page, "Create my account")
    kept = server.data / "owner.json"
    page.context.storage_state(path=kept)
    return str(kept)


@pytest.fixture
def context(server: WebServer, browser: Browser, owner: str) -> Iterator[BrowserContext]:
    opened = browser.new_context(storage_state=owner, base_url=server.url)
    yield opened
    opened.close()


def watched(context: BrowserContext) -> tuple[Page, list[str]]:
    """A page and what went wrong on it: errors of scripts, of the console and of the content security policy."""
    context.add_init_script(WATCH)
    page = context.new_page()
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("console", lambda line: problems.append(line.text) if line.type in ("error", "warning") else None)
    return page, problems


def sign_up(page: Page, button: str) -> None:
    page.get_by_label("Password", exact=True).fill(PASSWORD)
    page.get_by_label("Password again").fill(PASSWORD)
    page.get_by_role("button", name=button).click()
    expect(page.get_by_role("heading", name="Runs", exact=True).first).to_be_visible()


def test_a_person_is_invited_joins_and_is_made_a_maintainer(server: WebServer, browser: Browser, context: BrowserContext) -> None:
    page, problems = watched(context)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/team/")
    page.get_by_role("link", name="Invite people").click()
    page.get_by_label("Only for this e-mail").fill("bo@example.org")
    page.get_by_role("button", name="Make link").click()
    link = page.get_by_label("The invitation link").input_value()
    expect(page.get_by_role("cell", name="bo@example.org")).to_be_visible()

    stranger = browser.new_context()
    theirs, their_problems = watched(stranger)
    theirs.goto(link)
    expect(theirs.get_by_role("heading", name="Join Demo")).to_be_visible()
    theirs.get_by_label("E-mail").fill("bo@example.org")
    theirs.get_by_label("Name").fill(HOSTILE)
    sign_up(theirs, "Create my account and join")
    expect(theirs.get_by_role("status").filter(has_text="Welcome to Demo")).to_be_visible()
    theirs.goto(link)
    expect(theirs.get_by_role("heading", name="This invitation does not work")).to_be_visible()
    theirs.goto(f"{server.url}/team/")
    expect(theirs.get_by_role("link", name="Audit")).to_have_count(0)

    page.goto("/team/")
    page.get_by_label("Role of bo@example.org", exact=True).select_option("maintainer")
    page.get_by_role("button", name="Save the role of bo@example.org").click()
    expect(page.get_by_role("status")).to_contain_text("is maintainer of this team")
    page.get_by_text("Every action by role").click()
    expect(page.get_by_role("row", name="Cancel and stop runs")).to_contain_text("their own")

    page.get_by_role("link", name="Audit").click()
    expect(page.locator(".trail")).to_contain_text(f"Ada changed the role of {HOSTILE} from member to maintainer")
    page.get_by_label("Action").select_option("invitation.accept")
    page.get_by_role("button", name="Filter").click()
    expect(page.locator(".trail > li")).to_have_count(1)
    page.get_by_role("button", name="Verify the chain").click()
    expect(page.get_by_role("status")).to_contain_text("The chain is whole")
    with page.expect_download() as download:
        page.get_by_role("link", name="Export CSV").click()
    assert download.value.suggested_filename.endswith(".csv")

    page.goto("/team/")
    page.get_by_role("button", name="Take out bo@example.org").click()
    expect(page.get_by_role("cell", name="bo@example.org")).to_have_count(0)
    theirs.goto(f"{server.url}/team/")
    expect(theirs.get_by_text("You are in no team yet")).to_be_visible()
    assert theirs.evaluate("window.breaches") == [] and [p for p in their_problems if "410" not in p and "403" not in p] == []
    stranger.close()
    assert page.evaluate("window.breaches") == [] and problems == []


def test_tokens_projects_and_retention(context: BrowserContext) -> None:
    page, problems = watched(context)
    page.on("dialog", lambda dialog: dialog.accept())
    page.goto("/account/")
    expect(page.get_by_text("this one")).to_be_visible()
    page.locator("#token_name").fill("monitoring")
    page.get_by_label("Scope").select_option("metrics")
    page.get_by_role("button", name="Make token").click()
    first = page.get_by_label("The new token").input_value()
    page.get_by_role("button", name="Rotate monitoring").click()
    assert first.startswith("hra_") and page.get_by_label("The new token").input_value() != first
    page.get_by_label("Dark", exact=True).check()
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.reload()
    expect(page.get_by_label("Dark", exact=True)).to_be_checked()
    page.get_by_label("As the system has it").check()
    page.goto("/team/tokens/")
    page.get_by_role("button", name="Revoke monitoring of ada@example.org").click()
    expect(page.get_by_role("status")).to_contain_text("no longer works")

    page.get_by_role("link", name="Projects").click()
    page.get_by_label("Name").fill("Sums")
    page.get_by_label("Note").fill(HOSTILE)
    page.get_by_role("button", name="Make project").click()
    expect(page.get_by_text(HOSTILE).first).to_be_visible()
    page.locator("#id_new-name").fill("How much lag?")
    page.get_by_role("button", name="Make experiment").click()
    expect(page.get_by_role("heading", name="How much lag?")).to_be_visible()
    page.get_by_role("link", name="Storage").click()
    page.get_by_label("Logs, days").fill("30")
    page.get_by_role("button", name="Show what this would free").click()
    expect(page.get_by_role("heading", name="This would free nothing today")).to_be_visible()
    page.get_by_role("button", name="Save this policy").click()
    expect(page.get_by_label("Logs, days")).to_have_value("30")
    assert page.evaluate("window.breaches") == [] and problems == []
