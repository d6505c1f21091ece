"""Races: making, driving, holding, cancelling, reusing; who may; what the pages and files say."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import Client
from django.test.utils import CaptureQueriesContext

from headrace.compare.races import progress, report_csv, selectors, services
from headrace.compare.races.models import Race, RaceEntry
from headrace.dispatch.capacity import cluster_here
from headrace.experiments import lifecycle
from headrace.experiments import services as runs
from headrace.experiments.models import Project, Run
from headrace.experiments.problems import WrongState
from headrace.teams.models import AuditEvent, Membership, Role, Team, User
from headrace.teams.services import NotAllowed
from tests.platform_tests.race_rig import FORM, advance, entries, make, spec, train


@pytest.fixture
def maker(team: Team, member: Callable[..., User]) -> User:
    return member(team, Role.MAINTAINER, name="Ada")


@pytest.fixture
def race(team: Team, maker: User) -> Race:
    return make(team, maker)


@pytest.fixture
def browser(client: Client, maker: User) -> Client:
    client.force_login(maker)
    return client


def finish_all(race: Race, gain: Callable[[int, int], float] = lambda contender, seed: 0.05 * (contender + 1) + 0.001 * seed) -> None:
    """Drives the race to its end, each entry trained as soon as it was started."""
    for _ in range(4 * race.entries.count()):
        advance()
        for entry in entries(race):
            if entry.run is not None and entry.run.state == "queued":
                train(entry.run, gain=gain(entry.contender, entry.seed))
    race.refresh_from_db()


def test_entries_are_started_one_after_another_and_the_race_ends(race: Race) -> None:
    assert [entry.run for entry in entries(race)] == [None] * 4
    assert advance() == 1
    for _ in range(3):
        assert advance() == 0
    first = entries(race)[0]
    assert first.run is not None and first.launched == 1
    assert (first.run.group, first.run.seed, first.run.source, first.run.config.data["budget"]["wall_s"]) == (race.public_id, 1, "web", 60)
    finish_all(race)
    assert race.closed_at is not None
    assert [entry.run.state for entry in entries(race) if entry.run] == ["succeeded"] * 4
    assert Run.unscoped.count() == 4 and advance() == 0
    assert AuditEvent.unscoped.filter(action="race.close").count() == 1


def test_as_many_as_fit_side_by_side(team: Team, maker: User) -> None:
    race = make(team, maker, at_once=3)
    assert advance() == 3 and advance() == 0
    started = entries(race)[1].run
    assert started is not None
    train(started)
    assert advance() == 1 and Run.unscoped.count() == 4


def test_held_races_keep_nobody_from_a_turn(team: Team, maker: User, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "MOST_RACES", 1)
    held, behind = make(team, maker), make(team, maker)
    services.pause_race(held, maker)
    assert advance() == 1
    assert [entry.run is not None for entry in (*entries(held)[:1], *entries(behind)[:1])] == [False, True]


def test_a_process_that_dies_in_the_middle_leaves_nothing_twice(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    class Died(BaseException):
        """As kill -9: no handler of ours runs."""

    def save(*_: Any, **__: Any) -> None:
        raise Died

    with monkeypatch.context() as patch:
        patch.setattr(RaceEntry, "save", save)
        with pytest.raises(Died), transaction.atomic():
            advance()
    assert Run.unscoped.count() == 0, "the run and the note of it are one transaction"
    assert advance() == 1 and advance() == 0 and Run.unscoped.count() == 1


def test_a_failed_entry_is_tried_again_so_often_and_no_more(race: Race) -> None:
    advance()
    first = entries(race)[0]
    train(first.run, outcome="failed")
    assert advance() == 1
    again = entries(race)[0]
    assert again.run != first.run and again.launched == 2 and again.retries_left == 0
    train(again.run, outcome="failed")
    advance()
    assert entries(race)[0].run == again.run and entries(race)[1].run is not None, "the next one has its turn"


def test_finished_runs_of_the_same_config_are_used(team: Team, maker: User, race: Race) -> None:
    finish_all(race)
    second = make(team, maker)
    for _ in range(6):
        advance()
    second.refresh_from_db()
    assert second.closed_at is not None and Run.unscoped.count() == 4
    assert all(entry.reused and entry.launched == 0 for entry in entries(second))
    third = make(team, maker, reuse=False)
    assert advance() == 1 and not entries(third)[0].reused


def test_other_teams_uploads_and_resumed_runs_are_not_used(team: Team, other_team: Team, maker: User, member: Callable[..., User]) -> None:
    theirs = make(other_team, member(other_team, Role.OWNER))
    advance()
    train(entries(theirs)[0].run)
    mine = make(team, maker)
    config = entries(mine)[0].config_id
    assert progress.finished_run(team.pk, config) is None
    advance()
    run = entries(mine)[0].run
    assert run is not None
    train(run, outcome="failed")
    runs.resume_run(run, maker)
    attempt = run.attempts.latest("number")
    lifecycle.attempt_started(attempt)
    lifecycle.attempt_finished(attempt, "succeeded")
    assert progress.finished_run(team.pk, config) is None


def test_pause_and_go_on(race: Race, maker: User) -> None:
    services.pause_race(race, maker)
    assert advance() == 0
    services.resume_race(race, maker)
    assert advance() == 1


def test_cancelling_stops_what_runs_and_keeps_what_has_finished(race: Race, maker: User) -> None:
    advance()
    train(entries(race)[0].run)
    advance()
    services.cancel_race(race, maker)
    advance()
    advance()
    race.refresh_from_db()
    states = [entry.run.state if entry.run else None for entry in entries(race)]
    assert states == ["succeeded", "cancelled", None, None] and race.closed_at is not None
    with pytest.raises(WrongState):
        services.resume_race(race, maker)


def test_an_entry_is_run_again_by_hand(race: Race, maker: User) -> None:
    services.cancel_race(race, maker)
    advance()
    with pytest.raises(WrongState):
        services.pause_race(race, maker)
    services.run_again(race, maker, 2)
    assert race.closed_at is None and advance() == 1
    with pytest.raises(WrongState):
        services.run_again(race, maker, 0)


def test_who_may(race: Race, team: Team, other_team: Team, member: Callable[..., User]) -> None:
    for user in (member(team, Role.MEMBER), member(team, Role.VIEWER), member(other_team, Role.OWNER), member(None)):
        for act in (services.pause_race, services.resume_race, services.cancel_race):
            with pytest.raises(NotAllowed):
                act(race, user)
        with pytest.raises(NotAllowed):
            services.run_again(race, user, 0)
        with pytest.raises(NotAllowed):
            make(team, user)


def test_a_maker_who_left_starts_nothing_more(race: Race, maker: User) -> None:
    Membership.unscoped.filter(user=maker).delete()
    assert advance() == 0
    race.refresh_from_db()
    assert race.asked == Race.Asked.PAUSE and race.problem is not None and "maker" in race.problem["message"]


def test_a_refusal_waits_and_is_told(race: Race, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> Run:
        raise WrongState("the team's quota is used up", field="quota", cure="wait", retryable=True)

    with monkeypatch.context() as patch:
        patch.setattr(progress.runs, "start_run", refuse)
        assert advance() == 0
    race.refresh_from_db()
    assert race.problem is not None and race.try_again_at is not None
    assert advance() == 0 and advance(minutes=1) == 1
    race.refresh_from_db()
    assert race.problem is None


def test_one_races_trouble_is_its_own(team: Team, maker: User, race: Race) -> None:
    Race.unscoped.filter(pk=race.pk).update(spec={"broken": True})
    sound = make(team, maker)
    assert advance() == 1 and entries(sound)[0].run is not None


def test_the_same_form_twice_makes_one_race(team: Team, maker: User) -> None:
    assert make(team, maker, key="k").pk == make(team, maker, key="k").pk
    assert Race.unscoped.count() == 1


def test_a_waiting_pass_writes_nothing(race: Race) -> None:
    advance()
    with CaptureQueriesContext(
        connection,
    ) as caught:
        advance()
    assert not [query["sql"] for query in caught if query["sql"].startswith(("UPDATE", "INSERT", "BEGIN"))]
    assert len(caught) <= 8


def test_results_with_intervals(race: Race) -> None:
    finish_all(race)
    found = selectors.result(selectors.Whole(race, spec(), entries_with_config(race)))
    heads = {head["key"]: head for head in found["headlines"]}
    assert heads["heldout@wall_s"]["ranking"]["order"] == ["async", "sync"]
    assert heads["heldout@wall_s"]["cells"]["sync"]["n"] == 2
    rows = {row["key"]: row for row in found["rows"]}
    assert rows["samples_per_s"]["cells"]["sync"]["mean"] == pytest.approx(512 / 18)
    assert rows["overlap"]["cells"]["sync"]["mean"] == pytest.approx((16 + 9 - 18) / 18)
    assert rows["dropped_share"]["cells"]["sync"]["mean"] == pytest.approx(8 / 520)
    assert rows["lag_mean"]["cells"]["sync"]["mean"] == pytest.approx(0.4) and rows["lag_p95"]["cells"]["sync"]["mean"] == 1
    assert "cost" not in rows and {check["level"] for check in found["provenance"]} == {"same"}
    json.dumps(found, allow_nan=False)


def entries_with_config(race: Race) -> list[RaceEntry]:
    return list(RaceEntry.unscoped.filter(race=race).select_related("run", "config").order_by("place"))


def test_the_pages(browser: Client, race: Race) -> None:
    assert "Sync or async" in browser.get("/races/").content.decode()
    page = browser.get(f"/races/{race.public_id}/").content.decode()
    assert "Fairness checklist" in page and "has its turn later" in page and "Pause" in page
    finish_all(race)
    page = browser.get(f"/races/{race.public_id}/").content.decode()
    assert (
        "Held-out reward at equal wall time" in page and "±" in page and "async" in page and f"/races/{race.public_id}/pause/" not in page
    )
    parts = browser.get(f"/races/{race.public_id}/?parts=1").content.decode()
    assert "race-top" in parts and "<html" not in parts
    live = browser.get(f"/races/{race.public_id}/live.json").json()
    assert live["state"] == "succeeded" and live["finished"] == 4
    assert browser.get(f"/races/{race.public_id}/results.json").json()["finished"] == 4


def test_the_files(browser: Client, race: Race) -> None:
    Race.unscoped.filter(pk=race.pk).update(name="=1+1 <script>alert(1)</script>")
    race.refresh_from_db()
    finish_all(race)
    answer = browser.get(f"/races/{race.public_id}/report.html")
    text = answer.content.decode()
    assert answer["Content-Disposition"].startswith("attachment")
    assert "<script" not in text and "=1+1 &lt;script&gt;" in text and 'src="' not in text and "@import" not in text and "url(" not in text
    answer = browser.get(f"/races/{race.public_id}/report.csv")
    rows = list(csv.reader(io.StringIO(answer.content.decode())))
    assert rows[0] == list(report_csv.HEAD) and all(row[0] == "'=1+1 <script>alert(1)</script>" for row in rows[1:])
    assert {row[1] for row in rows[1:]} == {"sync", "async"} and len(rows) > 4 * 10
    assert report_csv.safe("-1") == "'-1" and report_csv.safe(-1.5) == -1.5


PATHS = ("", "live.json", "results.json", "report.html", "report.csv", "?parts=1")


def test_other_teams_races_do_not_exist(client: Client, race: Race, other_team: Team, member: Callable[..., User]) -> None:
    client.force_login(member(other_team, Role.OWNER))
    for path in PATHS:
        assert client.get(f"/races/{race.public_id}/{path}").status_code == 404
    for action in ("pause", "resume", "cancel", "again"):
        assert client.post(f"/races/{race.public_id}/{action}/", {"entry": "0"}).status_code == 404
    assert client.get(f"/races/new/?like={race.public_id}").status_code == 404
    assert "Sync or async" not in client.get("/races/").content.decode()
    race.refresh_from_db()
    assert race.asked == "go"


def test_nobody_signed_in(client: Client, race: Race) -> None:
    assert client.get(f"/races/{race.public_id}/live.json").status_code == 401
    for path in ("", "report.html", "report.csv"):
        assert client.get(f"/races/{race.public_id}/{path}").status_code == 302


def test_members_watch_and_change_nothing(client: Client, race: Race, team: Team, member: Callable[..., User]) -> None:
    client.force_login(member(team, Role.MEMBER))
    page = client.get(f"/races/{race.public_id}/").content.decode()
    assert f"/races/{race.public_id}/cancel/" not in page and "Race again" not in page
    assert client.post(f"/races/{race.public_id}/cancel/").status_code == 403
    assert client.get("/races/new/").status_code == 403 and client.post("/races/preview/").status_code == 403
    assert client.get(f"/races/{race.public_id}/cancel/").status_code == 405


def test_the_buttons(browser: Client, race: Race) -> None:
    assert "Nothing more is started" in browser.post(f"/races/{race.public_id}/pause/", follow=True).content.decode()
    assert "goes on" in browser.post(f"/races/{race.public_id}/resume/", follow=True).content.decode()
    assert "being cancelled" in browser.post(f"/races/{race.public_id}/cancel/", follow=True).content.decode()
    advance()
    assert "The race has ended" in browser.post(f"/races/{race.public_id}/pause/", follow=True).content.decode()
    for bad in ("", "x", "99", "٣"):
        assert "No such entry" in browser.post(f"/races/{race.public_id}/again/", {"entry": bad}, follow=True).content.decode()


def test_the_form_makes_a_race(browser: Client, team: Team) -> None:
    Race.unscoped.all().delete()
    Project.unscoped.get_or_create(team=team, slug="p", defaults={"name": "P"})
    shown = browser.post("/races/new/", FORM).content.decode()
    assert "Start the race" in shown and "Fairness checklist" in shown and not Race.unscoped.exists()
    answer = browser.post("/races/new/", {**FORM, "action": "start"})
    race = Race.unscoped.get()
    assert answer["Location"] == f"/races/{race.public_id}/" and race.name == "From the form"
    assert race.spec["workload"]["batch"]["prompts"] == 4 and race.entries.count() == 4
    browser.post("/races/new/", {**FORM, "action": "start"})
    assert Race.unscoped.count() == 1
    again = browser.get(f"/races/new/?like={race.public_id}").content.decode()
    assert "From the form (again)" in again and 'value="60"' in again


def test_settings_are_made_equal_and_let_go(browser: Client) -> None:
    both = {**FORM, "preset": ["trl-sync", "atropos"], "devices": ""}
    page = browser.post("/races/preview/", both).content.decode()
    assert "Learning rate" in page and 'value="optimizer.learning_rate=' in page
    page = browser.post("/races/preview/", {**both, "equal": ["optimizer.learning_rate=0.0001"]}).content.decode()
    assert "Made the same by hand" in page and "Learning rate: 0.0001" in page
    page = browser.post("/races/preview/", {**both, "equal": ["optimizer.learning_rate=0.0001"], "release": "optimizer.learning_rate"})
    assert "Made the same by hand" not in page.content.decode()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"preset": ["trl-sync"]}, "at least two contenders"),
        ({"preset": []}, "at least two contenders"),
        ({"preset": ["trl-sync", "nobody"]}, "no such preset"),
        ({"seeds": "one"}, "no list of seeds"),
        ({"seeds": "1 1"}, "given twice"),
        ({"stop_value": ""}, "A number is needed"),
        ({"stop_value": "soon"}, "not a number"),
        ({"stop_value": "nan"}, "finite"),
        ({"stop_value": "-1"}, "greater than 0"),
        ({"stop_kind": "moon"}, "wall_s"),
        ({"stop_kind": "cost"}, "no price"),
        ({"devices": "2.5"}, "not a whole number"),
        ({"devices": "2"}, "its trainer alone has 2 ranks"),
        ({"at_once": "0"}, "greater than or equal to 1"),
        ({"batch.prompts": "many"}, "not a whole number"),
        ({"batch.prompts": "0"}, "Prompts a step"),
        ({"equal": ["seed=1"]}, "no setting that can be made the same"),
        ({"equal": ["loss.kl={{{"]}, "no setting that can be made the same"),
        ({"equal": ["nobody.knows=1"]}, "nobody"),
        ({"own_preset": ["demo"], "own_label": [""], "own_changes": ["a"]}, "needs a label"),
        ({"own_preset": ["demo"], "own_label": ["x"], "own_changes": ["no.such=1"]}, "there is no such field"),
        ({"own_preset": ["demo"], "own_label": ["trl-sync"], "own_changes": ["seed=1"]}, "same label"),
    ],
)
def test_bad_input_is_named(browser: Client, change: dict[str, Any], told: str) -> None:
    answer = browser.post("/races/new/", {**FORM, **change, "action": "start"})
    text = answer.content.decode()
    assert answer.status_code == 200 and "to mend" in text and not Race.unscoped.exists()
    assert told.lower() in text.lower().replace("&#x27;", "'")


def test_hostile_names_stay_text(browser: Client, race: Race) -> None:
    hostile = "<img src=x onerror=alert(1)>"
    Race.unscoped.filter(pk=race.pk).update(name=hostile)
    for path in ("/races/", f"/races/{race.public_id}/", f"/races/new/?like={race.public_id}"):
        text = browser.get(path).content.decode()
        assert "<img src=x" not in text and "onerror" in text


def test_the_list_reads_with_a_fixed_number_of_queries(browser: Client, team: Team, maker: User) -> None:
    make(team, maker)
    browser.get("/races/")
    with CaptureQueriesContext(connection) as one:
        browser.get("/races/")
    for _ in range(4):
        make(team, maker)
    with CaptureQueriesContext(connection) as five:
        browser.get("/races/")
    assert len(five) == len(one)


def test_the_admin_shows_races_and_leads_to_their_pages(client: Client, race: Race, member: Callable[..., User]) -> None:
    client.force_login(member(None, is_staff=True, is_superuser=True))
    assert f"/races/{race.public_id}/" in client.get("/admin/compare/race/").content.decode()
    assert client.get(f"/admin/compare/race/{race.pk}/change/").status_code == 200
    assert client.get("/admin/compare/race/add/").status_code == 403


def test_money_ends_entries_where_there_is_a_price(browser: Client, race: Race) -> None:
    cluster = cluster_here()
    cluster.price_per_device_hour, cluster.currency = 2, "EUR"
    cluster.save()
    text = browser.post("/races/preview/", {**FORM, "stop_kind": "cost", "stop_value": "1"}).content.decode()
    assert "By the cluster’s price that is 600 s" in text.replace("&#x27;", "’") and "4.00 EUR" in text
    finish_all(race)
    rows = {row["key"]: row for row in browser.get(f"/races/{race.public_id}/results.json").json()["rows"]}
    assert rows["cost"]["cells"]["sync"]["mean"] == pytest.approx(3 * 20 / 3600 * 2) and rows["cost"]["unit"] == "EUR"
