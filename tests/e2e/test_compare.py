"""The runs table and the comparison in a real browser, over four driven runs. A breach of the CSP or a console error fails each test."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import httpx
import pytest
from playwright.sync_api import Browser, Page, expect

from tests.e2e.axe import axe_faults
from tests.e2e.web_rig import PASSWORD, WebServer

pytestmark = pytest.mark.e2e
HOSTILE = "<img src=x onerror=alert(1)>"
# name, what differs from the preset demo, group, last reward
RUNS: list[tuple[str, list[str], str, float]] = [
    ("lag 0, first", ["staleness.max_lag=0", "seed=1"], "lag sweep", 0.8),
    ("lag 0, second", ["staleness.max_lag=0", "seed=2"], "lag sweep", 0.7),
    ("lag 8", ["staleness.max_lag=8", "seed=1"], "lag sweep", 0.4),
    (HOSTILE, ["environment.options.max_terms=3"], "", 0.1),
]
SETUP = """
import json, sys, django
django.setup()
from headrace.experiments import services
from headrace.experiments.models import Project
from headrace.experiments.tokens import issue_run_token
from headrace.teams.models import Membership, Role, Team, User
from workers.contract import loading
team = Team.objects.first() or Team.objects.create(name="Demo", slug="demo")
project = Project.objects.for_team(team).first() or Project.objects.create(team=team, name="Demo", slug="demo")
user = User.objects.create_user("ada@example.org", sys.argv[1], name="Ada")
Membership.objects.create(team=team, user=user, role=Role.OWNER)
made = []
for name, sets, group, _ in json.loads(sys.argv[2]):
    config = services.create_config(team, loading.resolve({}, "demo", sets))
    run = services.start_run(team=team, user=user, config=config, project=project, name=name, idempotency_key=name, group=group)
    attempt = run.attempts.get()
    made.append([run.public_id, attempt.public_id, issue_run_token(attempt)])
