"""The teaching page: its sliders are the simulation's, its address is its state, and what is out of range is named."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client

from headrace.experiments import lesson, planner
from headrace.teams.models import Team, User
from workers.contract.lesson import KNOBS


@pytest.fixture
def browser(client: Client, team: Team, member: Callable[..., User]) -> Client:
    client.force_login(member(team))
    return client


def drawn(page: str) -> dict[str, Any]:
    """What the page gives its script."""
    found = re.search(r'<script id="page-data" type="application/json">(.*?)</script>', page, re.S)
    assert found
    data: dict[str, Any] = json.loads(found.group(1))
    return data


def test_every_number_of_the_simulation_has_its_slider(browser: Client) -> None:
    page = browser.get("/help/async/").content.decode()
    sliders = [dict(re.findall(r'(\w+)="([^"]*)"', tag)) for tag in re.findall(r'<input type="range"[^>]*>', page)]
    said = [(one["name"], *(float(one[part]) for part in ("min", "max", "step", "value"))) for one in sliders]
    assert said == [(knob.name, knob.least, knob.most, knob.step, knob.first) for knob in KNOBS]
    assert all(knob.says in page and knob.title in page for knob in KNOBS)


def test_the_page_draws_what_its_address_says(browser: Client) -> None:
    page = browser.get("/help/async/?ahead=3&spread=2.5").content.decode()
    data = drawn(page)
    assert data["now"]["given"] == {"ahead": 3, "max_lag": 4, "sync_s": 1, "spread": 2.5}
    assert data["turns"]["given"]["ahead"] == 0 and data["turns"]["figures"]["lag"] == 0
    assert re.search(r'name="spread"[^>]*value="2.5"', page)
    assert browser.get("/help/async/run.json?ahead=3&spread=2.5").json() == data


def test_what_is_out_of_range_is_named_and_the_page_shows_its_first_position(browser: Client) -> None:
    reply = browser.get("/help/async/run.json?ahead=9&spread=wide")
    assert reply.status_code == 400
    assert [line.partition(":")[0] for line in reply.json()["errors"]] == ["ahead", "spread"]
    assert drawn(browser.get("/help/async/?ahead=9&spread=wide").content.decode())["now"]["given"]["ahead"] == 1


def test_an_engine_that_gives_no_answer_is_said_and_is_no_server_error(browser: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    lesson.simulated.cache_clear()
    monkeypatch.setattr(planner.sys, "executable", "/nowhere/python")
    reply = browser.get("/help/async/run.json")
    assert reply.status_code == 503 and "could not be started" in reply.json()["errors"][0]
    assert "could not be started" in browser.get("/help/async/").content.decode()


@pytest.mark.django_db
@pytest.mark.parametrize("path", ["/help/async/", "/help/async/run.json"])
def test_it_asks_for_login(client: Client, path: str) -> None:
    assert client.get(path).status_code == 302
