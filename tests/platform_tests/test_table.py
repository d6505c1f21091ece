"""The runs table as a page: columns, order, faults, CSV, bulk actions, saved views, and who may see and press what."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from datetime import timedelta

import pytest
from django.test import Client
from django.utils import timezone

from headrace.compare import services, spreadsheet
from headrace.compare.models import SavedView
from headrace.experiments import services as run_services
from headrace.experiments import shelving
from headrace.experiments.models import Attempt, Experiment, Project, Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.teams.models import AuditEvent, Role, Team, User
from headrace.teams.services import NotAllowed
from tests.platform_tests.telemetry_rig import metric, push

Start = Callable[..., Run]


@pytest.fixture
def ada(team: Team, member: Callable[..., User]) -> User:
    return member(team, Role.OWNER, name="Ada")


@pytest.fixture
def browser(client: Client, ada: User) -> Client:
    client.force_login(ada)
    return client


def _names(page: str) -> list[str]:
    return re.findall(r'class="run-name"><a href="[^"]+">([^<]+)</a>', page)


def _get(browser: Client, query: str) -> str:
    return browser.get(f"/runs/?{query}").content.decode()


# --- the table ---------------------------------------------------------------------------------------------------------------------


def test_columns_are_chosen_and_sorted_by_the_link(browser: Client, team: Team, start: Start) -> None:
    for name, value in (("one", 0.2), ("two", 0.9), ("three", 0.5)):
        push(start(team, name=name).attempts.get(), [metric(value), metric(2.0, "lag/max")])
    page = _get(browser, "cols=lag/max,config.batch.prompts,heldout,nothing,lag.max&sort=-reward")
    assert _names(page) == ["two", "three", "one"]
    heads = re.findall(r"data-sort>([^<]+)</a>", page)
    assert heads == ["Run", "Lag, largest", "Prompts a step (batch)", "Held-out reward"]
    assert "There is no field <code>nothing</code>" in page
    assert 'title="2"' in page and 'title="8"' in page and '<span class="none">–</span>' in page
    assert _names(_get(browser, "q=sort:reward")) == ["one", "three", "two"]
    assert _names(_get(browser, "q=sort:reward&sort=name")) == ["one", "three", "two"]
    assert 'aria-sort="ascending"' in _get(browser, "q=sort:reward")
    assert _names(_get(browser, "sort=nonsense")) == ["three", "two", "one"]


def test_the_steps_are_those_last_asked_of_the_run(browser: Client, team: Team, start: Start) -> None:
    run = start(team, name="one")
    push(run.attempts.get(), [metric(0.2)])
    told = run.config.data["budget"]["steps"]
    assert f'<progress max="{told}"' in _get(browser, "")
    Run.unscoped.filter(pk=run.pk).update(control={"steps": told + 7})
    assert f'<progress max="{told + 7}"' in _get(browser, "")


def test_heads_turn_the_order_round_and_then_let_go(browser: Client, team: Team, start: Start) -> None:
    start(team)
    assert "sort=-reward" in _get(browser, "cols=reward")
    assert re.search(r'aria-sort="descending"><a href="/runs/\?cols=reward&amp;sort=reward"', _get(browser, "cols=reward&sort=-reward"))
    assert re.search(r'aria-sort="ascending"><a href="/runs/\?cols=reward"', _get(browser, "cols=reward&sort=reward"))


def test_a_query_that_is_wrong_is_shown_where_it_is_wrong(browser: Client, team: Team, start: Start) -> None:
    start(team, name="alpha")
    page = _get(browser, "rows=1&q=alpha+rewrd%3E1")
    assert "there is no field rewrd" in page and "alpha <mark>rewrd</mark>&gt;1" in page and "Did you mean reward" in page
    assert _names(page) == []
    assert "<mark>&lt;b&gt;</mark>" not in _get(browser, "q=%3Cb%3E") and "<b>" not in _get(browser, "rows=1&q=%3Cb%3E")
    assert browser.get("/runs/table.csv?q=rewrd%3E1").status_code == 400
    assert browser.get("/runs/?q=%00alpha").status_code == 200


def test_runs_put_away_are_shown_when_asked(browser: Client, team: Team, ada: User, start: Start) -> None:
    run = start(team, ada, name="old")
    with pytest.raises(WrongState, match="cancel it first"):
        shelving.archive_run(run, ada)
    run_services.cancel_run(run, ada)
    shelving.archive_run(run, ada)
    start(team, ada, name="new")
    assert _names(_get(browser, "")) == ["new"]
    assert _names(_get(browser, "archived=1")) == ["new", "old"]
    assert _names(_get(browser, "q=archived:yes")) == ["old"]
    shelving.unarchive_run(run, ada)
    assert _names(_get(browser, "")) == ["new", "old"]
    assert list(AuditEvent.unscoped.filter(action__contains="archive").values_list("action", flat=True)) == ["run.archive", "run.unarchive"]


def test_projects_and_experiments_filter(browser: Client, team: Team, ada: User, start: Start) -> None:
    first = start(team, ada, name="first")
    other = Project.objects.create(team=team, name="Other", slug="other")
    experiment = Experiment.objects.create(team=team, project=other, name="Why?")
    start(team, ada, name="second", project=other, experiment=experiment)
    assert "Every project" in _get(browser, "") and "Every experiment" in _get(browser, "")
    assert _names(_get(browser, f"project={other.public_id}")) == ["second"]
    assert _names(_get(browser, f"project={first.project.public_id}")) == ["first"]
    assert _names(_get(browser, f"experiment={experiment.public_id}")) == ["second"]


def test_csv_holds_the_chosen_columns_and_no_formula(browser: Client, team: Team, ada: User, start: Start) -> None:
    run = start(team, ada, name="=HYPERLINK(1)", tags=["+a", "b"])
    push(run.attempts.get(), [metric(-0.5)])
    start(team, ada, name="plain")
    reply = browser.get("/runs/table.csv?cols=reward,tag,created&sort=reward")
    assert reply["Content-Disposition"] == 'attachment; filename="runs.csv"'
    rows = list(csv.reader(io.StringIO(reply.content.decode())))
    assert rows[0] == ["id", "name", "reward", "tag", "created"]
    assert rows[1][:4] == [run.public_id, "'=HYPERLINK(1)", "-0.5", "'+a, b"]
    assert rows[2][1:3] == ["plain", ""]


@pytest.mark.parametrize("text", ["=1", "+1", "-1", "@a", "\t=1", " =1", "\r=1", "|x", "%x"])
def test_cells_never_begin_a_formula(text: str) -> None:
    assert str(spreadsheet.cell(text)).startswith("'")


def test_cells_keep_numbers_and_words() -> None:
    assert [spreadsheet.cell(value) for value in (-1.5, 3, True, None, "a=b", ["x", "y"])] == [-1.5, 3, "yes", "", "a=b", "x, y"]


def test_fields_are_told_for_completion(browser: Client, team: Team, other_team: Team, start: Start) -> None:
    push(start(team).attempts.get(), [metric(1.0, "my/own")])
    push(start(other_team).attempts.get(), [metric(1.0, "their/own")])
    told = {item["key"]: item for item in browser.get("/runs/fields.json").json()["fields"]}
    assert {"state", "reward", "lag/max", "config.batch.prompts", "my/own"} <= told.keys() and "their/own" not in told
    assert "running" in told["state"]["values"] and "bounded" in told["config.buffer.kind"]["values"]


def test_durations_are_told(browser: Client, team: Team, start: Start) -> None:
    now = timezone.now()
    for seconds, words in ((5, "5 s"), (125, "2 min 05 s"), (3700, "1 h 01 min"), (90000, "1 d 1 h")):
        Attempt.unscoped.filter(run=start(team)).update(started_at=now - timedelta(seconds=seconds))
        assert words in _get(browser, "cols=duration")


# --- several at once -----------------------------------------------------------------------------------------------------------------


def _bulk(browser: Client, action: str, *runs: Run, **more: str) -> str:
    body = {"action": action, "run": [run.public_id for run in runs], **more}
    return browser.post("/runs/bulk/", body, follow=True).content.decode()


def test_several_runs_are_tagged_cancelled_put_away_and_deleted(browser: Client, team: Team, start: Start) -> None:
    runs = [start(team, name=f"run {number}") for number in range(3)]
    assert "Tagged: run 0, run 1" in _bulk(browser, "tag", *runs[:2], tag=" best ", back="q=run&page=3")
    assert "Tag taken off" in _bulk(browser, "untag", runs[1], tag="best")
    tags = {run.name: run.tags for run in Run.objects.for_team(team)}
    assert tags == {"run 0": ["best"], "run 1": [], "run 2": []}
    assert "Could not put away run 2: a run that is queued" in _bulk(browser, "archive", runs[2])
    asked = _bulk(browser, "cancel", *runs)
    assert "Cancel 3 runs?" in asked and Run.objects.for_team(team).filter(state="cancelled").count() == 0
    assert "Asked to stop: run 0, run 1, run 2" in _bulk(browser, "cancel", *runs, sure="1")
    assert "Put away: run 2" in _bulk(browser, "archive", runs[2])
    assert "Taken back: run 2" in _bulk(browser, "unarchive", runs[2])
    queued = start(team, name="still queued")
    asked = _bulk(browser, "delete", runs[0], queued)
    assert "Delete 1 run?" in asked and "cancel them first" in asked and f'value="{queued.public_id}"' not in asked
    both = _bulk(browser, "delete", runs[0], queued, sure="1")
    assert "Deleted: run 0" in both and "Could not delete still queued" in both
    assert Run.objects.for_team(team).filter(deleted_at=None).count() == 3


def test_bulk_says_what_is_wrong_with_the_request(browser: Client, team: Team, start: Start) -> None:
    run = start(team)
    assert "Choose at least one run" in _bulk(browser, "tag", tag="x")
    assert "Action: is not an action" in _bulk(browser, "explode", run)
    assert "Tag: is empty" in _bulk(browser, "tag", run, tag=" ")
    assert "Tag: holds an invisible character" in _bulk(browser, "tag", run, tag="a\u202eb")
    assert browser.get("/runs/bulk/").status_code == 405
    reply = browser.post("/runs/bulk/", {"action": "tag", "tag": "x", "run": run.public_id, "back": "https://evil.example/"})
    assert reply["Location"].startswith("/runs/")
    assert browser.post("/runs/bulk/", {"action": "compare", "run": [run.public_id]})["Location"] == f"/compare/?runs={run.public_id}"


def test_bulk_reaches_only_what_its_user_may(
    client: Client, team: Team, other_team: Team, member: Callable[..., User], start: Start
) -> None:
    theirs, mine = start(other_team, name="theirs"), start(team, member(team, Role.MEMBER), name="not mine")
    client.force_login(member(team, Role.MEMBER))
    assert "Choose at least one run" in _bulk(client, "tag", theirs, tag="x")
    assert "Could not tag not mine: your role" in _bulk(client, "tag", mine, tag="x")
    client.force_login(member(team, Role.VIEWER))
    assert "your role" in _bulk(client, "delete", mine, sure="1")
    assert not Run.objects.for_team(team).exclude(tags=[]).exists() and not Run.unscoped.exclude(deleted_at=None).exists()


# --- saved views -----------------------------------------------------------------------------------------------------------------------


def test_a_view_is_saved_opened_renamed_and_deleted(browser: Client, team: Team, start: Start) -> None:
    start(team)
    reply = browser.post(
        "/views/save/", {"page": "runs", "name": "Best", "query": "?q=reward%3E0.5&cols=reward&page=3&csrfmiddlewaretoken=x"}
    )
    assert reply["Location"] == "/runs/?q=reward%3E0.5&cols=reward"
    view = SavedView.objects.for_team(team).get()
    assert browser.get(f"/views/{view.public_id}/")["Location"] == reply["Location"]
    assert f'href="/views/{view.public_id}/" aria-current="page"' in browser.get(reply["Location"]).content.decode()
    again = browser.post("/views/save/", {"page": "runs", "name": "Best", "query": "q=x"}, follow=True).content.decode()
    assert "another view has this name" in again
    assert browser.post("/views/save/", {"page": "compare", "name": "Best", "query": "runs=a"})["Location"] == "/compare/?runs=a"
    browser.post(f"/views/{view.public_id}/rename/", {"name": "<b>Better</b>"})
    assert "&lt;b&gt;Better" in browser.get("/views/").content.decode()
    assert "Name is empty" in browser.post(f"/views/{view.public_id}/rename/", {"name": " "}, follow=True).content.decode()
    browser.post(f"/views/{view.public_id}/delete/")
    assert [item.page for item in SavedView.objects.for_team(team)] == ["compare"]
    assert browser.get(f"/views/{view.public_id}/").status_code == 404


def test_views_stay_in_their_team_and_with_their_makers(
    client: Client, team: Team, other_team: Team, ada: User, member: Callable[..., User]
) -> None:
    view = services.save_view(team, ada, page="runs", name="Hers", query="q=a")
    stranger, viewer, maker = member(other_team, Role.OWNER), member(team, Role.VIEWER), member(team, Role.MEMBER)
    client.force_login(stranger)
    for path in ("", "rename/", "delete/"):
        ask = client.post if path else client.get
        assert ask(f"/views/{view.public_id}/{path}", {"name": "x"} if path else None).status_code == 404
    assert "Hers" not in client.get("/views/").content.decode()
    client.force_login(viewer)
    assert client.get(f"/views/{view.public_id}/").status_code == 302
    assert client.post("/views/save/", {"page": "runs", "name": "x", "query": ""}).status_code == 403
    client.force_login(maker)
    assert client.post(f"/views/{view.public_id}/delete/").status_code == 403
    with pytest.raises(NotAllowed):
        services.rename_view(view, maker, "Mine")
    own = services.save_view(team, maker, page="runs", name="Own", query="")
    services.delete_view(own, maker)


def test_a_view_of_another_of_ones_teams_opens_in_that_team(
    client: Client, team: Team, other_team: Team, member: Callable[..., User]
) -> None:
    from headrace.teams.models import Membership

    user = member(team, Role.MEMBER)
    Membership.objects.create(team=other_team, user=user, role=Role.MEMBER)
    view = services.save_view(other_team, user, page="runs", name="There", query="q=a")
    client.force_login(user)
    assert "Alpha" in client.get("/runs/").content.decode()
    assert "Beta" in client.get(f"/views/{view.public_id}/", follow=True).content.decode()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"page": "elsewhere"}, "not a page"),
        ({"name": ""}, "is empty"),
        ({"name": "a\u200bb"}, "invisible"),
        ({"name": "n" * 101}, "longer than 100"),
        ({"query": "q=" + "x" * 4000}, "longer than 4000"),
        ({"query": "&".join(f"a{number}=1" for number in range(80))}, "too many parts"),
    ],
)
def test_views_that_cannot_be_saved(team: Team, ada: User, changes: dict[str, str], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        services.save_view(team, ada, **{"page": "runs", "name": "A view", "query": "q=a", **changes})
    assert not SavedView.objects.for_team(team).exists()


def test_a_team_has_a_bounded_number_of_views(team: Team, ada: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "MOST_VIEWS", 1)
    services.save_view(team, ada, page="runs", name="one", query="")
    with pytest.raises(BadInput, match="views already"):
        services.save_view(team, ada, page="runs", name="two", query="")


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path", ["/runs/table.csv", "/runs/fields.json", "/views/", "/compare/", "/compare/series.json", "/compare/search.json"]
)
def test_nothing_here_without_login(client: Client, path: str) -> None:
    assert client.get(path)["Location"].startswith("/login/")