print(json.dumps(made))
"""


def drive(server: WebServer, attempt: str, token: str, reward: float, *, first: int = 1, steps: int = 20) -> None:
    """Posts `steps` trained steps whose reward rises to `reward`."""
    start = [("started", {"config_digest": "d", "provenance": {}, "resumed_from": None, "lanes": ["trainer"]})] if first == 1 else []
    events: list[tuple[str, dict[str, Any]]] = list(start)
    for step in range(first, first + steps):
        values = {
            "reward/mean": reward * min(1.0, step / 20),
            "lag/mean": 1.5,
            "samples/trained": 64 * step,
            "loss/entropy": 1 - step / 100,
        }
        if step % 5 == 0:
            values["eval/reward_mean"] = reward * min(1.0, step / 20) * 0.9
        events.append(("metrics", {"values": values}))
    begin = 1 if first == 1 else first + 1
    now = time.time()
    numbers = range(len(events))
    body = {
        "fence": 1,
        "first_seq": begin,
        "t": [now + number for number in numbers],
        "step": [max(0, begin + number - 1) for number in numbers],
        "kind": [kind for kind, _ in events],
        "data": [data for _, data in events],
    }
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    reply = httpx.post(f"{server.url}/api/v1/attempts/{attempt}/events", content=json.dumps(body), headers=headers, timeout=20)
    assert reply.status_code == 200, reply.text


@pytest.fixture(scope="module")
def made(server: WebServer) -> list[list[str]]:
    """[run, attempt, token] of each of RUNS, all driven."""
    found: list[list[str]] = json.loads(server.ask(SETUP, PASSWORD, json.dumps(RUNS)))
    for (_, attempt, token), (_, _, _, reward) in zip(found, RUNS, strict=True):
        drive(server, attempt, token, reward)
    return found


@pytest.fixture(scope="module")
def signed_in(server: WebServer, browser: Browser, made: list[list[str]]) -> str:
    page = browser.new_context().new_page()
    page.goto(f"{server.url}/login/")
    page.locator("input[name=username]").fill("ada@example.org")
    page.locator("input[name=password]").fill(PASSWORD)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Runs")).to_be_visible()
    kept = server.data / "session.json"
    page.context.storage_state(path=kept)
    page.context.close()
    return str(kept)


@pytest.fixture(scope="module")
def options() -> dict[str, Any]:
    return {"viewport": {"width": 1440, "height": 900}}


def shown(page: Page) -> list[str]:
    return page.locator("#runs .run-name > a").all_inner_texts()


def traces(page: Page, name: str = "reward/mean") -> list[dict[str, Any]]:
    """The lines of a chart that carry a name in its legend."""
    found: list[dict[str, Any]] = page.evaluate(
        "name => (document.querySelector(`[data-series='${name}'] .plot`)?.data || []).filter(line => !line.band && !line.runFaint)"
        ".map(line => ({ name: line.name, x: [...line.x], y: [...line.y] }))",
        name,
    )
    return found


def wait_for_lines(page: Page, many: int, name: str = "reward/mean") -> list[dict[str, Any]]:
    page.wait_for_function(
        "([name, many]) => (document.querySelector(`[data-series='${name}'] .plot`)?.data || [])"
        ".filter(line => !line.band && !line.runFaint).length === many",
        arg=[name, many],
    )
    return traces(page, name)


def test_a_query_is_completed_asked_and_told_where_it_is_wrong(page: Page) -> None:
    page.goto("/runs/")
    expect(page.locator("#runs tr[data-run]")).to_have_count(4)
    search = page.get_by_label("Search runs")
    search.press_sequentially("rewar")
    page.get_by_role("option", name="reward Reward", exact=True).click()
    expect(search).to_have_value("reward:")
    search.fill("reward>0.5")
    expect(page.locator("#runs tr[data-run]")).to_have_count(2)
    assert "q=reward%3E0.5" in page.url
    search.fill("reward>0.5 sed:1")
    expect(page.get_by_role("alert")).to_contain_text("there is no field sed")
    expect(page.locator(".query-fault mark")).to_have_text("sed")
    search.fill("config.staleness.max_lag:8 state:")
    search.press("End")
    search.press_sequentially("runn")
    search.press("ArrowDown")
    search.press("Enter")
    expect(search).to_have_value("config.staleness.max_lag:8 state:running")
    expect(page.locator("#runs tr[data-run]")).to_have_count(1)
    page.reload()
    assert shown(page) == ["lag 8"]
    page.locator("#query-help summary").click()
    expect(page.get_by_text("largest first")).to_be_visible()


def test_columns_are_chosen_ordered_and_kept_in_the_link(page: Page) -> None:
    page.goto("/runs/?cols=state,reward")
    page.locator("#columns summary").click()
    adding = page.get_by_label("Add a column")
    adding.fill("largest lag (stal")
    page.get_by_role("option", name=re.compile("config.staleness.max_lag")).click()
    expect(page.locator("#runs thead")).to_contain_text("Largest lag (staleness)")
    page.get_by_role("button", name="Move config.staleness.max_lag up").click()
    page.get_by_role("button", name="Leave out state").click()
    expect(page.locator("#runs thead th")).to_have_text(["Run", "Largest lag (staleness)", "Reward", "Started"][:3])
    items = page.locator(".column-list li")
    items.nth(1).drag_to(items.nth(0))
    expect(page.locator("#runs thead th")).to_have_text(["Run", "Reward", "Largest lag (staleness)"])
    page.keyboard.press("Escape")
    page.locator("#runs thead").get_by_role("link", name="Reward").click()
    expect(page.locator("#runs thead [aria-sort=descending]")).to_have_text("Reward")
    page.reload()
    assert shown(page)[0] == "lag 0, first"
    assert "sort=-reward" in page.url and "cols=reward%2Cconfig.staleness.max_lag" in page.url


def test_what_is_chosen_stays_while_rows_change(page: Page, server: WebServer, made: list[list[str]]) -> None:
    page.goto("/runs/?cols=reward,step")
    run, attempt, token = made[3]
    box = page.locator(f"tr[data-run='{run}'] input[name=run]")
    box.check()
    page.locator(f"tr[data-run='{made[2][0]}'] input[name=run]").check()
    box.focus()
    drive(server, attempt, token, 0.1, first=21, steps=5)
    expect(page.locator(f"tr[data-run='{run}'] .steps")).to_contain_text("25")
    expect(box).to_be_checked()
    expect(box).to_be_focused()
    expect(page.locator("#bulk-count")).to_have_text("2 chosen")
    page.get_by_label("Tag", exact=True).fill("looked at")
    page.get_by_role("button", name="Add tag").click()
    expect(page.locator(".message.success")).to_contain_text("Tagged")
    expect(page.locator(f"tr[data-run='{run}'] .tag")).to_have_text("looked at")
    page.locator(f"tr[data-run='{run}'] input[name=run]").check()
    page.get_by_role("button", name="Delete").click()
    expect(page.get_by_text("cancel them first")).to_be_visible()
    page.get_by_role("link", name="Back to the table").click()
    assert "cols=reward" in page.url


def test_a_view_is_saved_and_passed_on(page: Page) -> None:
    page.goto("/runs/?q=lag&sort=-reward")
    page.locator("#save-view summary").click()
    page.get_by_label("Name of the view").fill("Lag runs")
    page.get_by_role("button", name="Save", exact=True).click()
    expect(page.get_by_role("link", name="Lag runs")).to_have_attribute("aria-current", "page")
    page.goto("/runs/")
    page.get_by_role("link", name="Lag runs").click()
    expect(page.get_by_label("Search runs")).to_have_value("lag")
    assert shown(page)[0] == "lag 0, first"


def test_runs_are_compared_from_the_table(page: Page, made: list[list[str]]) -> None:
    page.goto("/runs/?sort=name")
    for run, _, _ in made:
        page.locator(f"tr[data-run='{run}'] input[name=run]").check()
    page.get_by_role("button", name="Compare").click()
    lines = wait_for_lines(page, 4)
    assert sorted(line["name"] for line in lines)[0] == "&lt;img src=x onerror=alert(1)&gt;"
    expect(page.locator(".message", has_text="are not comparable")).to_contain_text("environment.options")
    expect(page.locator("#diff")).to_contain_text("staleness.max_lag")
    expect(page.locator("#diff")).not_to_contain_text("batch.prompts")
    page.get_by_role("button", name="samples", exact=True).click()
    page.wait_for_function("() => document.querySelector(\"[data-series='reward/mean'] .plot\").data[0].x[0] === 64")
    page.locator("#smooth").fill("0.5")
    page.locator("#log").check()
    page.get_by_label("Add a series").fill("entropy")
    page.get_by_label("Add a series").press("Enter")
    page.get_by_role("button", name="Leave out lag/mean").click()
    page.get_by_role("button", name=re.compile("^lag 8")).click()
    wait_for_lines(page, 3)
    expect(page.locator("#shown-note")).to_have_text("3 shown")
    page.reload()
    assert len(wait_for_lines(page, 3)) == 3
    expect(page.locator("#smooth")).to_have_value("0.5")
    expect(page.locator("#log")).to_be_checked()
    expect(page.locator("#series-chips")).not_to_contain_text("lag/mean")
    expect(page.get_by_role("button", name=re.compile("^lag 8"))).to_have_attribute("aria-pressed", "false")
    page.get_by_role("button", name="Take lag 8 out").click()
    expect(page.get_by_role("heading", name="3 runs")).to_be_visible()
    page.get_by_label("Add a run").fill("lag 8")
    page.get_by_role("option", name=re.compile("lag 8")).click()
    expect(page.get_by_role("heading", name="4 runs")).to_be_visible()


def test_seeds_become_means_and_axes_are_brushed(page: Page) -> None:
    page.goto("/compare/?group=lag sweep")
    wait_for_lines(page, 3)
    page.locator("#by").select_option("config.staleness.max_lag")
    lines = wait_for_lines(page, 2)
    assert [line["name"] for line in lines] == ["0", "8"] and lines[0]["y"][-1] == pytest.approx(0.75)
    expect(page.locator("#group-legend")).to_contain_text("0 (2 runs)")
    page.locator("#by").select_option("")
    wait_for_lines(page, 3)
    axis = page.locator(".axis-hit[data-key=reward]")
    axis.scroll_into_view_if_needed()
    area = axis.bounding_box()
    assert area
    page.mouse.move(area["x"] + 16, area["y"] + 2)
    page.mouse.down()
    page.mouse.move(area["x"] + 16, area["y"] + area["height"] / 2)
    page.mouse.up()
    wait_for_lines(page, 2)
    expect(page.locator(".run-line.out")).to_have_count(1)
    assert "brush=reward" in page.url
    axis.focus()
    page.keyboard.press("Delete")
    wait_for_lines(page, 3)
    page.keyboard.press("ArrowUp")
    wait_for_lines(page, 2)
    page.get_by_role("button", name="Clear").click()
    page.locator("#scatter-color").click()
    page.locator("#scatter-color").fill("largest lag")
    page.get_by_role("option", name=re.compile("max_lag")).click()
    expect(page.locator("#scatter-scale")).to_contain_text("Largest lag")
    page.locator("#scatter-names").check()
    expect(page.locator("#scatter")).to_have_attribute("aria-label", re.compile("lag 0, first 0.72"))
    page.locator("#result-columns summary").click()
    page.locator("#result-columns").get_by_label("Add a column").fill("entropy")
    page.get_by_role("option", name=re.compile("loss.entropy")).click()
    expect(page.locator("#results thead")).to_contain_text("Entropy")
    assert "loss%2Fentropy" in page.url


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_both_pages_are_accessible_and_fit_a_phone(page: Page, made: list[list[str]], scheme: str) -> None:
    page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
    ids = ",".join(run for run, _, _ in made)
    found: list[str] = []
    both = [f"/compare/?runs={ids}&by=group&each=1&hide={made[0][0]}", "/runs/?q=reward>0"]
    for path in both if scheme == "dark" else [*both, "/compare/", "/runs/?q=rewrd>0", "/views/"]:
        page.goto(path)
        if "runs=" in path:
            wait_for_lines(page, 2)
            page.set_viewport_size({"width": 390, "height": 844})
            page.wait_for_timeout(200)
        if "reward>0" in path:
            page.locator("input[name=run]").first.check()
        found += [f"{path}: {fault}" for fault in axe_faults(page, colours_only=scheme == "dark")]
        assert page.evaluate("document.documentElement.scrollWidth - window.innerWidth") <= 0, path
    assert found == []
