"""The run page's buttons and words, and the list's pages and cost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from headrace.experiments import lifecycle, listing, services
from headrace.experiments.models import Run
from headrace.experiments.selectors import runs_for
from headrace.teams.models import Role, Team, User
from headrace.telemetry import series
from tests.platform_tests.telemetry_rig import metric, new_attempt, push
from workers.contract.events import Control


@pytest.fixture
def browser(client: Client, team: Team, member: Callable[..., User]) -> Client:
    client.force_login(member(team, Role.OWNER, name="Ada"))
    return client


def running(run: Run) -> Run:
    lifecycle.transition(run, "launching")
    lifecycle.transition(run, "running")
    return run


def test_checkpoint_now_and_stop_after_this_step(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    run = running(start(team))
    page = browser.get(f"/runs/{run.public_id}/").content.decode()
    assert "Checkpoint now" in page and "Stop after this step" in page
    for button in ("checkpoint", "stop"):
        assert browser.get(f"/runs/{run.public_id}/{button}/").status_code == 405
    said = browser.post(f"/runs/{run.public_id}/checkpoint/", follow=True).content.decode()
    assert "A checkpoint is asked for" in said
    browser.post(f"/runs/{run.public_id}/checkpoint/")
    said = browser.post(f"/runs/{run.public_id}/stop/", follow=True).content.decode()
    assert "ends after the step it is in" in said
    run.refresh_from_db()
    assert Control.model_validate(run.control) == Control(checkpoint_now=2, stop_after_step=True)
    lifecycle.transition(run, "succeeded")
    assert "The run is succeeded" in browser.post(f"/runs/{run.public_id}/stop/", follow=True).content.decode()


def test_viewers_get_none_of_the_buttons(client: Client, team: Team, member: Callable[..., User], start: Callable[..., Run]) -> None:
    run = running(start(team))
    client.force_login(member(team, Role.VIEWER))
    page = client.get(f"/runs/{run.public_id}/").content.decode()
    for button in ("checkpoint", "stop", "edit", "delete"):
        assert f"/{button}/" not in page
        assert client.post(f"/runs/{run.public_id}/{button}/").status_code == 403


def test_other_teams_runs_have_no_buttons(browser: Client, other_team: Team, start: Callable[..., Run]) -> None:
    run = start(other_team)
    for button in ("checkpoint", "stop", "edit", "delete"):
        assert browser.post(f"/runs/{run.public_id}/{button}/").status_code == 404


def test_words_are_edited_and_their_faults_said(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    address = f"/runs/{run.public_id}/edit/"
    assert 'value="a run"' in browser.get(address).content.decode()
    assert browser.post(address, {"name": "", "note": "", "tags": ""}).status_code == 422
    many = ", ".join(str(number) for number in range(30))
    assert "more than 20" in browser.post(address, {"name": "b", "note": "", "tags": many}).content.decode()
    assert browser.post(address, {"name": "better", "note": "<b>why</b>", "tags": "one, two ,"})["Location"] == f"/runs/{run.public_id}/"
    run.refresh_from_db()
    assert (run.name, run.note, run.tags) == ("better", "<b>why</b>", ["one", "two"])
    page = browser.get(f"/runs/{run.public_id}/").content.decode()
    assert "&lt;b&gt;why" in page and "two" in page


def test_a_run_is_deleted_once_it_is_over(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    assert "Cancel it first" in browser.get(f"/runs/{run.public_id}/edit/").content.decode()
    assert "cancel it first" in browser.post(f"/runs/{run.public_id}/delete/", follow=True).content.decode()
    services.cancel_run(run, None)
    assert browser.post(f"/runs/{run.public_id}/delete/")["Location"] == "/runs/"
    assert browser.get(f"/runs/{run.public_id}/").status_code == 404
    assert run.public_id not in browser.get("/runs/").content.decode()


def test_the_api_resumes_what_the_page_resumes(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    refused = browser.post(f"/api/v1/runs/{run.public_id}/resume")
    assert (refused.status_code, refused.json()["code"]) == (409, "wrong_state")
    services.cancel_run(run, None)
    reply = browser.post(f"/api/v1/runs/{run.public_id}/resume")
    assert reply.status_code == 200
    assert (reply.json()["state"], len(reply.json()["attempts"])) == ("queued", 2)


def test_the_list_turns_its_pages(browser: Client, team: Team, start: Callable[..., Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "PAGE", 2)
    runs = [start(team, name=f"run number {number}") for number in range(5)]
    first = browser.get("/runs/?q=number").content.decode()
    assert "/runs/?q=number&amp;page=2" in first and "Newer" not in first and runs[4].public_id in first
    last = browser.get("/runs/?q=number&page=3").content.decode()
    assert runs[0].public_id in last and "Older" not in last and "page=2" in last
    assert runs[4].public_id in browser.get("/runs/?page=x").content.decode()
    assert browser.get("/runs/?page=9").status_code == 200


def _list(team: Team, user: User) -> tuple[list[dict[str, Any]], int]:
    found = list(runs_for(user, team))
    with CaptureQueriesContext(connection) as queries:
        rows = listing.rows(found)
    return rows, len(queries)


def test_the_list_costs_the_same_for_many_rows(team: Team, member: Callable[..., User], start: Callable[..., Run]) -> None:
    user = member(team)
    costs = []
    for _ in range(4):
        run = start(team)
        push(run.attempts.get(), [metric(value) for value in (0.1, 0.4, 0.2)])
        rows, cost = _list(team, user)
        assert all(row["spark"].count(",") == 3 for row in rows)
        costs.append(cost)
    assert len(set(costs)) == 1 and costs[0] <= 6, costs


def test_a_sparkline_leaves_out_what_was_trained_again(team: Team, member: Callable[..., User], start: Callable[..., Run]) -> None:
    run = start(team)
    push(run.attempts.get(), [metric(value) for value in (0.1, 0.2, 0.3, 0.4)])
    later = new_attempt(run, 2, "hrw_x")
    push(later, [("started", {"provenance": {}, "resumed_from": {"step": 2, "version": 2}})], step=2)
    push(later, [metric(0.9), metric(1.0)], first=2, step=None)
    columns = series.read_runs([run], listing.REWARD, buckets=48)[run.pk]
    assert columns == series.read(run, [listing.REWARD], buckets=48)[listing.REWARD]
    assert any(columns["faint"])
    rows, _ = _list(team, member(team))
    assert rows[0]["spark"].count(",") == columns["faint"].count(False)
