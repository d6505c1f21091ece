"""Comparing runs: which are chosen, their curves on each axis, bands over seeds, settings that differ, and that teams stay apart."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from hypothesis import given
from hypothesis import strategies as st

from headrace.compare import board, fields, overlay, selectors
from headrace.experiments import services
from headrace.experiments.models import Project, Run
from headrace.teams.models import Role, Team, User
from tests.platform_tests.telemetry_rig import T0, metric, new_attempt, push
from workers.contract import loading

Launch = Callable[..., Run]


@pytest.fixture
def ada(team: Team, member: Callable[..., User]) -> User:
    return member(team, Role.OWNER)


@pytest.fixture
def browser(client: Client, ada: User) -> Client:
    client.force_login(ada)
    return client


@pytest.fixture
def launch(team: Team) -> Launch:
    """launch(name, "path=value", ..., group="") queues a run of the demo preset."""

    def make(name: str, *sets: str, into: Team | None = None, **fields: Any) -> Run:
        home = into or team
        project, _ = Project.unscoped.get_or_create(team=home, slug="p", defaults={"name": "P"})
        config = services.create_config(home, loading.resolve({}, "demo", list(sets)))
        return services.start_run(team=home, user=None, config=config, project=project, name=name, idempotency_key=name, **fields)

    return make


def _told(page: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(re.search(r'<script id="page-data" type="application/json">(.*?)</script>', page, re.S).group(1))  # type: ignore[union-attr]
    return found


def _ids(page: str) -> list[str]:
    found = re.search(r'id="compare" data-ids="([^"]*)"', page)
    return found.group(1).split(",") if found else []


def _steps(*values: float, trained: int = 64) -> list[tuple[str, dict[str, Any]]]:
    return [("metrics", {"values": {"reward/mean": value, "samples/trained": trained * (at + 1)}}) for at, value in enumerate(values)]


# --- which runs --------------------------------------------------------------------------------------------------------------------


def test_runs_are_chosen_by_id_group_and_query_in_their_order(browser: Client, launch: Launch) -> None:
    one, two, three = launch("one", group="a b"), launch("two", "seed=8", group="a b"), launch("three", "seed=9")
    page = browser.get(f"/compare/?runs={three.public_id},{one.public_id},{one.public_id},aaaaaaaaaaaa").content.decode()
    assert _ids(page) == [three.public_id, one.public_id]
    assert "<code>aaaaaaaaaaaa</code>" in page
    assert _ids(browser.get("/compare/?group=a b").content.decode()) == [one.public_id, two.public_id]
    assert _ids(browser.get("/compare/?q=seed>7+sort:seed").content.decode()) == [two.public_id, three.public_id]
    assert _ids(browser.get(f"/compare/?run={one.public_id}&run={two.public_id}").content.decode()) == [one.public_id, two.public_id]
    wrong = browser.get("/compare/?q=sed>7").content.decode()
    assert "there is no field sed" in wrong and "<mark>sed</mark>" in wrong and "Choose runs to compare" in wrong


def test_an_empty_comparison_teaches(browser: Client, launch: Launch) -> None:
    assert "Nothing to compare yet" in browser.get("/compare/").content.decode()
    run = launch("one", group="<i>g</i>")
    page = browser.get("/compare/").content.decode()
    assert "Choose runs to compare" in page and run.public_id in page and "&lt;i&gt;g" in page and "group=%3Ci%3Eg%3C/i%3E" in page
    alone = browser.get(f"/compare/?runs={run.public_id}").content.decode()
    assert "Add a second run" in alone


def test_more_runs_than_are_compared_are_said(browser: Client, launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selectors, "MOST_RUNS", 2)
    runs = [launch(f"run {number}") for number in range(3)]
    for query in ("q=run", "runs=" + ",".join(run.public_id for run in runs)):
        page = browser.get(f"/compare/?{query}").content.decode()
        assert len(_ids(page)) == 2 and "More runs fit" in page


def test_other_teams_runs_do_not_exist_here(browser: Client, launch: Launch, other_team: Team) -> None:
    mine, theirs = launch("mine"), launch("theirs", into=other_team, group="g")
    push(theirs.attempts.get(), [metric(0.5), metric(0.5, "secret/x")])
    both = f"runs={mine.public_id},{theirs.public_id}"
    page = browser.get(f"/compare/?{both}").content.decode()
    assert _ids(page) == [mine.public_id] and "theirs" not in page and "secret" not in page
    assert browser.get(f"/compare/series.json?{both}&names=reward/mean").json()["runs"] == {mine.public_id: {}}
    assert [run["id"] for run in browser.get(f"/compare/data.json?{both}").json()["runs"]] == [mine.public_id]
    assert [run["name"] for run in browser.get("/compare/search.json").json()["runs"]] == ["mine"]
    for path in ("results.csv", "series.csv"):
        assert theirs.public_id not in browser.get(f"/compare/{path}?{both}&names=reward/mean").content.decode()
    assert _ids(browser.get("/compare/?group=g").content.decode()) == []


# --- curves ---------------------------------------------------------------------------------------------------------------------------


def test_curves_lie_on_each_axis(browser: Client, launch: Launch) -> None:
    one, two = launch("one"), launch("two")
    push(one.attempts.get(), _steps(0.1, 0.2, 0.3))
    push(two.attempts.get(), _steps(0.4, 0.5, trained=10))
    ask = f"/compare/series.json?runs={one.public_id},{two.public_id}&names=reward/mean,other/x"

    def curve(run: Run, x: str) -> dict[str, list[float]]:
        found: dict[str, list[float]] = browser.get(f"{ask}&x={x}").json()["runs"][run.public_id]["reward/mean"]
        return found

    assert curve(one, "step") == {"x": [1, 2, 3], "y": [0.1, 0.2, 0.3]}
    assert curve(one, "samples")["x"] == [64, 128, 192] and curve(two, "samples")["x"] == [10, 20]
    assert curve(two, "time")["x"] == pytest.approx([0, 1 / 60], abs=1e-6)
    assert browser.get(f"{ask}&x=tokens").json()["runs"][one.public_id] == {}
    assert browser.get(ask).json()["active"] is True


def test_what_was_trained_again_is_drawn_once(launch: Launch) -> None:
    run = launch("resumed")
    push(run.attempts.get(), [metric(value) for value in (0.1, 0.2, 0.3, 0.4)])
    later = new_attempt(run, 2, "hrw_x")
    push(later, [("started", {"provenance": {}, "resumed_from": {"step": 2, "version": 2}})], step=2)
    push(later, [metric(0.9)], first=2, step=3)
    places, found = overlay.lines([run], ["reward/mean"], "step")["reward/mean"][run.pk]
    assert (places.tolist(), found.tolist()) == ([1, 2, 3], [0.1, 0.2, 0.9])


def test_groups_are_means_with_bands(browser: Client, launch: Launch) -> None:
    runs = [launch(f"s{seed}", f"seed={seed}") for seed in (7, 8)] + [launch("wide", "staleness.max_lag=9")]
    for run, values in zip(runs, ((0.1, 0.2, 0.3), (0.3, 0.4), (0.9,)), strict=True):
        push(run.attempts.get(), [metric(value) for value in values])
    ask = f"/compare/series.json?runs={','.join(run.public_id for run in runs)}&names=reward/mean&by=staleness.max_lag"
    narrow, wide = browser.get(f"{ask}&band=range").json()["groups"]
    assert (narrow["label"], wide["label"], narrow["runs"]) == ("4", "9", [run.public_id for run in runs[:2]])
    columns = narrow["series"]["reward/mean"]
    assert columns["x"] == [1, 2, 3] and columns["n"] == [2, 2, 1]
    assert columns["mean"] == pytest.approx([0.2, 0.3, 0.3]) and columns["low"] == pytest.approx([0.1, 0.2, 0.3])
    deviation = browser.get(ask).json()["groups"][0]["series"]["reward/mean"]
    assert deviation["high"][0] - deviation["mean"][0] == pytest.approx(0.1 * 2**0.5, rel=1e-4)
    interval = browser.get(f"{ask}&band=ci").json()["groups"][0]["series"]["reward/mean"]
    assert interval["high"][0] - interval["mean"][0] == pytest.approx(12.706 * 0.1, rel=1e-4)
    assert wide["series"]["reward/mean"]["n"] == [1]


LINES = st.lists(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30), min_size=1, max_size=5)


@given(LINES, st.sampled_from(overlay.BANDS))
def test_a_band_holds_its_mean_and_counts_its_runs(columns: list[list[float]], kind: str) -> None:
    members = [(np.arange(len(values), dtype=float) * 37, np.array(values)) for values in columns]
    found = overlay.band(members, kind)
    assert len({len(column) for column in found.values()}) == 1 and np.isfinite(found["mean"]).all()
    assert (found["low"] <= found["mean"] + 1e-9).all() and (found["mean"] <= found["high"] + 1e-9).all()
    assert found["n"][0] == len(members) and found["n"].min() >= 1 and (np.diff(found["x"]) > 0).all()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("names=", "names"),
        ("names=" + ",".join(f"a/{number}" for number in range(17)), "names"),
        ("names=reward/mean&x=epoch", "x"),
        ("names=reward/mean&by=nothing", "q"),
        ("names=reward/mean&by=preset&band=wide", "band"),
        ("names=bad%20name%00", "names"),
    ],
)
def test_requests_that_cannot_be_drawn(browser: Client, query: str, field: str) -> None:
    reply = browser.get(f"/compare/series.json?{query}")
    assert reply.status_code == 400 and reply.json()["field"] == field and reply.json()["cure"]


def test_an_answer_is_bounded_and_costs_the_same_for_many_runs(team: Team, launch: Launch) -> None:
    assert overlay.buckets_for(1, 1) == 2000 and overlay.buckets_for(32, 16) * 32 * 16 <= overlay.MOST_POINTS
    costs, runs = [], []
    for number in range(3):
        runs.append(launch(f"run {number}"))
        push(runs[-1].attempts.get(), _steps(0.1, 0.2))
        with CaptureQueriesContext(connection) as queries:
            overlay.overlay(runs, ["reward/mean", "lag/mean"], "samples", fields.resolve("preset"), "sd")
        costs.append(len(queries))
    assert len(set(costs)) == 1, costs


# --- beside the curves -------------------------------------------------------------------------------------------------------------------


def test_settings_that_differ_are_listed_and_marked(browser: Client, launch: Launch) -> None:
    runs = [launch("one"), launch("two", "staleness.max_lag=9", "environment.options.max_terms=3"), launch("three")]
    sections = {block["name"]: block["rows"] for block in board.config_diff(runs)}
    assert sections.keys() == {"staleness", "environment"}
    (row,) = sections["staleness"]
    assert row["path"] == "staleness.max_lag" and [cell["differs"] for cell in row["cells"]] == [False, True, False]
    assert [cell["text"] for cell in sections["environment"][0]["cells"]] == ["2", "3", "2"]
    whole = [row for block in board.config_diff(runs, every=True) for row in block["rows"]]
    assert len(whole) > 80 and sum(row["differs"] for row in whole) == 2
    assert board.not_comparable(runs) == ["environment.options"]
    ask = "/compare/?runs=" + ",".join(run.public_id for run in runs)
    page = browser.get(ask).content.decode()
    assert (
        "are not comparable" in page
        and '<td class="differs"><span class="diff-cell">9</span>' in page
        and "batch.prompts" not in page[: page.index("page-data")]
    )
    assert "<code>batch.prompts</code>" in browser.get(f"{ask}&diff=all").content.decode()
    assert "are not comparable" not in browser.get(f"/compare/?runs={runs[0].public_id},{runs[2].public_id}").content.decode()


def test_the_page_knows_every_field_and_which_vary(browser: Client, launch: Launch) -> None:
    one, two = launch("one", "batch.prompts=4", tags=["a", "b"]), launch("two")
    push(one.attempts.get(), [metric(0.5), metric(1.5, "my/own")])
    told = _told(browser.get(f"/compare/?runs={one.public_id},{two.public_id}").content.decode())
    known = {item["key"]: item for item in told["fields"]}
    assert known["config.batch.prompts"]["varies"] and not known["config.batch.group_size"]["varies"]
    assert "config.environment.options.max_terms" in known and "my/own" in known and "heldout" not in known
    first, second = (run["values"] for run in told["runs"])
    assert (first["reward"], first["my/own"], first["tag"], first["config.batch.prompts"]) == (0.5, 1.5, "a, b", 4)
    assert second["reward"] is None
    assert told["series"] == ["my/own", "reward/mean"] and told["varied"] == ["config.batch.prompts"]


def test_results_have_chosen_columns_and_csv(browser: Client, launch: Launch) -> None:
    one, two = launch("one", "batch.prompts=4"), launch("=two")
    push(one.attempts.get(), _steps(0.25, 0.5))
    ask = f"runs={one.public_id},{two.public_id}"
    page = browser.get(f"/compare/?{ask}&part=results").content.decode()
    assert "<html" not in page and "Prompts a step" in page and "Reward" in page
    rows = list(csv.reader(io.StringIO(browser.get(f"/compare/results.csv?{ask}&cols=reward,batch.prompts").content.decode())))
    assert rows == [["id", "name", "reward", "config.batch.prompts"], [one.public_id, "one", "0.5", "4"], [two.public_id, "'=two", "", "8"]]
    curves = list(csv.reader(io.StringIO(browser.get(f"/compare/series.csv?{ask}&names=reward/mean&x=samples").content.decode())))
    assert curves[0] == ["run", "name", "series", "samples", "value"]
    assert curves[1:] == [[one.public_id, "one", "reward/mean", "64.0", "0.25"], [one.public_id, "one", "reward/mean", "128.0", "0.5"]]
    assert browser.get(f"/compare/series.csv?{ask}").status_code == 400


def test_search_finds_runs_to_add(browser: Client, launch: Launch) -> None:
    launch("alpha", tags=["t"]), launch("beta")
    assert [run["name"] for run in browser.get("/compare/search.json?q=").json()["runs"]] == ["beta", "alpha"]
    assert [run["name"] for run in browser.get("/compare/search.json?q=tag:t").json()["runs"]] == ["alpha"]
    unfinished = browser.get("/compare/search.json?q=tag:").json()
    assert unfinished["runs"] == [] and unfinished["error"]["start"] == 3


def test_names_that_would_be_markup_stay_text(browser: Client, launch: Launch) -> None:
    run = launch("</script><img src=x onerror=alert(1)>", tags=["<b>"])
    page = browser.get(f"/compare/?runs={run.public_id}").content.decode()
    assert "<img" not in page and "<b>" not in page and "</script><" not in page.replace("</script>\n<", "")
    assert _told(page)["runs"][0]["name"].startswith("</script>")


def test_time_begins_with_the_first_event(launch: Launch) -> None:
    run = launch("one")
    push(run.attempts.get(), [("log", {"level": "info", "message": "up"}), metric(0.1)])
    assert overlay._starts([run]) == {run.pk: T0 + 1}
