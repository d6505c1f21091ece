"""Pages: who gets in, what they show, what their buttons do."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from django.test import Client
from django.utils.html import escape

from headrace import figures
from headrace.experiments import lifecycle
from headrace.experiments.models import Run
from headrace.teams import services as team_services
from headrace.teams.models import Role, Team, User
from headrace.telemetry.models import LatestState
from tests.platform_tests.conftest import PASSWORD
from tests.platform_tests.test_forms import posted
from workers.contract import axes, loading, presets
from workers.contract.formulas import DIFFERENCES, FORMULAS
from workers.contract.metrics import CATALOGUE

LONG = "a good long password 7"


@pytest.fixture
def ada(team: Team, member: Callable[..., User]) -> User:
    return member(team, Role.OWNER, name="Ada")


@pytest.fixture
def browser(client: Client, ada: User) -> Client:
    client.force_login(ada)
    return client


@pytest.fixture
def project(team: Team, ada: User) -> Any:
    from headrace.experiments.models import Project

    return Project.objects.create(team=team, name="P", slug="p")


def form(**changes: Any) -> Any:
    query = posted(loading.resolve(None, preset="demo").as_json(), **changes)
    query.update({"name": "my run", "idempotency_key": "key-1", "preset_name": "demo", "action": "review"})
    return query


# --- getting in ------------------------------------------------------------------------------------------------------------------


@pytest.mark.django_db
@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/runs/",
        "/runs/new/",
        "/runs/aaaaaaaaaaaa/",
        "/help/axes/",
        "/help/losses/",
        "/help/presets/",
        "/help/add-a-kind/",
        "/runs/aaaaaaaaaaaa/config.json",
    ],
)
def test_pages_ask_for_login(client: Client, path: str) -> None:
    reply = client.get(path)
    assert reply.status_code == 302
    assert reply["Location"].startswith("/login/")


def test_login_goes_on_to_the_page_that_was_asked_for(client: Client, ada: User) -> None:
    reply = client.post("/login/?next=/help/axes/", {"username": ada.email.upper(), "password": PASSWORD, "next": "/help/axes/"})
    assert reply["Location"] == "/help/axes/"
    wrong = Client().post("/login/", {"username": ada.email, "password": "x"})
    assert b"do not fit together" in wrong.content
    away = Client().post("/login/", {"username": ada.email, "password": PASSWORD, "next": "https://evil.example/"})
    assert away["Location"] == "/"


def test_logout_is_a_post(browser: Client) -> None:
    assert browser.get("/logout/").status_code == 405
    assert browser.post("/logout/")["Location"] == "/login/"
    assert browser.get("/runs/").status_code == 302


def test_a_setup_link_is_spent_by_a_good_post_only(client: Client, team: Team) -> None:
    address = f"/setup/{team_services.issue_setup_link(team)}/"
    assert b"Welcome to Headrace" in client.get(address).content
    weak = client.post(address, {"email": "ada@example.org", "name": "Ada", "password": "short", "again": "short"})
    assert b"too short" in weak.content
    differ = client.post(address, {"email": "ada@example.org", "name": "Ada", "password": LONG, "again": LONG + "x"})
    assert b"differ" in differ.content
    assert client.get(address).status_code == 200
    done = client.post(address, {"email": "Ada@Example.org", "name": "Ada", "password": LONG, "again": LONG})
    assert done["Location"] == "/runs/"
    assert User.objects.get().email == "ada@example.org"
    assert client.get("/runs/").status_code == 200
    assert Client().get(address).status_code == 410
    assert Client().post(address, {"email": "b@example.org", "password": LONG, "again": LONG}).status_code == 410


@pytest.mark.django_db
def test_an_unknown_setup_link_says_what_to_do(client: Client) -> None:
    reply = client.get("/setup/nothing/")
    assert reply.status_code == 410
    assert b"no longer works" in reply.content


# --- list and run ----------------------------------------------------------------------------------------------------------------


def test_the_empty_list_teaches(browser: Client) -> None:
    assert b"No runs yet" in browser.get("/runs/").content


def test_the_list_filters_and_hides_other_teams(browser: Client, team: Team, other_team: Team, start: Callable[..., Run]) -> None:
    mine, theirs = start(team, name="alpha sums"), start(other_team, name="beta sums")
    page = browser.get("/runs/").content.decode()
    assert mine.public_id in page and theirs.public_id not in page
    assert "no data yet" in page
    assert mine.public_id in browser.get("/runs/?rows=1&q=ALPHA&state=queued").content.decode()
    assert "No run matches" in browser.get("/runs/?rows=1&q=gamma").content.decode()
    assert "<html" not in browser.get("/runs/?rows=1").content.decode()
    assert browser.get(f"/runs/{theirs.public_id}/").status_code == 404
    assert browser.get(f"/runs/{theirs.public_id}/config.json").status_code == 404
    assert browser.post(f"/runs/{theirs.public_id}/cancel/").status_code == 404


def test_the_run_page_carries_figures_and_config_and_no_inline_code(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    run = start(team, name="<script>alert(1)</script>")
    page = browser.get(f"/runs/{run.public_id}/").content.decode()
    assert "<script>alert" not in page
    assert "plotly.js-style-global" in page
    data = json.loads(re.search(r'<script id="page-data" type="application/json">(.*?)</script>', page, re.S).group(1))  # type: ignore[union-attr]
    assert {chart["key"] for chart in data["charts"]} >= {"reward", "buffer", "sync", "lag", "throughput", "gap"}
    for tag in re.findall(r"<script[^>]*>", page):
        assert "src=" in tag or "application/json" in tag
    assert not re.search(r"\sstyle=|\son\w+=|<style", page)


def test_config_json_is_what_the_engine_takes(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    data = browser.get(f"/runs/{run.public_id}/config.json").json()
    assert loading.resolve(data).digest() == run.config.digest


def test_cancel_and_resume(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    assert browser.get(f"/runs/{run.public_id}/cancel/").status_code == 405
    assert browser.post(f"/runs/{run.public_id}/cancel/")["Location"] == f"/runs/{run.public_id}/"
    run.refresh_from_db()
    assert run.state == "cancelled"
    browser.post(f"/runs/{run.public_id}/resume/")
    run.refresh_from_db()
    assert (run.state, run.attempts.count()) == ("queued", 2)
    page = browser.post(f"/runs/{run.public_id}/resume/", follow=True).content.decode()
    assert "cannot be resumed" in page and "cancel it first" in page


def test_a_viewer_sees_and_cannot_press(client: Client, team: Team, member: Callable[..., User], start: Callable[..., Run]) -> None:
    run = start(team)
    client.force_login(member(team, Role.VIEWER))
    page = client.get(f"/runs/{run.public_id}/").content.decode()
    assert "data-press" not in page and "clone-link" not in page
    assert client.post(f"/runs/{run.public_id}/cancel/").status_code == 403
    refused = client.get("/runs/new/")
    assert refused.status_code == 403
    assert b"does not allow starting runs" in refused.content


# --- new run ---------------------------------------------------------------------------------------------------------------------


def test_form_review_launch(browser: Client, team: Team, project: Any) -> None:
    page = browser.get("/runs/new/?preset=demo").content.decode()
    assert 'name="batch.prompts"' in page and 'value="demo@' in page
    review = browser.post("/runs/new/", form(budget__steps="5"))
    assert review.status_code == 200
    text = review.content.decode()
    assert "Nothing has started" in text and "&quot;steps&quot;: 5" in text and "budget.steps" in text
    assert not Run.objects.for_team(team).exists()
    launched = form(budget__steps="5")
    launched["action"] = "launch"
    first = browser.post("/runs/new/", launched)
    run = Run.objects.for_team(team).get()
    assert first["Location"] == f"/runs/{run.public_id}/"
    assert (run.name, run.state, run.config.data["budget"]["steps"]) == ("my run", "queued", 5)
    # a double click is one run; the same key with other content is refused in words
    assert browser.post("/runs/new/", launched)["Location"] == first["Location"]
    launched["budget.steps"] = "6"
    assert b"launched a run already" in browser.post("/runs/new/", launched).content
    assert Run.objects.for_team(team).count() == 1


def test_errors_come_back_at_the_field_with_what_was_typed(browser: Client, team: Team) -> None:
    bad = form(batch__prompts="many", buffer__depth="0", sampling__top_k="-1")
    bad["name"] = " "
    for action in ("review", "launch"):
        bad["action"] = action
        reply = browser.post("/runs/new/", bad)
        page = reply.content.decode()
        assert reply.status_code == 422
        assert 'value="many"' in page and "is not a whole number" in page
        assert 'href="#field-batch-prompts"' in page and 'href="#field-buffer-depth"' in page and 'href="#run-name"' in page
        assert '<details class="more" open' in page
    assert not Run.objects.for_team(team).exists()


def test_combinations_that_cannot_work_and_those_that_only_warn(browser: Client) -> None:
    refused = browser.post("/runs/new/", form(buffer__depth="2")).content.decode()
    assert "Set buffer.depth to 8 or more" in refused
    warned = browser.post("/runs/new/", form(sampling__top_k="5")).content.decode()
    assert "sampling.top_k" in warned and "Launch" in warned


def test_clone_fills_the_form_and_names_its_parent(browser: Client, team: Team, project: Any, start: Callable[..., Run]) -> None:
    run = start(team, steps=9)
    page = browser.get(f"/runs/new/?clone={run.public_id}").content.decode()
    assert 'value="9"' in page and "a run (copy)" in page
    query = form(budget__steps="11")
    query.update({"clone": run.public_id})
    query["action"] = "launch"
    browser.post("/runs/new/", query)
    child = Run.objects.for_team(team).exclude(pk=run.pk).get()
    assert child.parent == run and child.config.parent == run.config
    assert browser.get("/runs/new/?clone=aaaaaaaaaaaa").status_code == 404


def test_clone_and_fix_points_at_the_field(browser: Client, team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    cause = {"message": "too hot", "field": "optimizer.learning_rate", "cure": "lower it"}
    lifecycle.transition(run, "failed", cause=cause)
    page = browser.get(f"/runs/new/?clone={run.public_id}&fix=optimizer.learning_rate").content.decode()
    assert "Too hot. Lower it." in page and 'href="#field-optimizer-learning-rate"' in page


def test_an_unknown_preset_is_said_and_the_default_shown(browser: Client) -> None:
    page = browser.get("/runs/new/?preset=nope").content.decode()
    assert "No such preset" in page and 'value="demo@' in page


# --- help, health, errors, figures -----------------------------------------------------------------------------------------------


def test_axes_help_explains_every_kind_metric_and_event(browser: Client) -> None:
    page = browser.get("/help/axes/").content.decode()
    for axis, kinds in axes.AXES.items():
        assert f'id="{axis}"' in page
        for kind in kinds:
            assert f"<code>{kind}</code>" in page
    assert all(f"<code>{name}</code>" in page for name in CATALOGUE)


def test_axes_help_shows_what_goes_with_what(browser: Client) -> None:
    page = browser.get("/help/axes/").content.decode()
    combinations = page[page.index('id="combinations"') : page.index('id="metrics"')]
    for kind, (caches, partials) in axes.INTERRUPTS.items():
        row = combinations[combinations.index(f'<th scope="row"><code>{kind}</code>') :].partition("</tr>")[0]
        assert set(re.findall(r"<code>(\w+)</code>", row)) == {kind, *caches, *partials}
    for words in axes.OPTIONS.values():
        assert all(f"<code>{word}</code>" in page for word in words)


def test_losses_help_has_every_formula_and_why_two_libraries_differ(browser: Client) -> None:
    page = browser.get("/help/losses/").content.decode()
    for entries in FORMULAS.values():
        assert all(f"<code>{name}</code>" in page and escape(entry["formula"]) in page for name, entry in entries.items())
    assert all(escape(row["topic"]) in page and escape(row["here"]) in page for row in DIFFERENCES)


def test_presets_help_shows_every_preset_with_its_sources(browser: Client) -> None:
    page = browser.get("/help/presets/").content.decode()
    for head in presets.catalogue():
        for row in (head, *head["variants"]):
            assert f'id="{row["name"]}"' in page and f'href="#{row["name"]}"' in page
            assert escape(row["signature"]) in page and all(escape(sentence) in page for sentence in row["approximates"])


def test_the_page_on_adding_a_kind_shows_its_code(browser: Client) -> None:
    page = browser.get("/help/add-a-kind/").content.decode()
    assert "class DropMostly(CountOnly):" in page and "```" not in page
    assert "<code>workers/registry.py</code>" in page


def test_the_picker_groups_presets_and_shows_the_chosen_one(browser: Client) -> None:
    page = browser.get("/runs/new/?preset=nemo-rl").content.decode()
    assert page.count("<optgroup") == 3 and page.count("<option value=") > 40
    chosen = presets.described("nemo-rl")
    assert escape(chosen["signature"]) in page and all(escape(sentence) in page for sentence in chosen["approximates"])
    assert all(escape(row["option"]) in page and escape(row["file"]) in page for row in chosen["provenance"])


@pytest.mark.parametrize("name", presets.LIBRARIES)
def test_every_preset_goes_from_the_form_to_a_queued_run(browser: Client, project: Any, team: Team, name: str) -> None:
    query = posted(loading.resolve(None, preset=name).as_json())
    query.update({"name": name, "idempotency_key": f"key-{name}", "preset_name": name, "action": "review"})
    review = browser.post("/runs/new/", dict(query.lists()))
    assert review.status_code == 200 and escape(presets.described(name)["signature"]) in review.content.decode()
    query["action"] = "launch"
    assert browser.post("/runs/new/", dict(query.lists())).status_code == 302
    run = Run.unscoped.get(name=name)
    assert loading.resolve(run.config.data) == loading.resolve(None, preset=name)


def test_the_run_page_shows_its_design(browser: Client, project: Any) -> None:
    pages = {}
    for name in ("pipelinerl", "trl-sync"):
        query = posted(loading.resolve(None, preset=name).as_json())
        query.update({"name": name, "idempotency_key": f"key-{name}", "preset_name": name, "action": "launch"})
        page = browser.get(browser.post("/runs/new/", dict(query.lists()))["Location"]).content.decode()
        pages[name] = page[page.index('id="design"') :]
        assert escape(presets.described(name)["signature"]) in page
    assert 'title="New weights are staged while decoding goes on' in pages["pipelinerl"] and ">pubsub<" in pages["pipelinerl"]
    assert ">batch<" in pages["trl-sync"] and ">asyncio<" in pages["trl-sync"] and "under way 1 batches" in pages["trl-sync"]


@pytest.mark.django_db
def test_health(client: Client) -> None:
    assert client.get("/healthz/live").json() == {"status": "ok"}
    reply = client.get("/healthz/ready")
    parts = reply.json()["parts"]
    assert reply.status_code == 503  # no Valkey and no Ray in this test
    assert set(parts) == {"database", "valkey", "worker", "ray", "disk"}
    assert parts["database"] == "ok" and parts["ray"] != "ok"


def test_error_pages(browser: Client) -> None:
    assert b"Not here" in browser.get("/nothing/").content
    strict = Client(enforce_csrf_checks=True)
    assert b"This form has expired" in strict.post("/login/", {}).content


def test_figures_are_valid_and_fill_from_known_series() -> None:
    for chart in figures.charts():
        body = chart.as_dict()
        assert all(trace["x"] == [] for trace in body["data"]), "figures carry no data"
        assert "template" not in body["layout"]
        assert set(chart.series) <= set(CATALOGUE)
    overview = {name for name, metric in CATALOGUE.items() if metric.overview}
    shown = set(figures.series_names()) | {"lag/mean", "lag/max"}  # the lag chart draws the whole distribution
    assert overview <= shown


def test_no_data_is_not_zero(team: Team, start: Callable[..., Run]) -> None:
    from headrace.experiments import listing

    row = listing.rows([start(team)])[0]
    assert (row["reward"], row["step"], row["spark"]) == (None, None, "")
    assert not LatestState.objects.for_team(team).exists()
