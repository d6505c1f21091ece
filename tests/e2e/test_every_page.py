"""Every page of the server, with something of every kind on it: narrow and light, wide and dark. See NOT_PAGES for what is none.

On each: axe finds nothing (contrast included), nothing is wider than the screen, nothing jumps while it loads, no request fails, the
console is empty and the content security policy holds. A route that is neither in PAGES nor in NOT_PAGES fails the first test.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.urls import URLPattern, URLResolver, get_resolver
from playwright.sync_api import Browser, BrowserContext, Page, Request, Response

from tests.e2e import full_house
from tests.e2e.axe import axe_faults
from tests.e2e.web_rig import WATCH, WebServer

pytestmark = pytest.mark.e2e
# Google calls a shift of less than 0.1 good.
MOST_SHIFT = 0.1
SHIFTS = """
window.shifted = 0; window.shifts = [];
new PerformanceObserver(list => { for (const entry of list.getEntries()) if (!entry.hadRecentInput) {
  window.shifted += entry.value;
  const moved = entry.sources.map(one => `${one.node?.id || one.node?.className || one.node?.nodeName}`);
  window.shifts.push(`${moved.join('+')} ${entry.value.toFixed(3)}`);
} }).observe({type: 'layout-shift', buffered: true});
"""
RUN_TABS = ("overview", "charts", "timeline", "samples", "logs", "files", "config", "history")
# By the name of the route. {braces}: ids from full_house.
PAGES: dict[str, tuple[str, ...]] = {
    "teams:setup": ("/setup/a-spent-link/",),
    "teams:invite": ("/invite/{invite}/", "/invite/a-spent-link/"),
    "teams:account": ("/account/",),
    "teams:members": ("/team/",),
    "teams:invitations": ("/team/invitations/",),
    "teams:team-tokens": ("/team/tokens/",),
    "teams:audit": ("/team/audit/",),
    "teams:team-settings": ("/team/settings/",),
    "projects:projects": ("/team/projects/",),
    "projects:project": ("/team/projects/{project}/",),
    "projects:experiment": ("/team/projects/{project}/experiments/{experiment}/",),
    "storage:storage": ("/team/storage/",),
    "compare:runs": ("/runs/", "/runs/?q=preset:demo&group=preset", "/runs/?q=nothing-has-this-name", "/runs/?q=lag%20%3E%3E"),
    "compare:compare": ("/compare/", "/compare/?runs={done1},{done2},{live}"),
    "compare:views": ("/views/",),
    "compare:races": ("/races/",),
    "compare:race-new": ("/races/new/",),
    "compare:race": ("/races/{race}/", "/races/{waiting_race}/"),
    "alerts:alerts": ("/alerts/",),
    "alerts:rule-new": ("/alerts/rules/new/",),
    "alerts:rule": ("/alerts/rules/{rule}/",),
    "alerts:channel-new": ("/alerts/channels/new/",),
    "alerts:channel": ("/alerts/channels/{channel}/",),
    "dispatch:queue": ("/queue/",),
    "experiments:new": ("/runs/new/", "/runs/new/?clone={failed}&fix=optimizer.learning_rate"),
    "experiments:sweeps": ("/sweeps/",),
    "experiments:sweep": ("/sweeps/{sweep}/",),
    "experiments:run": (
        *(f"/runs/{{live}}/?tab={tab}" for tab in RUN_TABS),
        *(f"/runs/{{samples}}/?tab={tab}" for tab in ("samples", "logs", "files")),
        "/runs/{failed}/",
        "/runs/{paused}/",
        "/runs/{queued}/",
        "/runs/{done1}/",
    ),
    "experiments:resume": ("/runs/{failed}/resume/",),
    "experiments:edit": ("/runs/{live}/edit/",),
    "telemetry:samples-page": ("/runs/{samples}/samples/",),
    "artifacts:files": ("/runs/{samples}/artifacts/",),
    "experiments:async": ("/help/async/", "/help/async/?ahead=4&max_lag=0"),
    "experiments:axes": ("/help/axes/",),
    "experiments:losses": ("/help/losses/",),
    "experiments:presets": ("/help/presets/",),
    "experiments:add-a-kind": ("/help/add-a-kind/",),
    "headrace.api.pages.reference": ("/help/api/",),
}
SIGNED_OUT = ("/login/", "/invite/{invite}/", "/nothing-is-here/")
# Answers, downloads and what is only posted to.
NOT_PAGES = {
    *("headrace.health.live", "headrace.health.ready", "headrace.metrics.metrics", "headrace.search.search", "experiments:home"),
    *("teams:login", "teams:logout", "teams:profile", "teams:password", "teams:end-other-sessions", "teams:end-session"),
    *("teams:revoke-token", "teams:rotate-token", "teams:choose-team", "teams:leave", "teams:revoke-invitation"),
    *("teams:revoke-team-token", "teams:audit-verify", "projects:archive-project", "projects:archive-experiment"),
    *(
        "compare:race-control",
        "storage:keep",
        "storage:restore",
        "compare:bulk",
        "compare:fields",
        "compare:view-save",
        "compare:view",
        "compare:view-rename",
    ),
    *(
        "compare:view-delete",
        "compare:race-preview",
        "compare:race-report",
        "compare:race-control",
        "alerts:ready-made",
        "alerts:rule-delete",
    ),
    *("alerts:rule-switch", "alerts:channel-test", "alerts:channel-delete", "dispatch:quota", "dispatch:price", "dispatch:priority"),
    *("experiments:cancel-sweep", "experiments:cancel", "experiments:checkpoint", "experiments:stop", "experiments:pause"),
    *("experiments:go-on", "experiments:budget", "experiments:delete", "artifacts:download", "artifacts:export", "artifacts:verify"),
    *("artifacts:delete", "artifacts:ask", "artifacts:cancel"),
}


def routes(resolver: URLResolver, prefix: str = "", space: str = "") -> Iterator[tuple[str, str]]:
    """(path pattern, name) of every route but the admin's and the API's."""
    for entry in resolver.url_patterns:
        path = prefix + str(entry.pattern)
        if isinstance(entry, URLPattern):
            name = f"{space}:{entry.name}" if entry.name else f"{entry.callback.__module__}.{entry.callback.__name__}"
            yield path, name
        elif entry.namespace not in ("admin", "api"):
            yield from routes(entry, path, entry.namespace or space)


def test_every_route_is_a_page_that_is_looked_at_or_known_to_be_none() -> None:
    unknown = [
        f"{name} {path}"
        for path, name in routes(get_resolver())
        if name not in PAGES and name not in NOT_PAGES and not re.search(r"\\?\.(json|csv|txt)\$?$", path)
    ]
    assert unknown == [], "add the page to PAGES, or to NOT_PAGES if it is none"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebServer]:
    web = WebServer(tmp_path_factory.mktemp("every"))
    web.env |= {"HEADRACE_ALERT_HOSTS": "127.0.0.1:9", "HEADRACE_TEST_HOOK": "http://127.0.0.1:9/hook"}
    web.env["HEADRACE_STATIC_COLLECTED"] = "1"  # as `headrace up` serves them
    web.manage("collectstatic", "--noinput", "--verbosity", "0")
    web.migrate()
    web.start()
    try:
        yield web
    finally:
        web.close()


@pytest.fixture(scope="module")
def house(server: WebServer) -> dict[str, str]:
    return full_house.make(server)


# The innermost things that stand out of the window, and in nothing that scrolls or cuts by itself.
TOO_WIDE = """[...document.querySelectorAll('body *')].filter(one => {
    if (one.getBoundingClientRect().right <= innerWidth + 1) return false;
    const scrolls = up => up !== document.body && (getComputedStyle(up).overflowX !== 'visible' || scrolls(up.parentElement));
    return !scrolls(one.parentElement);
}).slice(-3).map(one => one.outerHTML.slice(0, 160))"""


class Watched:
    """A page whose requests, console and policy are watched; `faults` are those of the page that is open."""

    def __init__(self, context: BrowserContext) -> None:
        context.add_init_script(WATCH + SHIFTS)
        self.page: Page = context.new_page()
        self.faults: list[str] = []
        self.waiting: set[Request] = set()
        self.page.on("pageerror", lambda error: self.faults.append(f"error {error}"))
        self.page.on("console", lambda line: self.faults.append(f"console {line.text}") if line.type in ("error", "warning") else None)
        self.page.on("request", lambda request: self.waiting.add(request))
        self.page.on("requestfinished", lambda request: self.waiting.discard(request))
        self.page.on("requestfailed", lambda request: self.waiting.discard(request))
        self.page.on("response", self._answered)

    def _answered(self, response: Response) -> None:
        if response.status >= 400:
            self.faults.append(f"{response.status} {response.url}")

    def open(self, path: str) -> None:
        """Opens the page and waits until it has asked for nothing for a tenth of a second."""
        self.faults.clear()
        self.waiting.clear()
        self.page.goto(path)
        calm, deadline = 0, time.monotonic() + 60
        while calm < 2 and time.monotonic() < deadline:
            self.page.wait_for_timeout(50)
            calm = 0 if self.waiting else calm + 1
        assert time.monotonic() < deadline, f"{path} still asks for {[request.url for request in self.waiting]}"
        self.page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def look(self, *, axe: bool = True) -> list[str]:
        """What is wrong with the open page, in words."""
        page, found = self.page, [*self.faults]
        found += page.evaluate("window.breaches")
        if page.evaluate("window.shifted") >= MOST_SHIFT:
            found.append(f"jumps {page.evaluate('window.shifts')}")
        if page.evaluate("document.documentElement.scrollWidth > innerWidth"):
            found.append(f"too wide {page.evaluate(TOO_WIDE)}")
        if axe:
            found += [f"axe {fault}" for fault in axe_faults(page)]
        return found


def context_of(browser: Browser, server: WebServer, session: str | None, scheme: str, width: int) -> BrowserContext:
    options: dict[str, Any] = {"color_scheme": scheme, "reduced_motion": "reduce", "viewport": {"width": width, "height": 900}}
    context = browser.new_context(base_url=server.url, **options)
    if session:
        context.add_cookies([{"name": "headrace-session", "value": session, "url": server.url}])
    return context


@pytest.mark.parametrize(("scheme", "width"), [("light", 390), ("dark", 1440)])
def test_every_page(browser: Browser, server: WebServer, house: dict[str, str], scheme: str, width: int) -> None:
    context = context_of(browser, server, house["session"], scheme, width)
    watched = Watched(context)
    found: dict[str, list[str]] = {}
    for paths in PAGES.values():
        for path in (one.format(**house) for one in paths):
            watched.open(path)
            wrong = [fault for fault in watched.look() if not ("a-spent-link" in path and " 410 " in f" {fault}")]
            if wrong:
                found[path] = wrong
    context.close()
    assert found == {}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_pages_of_those_who_are_not_signed_in(browser: Browser, server: WebServer, house: dict[str, str], scheme: str) -> None:
    context = context_of(browser, server, None, scheme, 390)
    watched = Watched(context)
    found: dict[str, list[str]] = {}
    for path in (one.format(**house) for one in SIGNED_OUT):
        watched.open(path)
        wrong = [fault for fault in watched.look() if not ("nothing" in path and "404" in fault)]
        if wrong:
            found[path] = wrong
    context.close()
    assert found == {}


def test_the_admin_opens(browser: Browser, server: WebServer, house: dict[str, str]) -> None:
    """Its own pages are Django's: looked at for faults, not by axe."""
    context = context_of(browser, server, house["session"], "light", 1440)
    watched = Watched(context)
    found: dict[str, list[str]] = {}
    for path in ("/admin/", "/admin/experiments/run/", "/admin/teams/user/"):
        watched.open(path)
        wrong = watched.look(axe=False)
        if wrong:
            found[path] = wrong
    context.close()
    assert found == {}
