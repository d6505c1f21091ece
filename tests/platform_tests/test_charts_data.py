"""What the run page's charts and timeline are drawn from: catalogue, spans and their shares, ledger differences, bands, files."""

from __future__ import annotations

import csv
import io
from typing import Any

import numpy as np
import pytest
from django.contrib.staticfiles import finders
from django.test import Client

from headrace.experiments import views
from headrace.experiments.models import Config, Run
from headrace.telemetry import bands, selectors, series, timeline
from headrace.telemetry.models import EventBatch
from headrace.telemetry.problems import IngestProblem
from tests.platform_tests.telemetry_rig import T0, Rig, metric, new_attempt, new_rig, push

ROUTES = ("catalogue.json", "timeline.json", "syncs.json", "seeds.json?names=reward/mean", "series.csv")


@pytest.fixture
def rig(db: None) -> Rig:
    return new_rig()


@pytest.fixture
def member(rig: Rig) -> Client:
    client = Client()
    client.force_login(rig.user)
    return client


def fetch(client: Client, rig: Rig, route: str) -> Any:
    return client.get(f"/runs/{rig.run.public_id}/{route}")


def state(wall: float, **lanes: dict[str, float]) -> tuple[str, dict[str, Any]]:
    return "state", {"time": {"wall_s": wall, "lanes": lanes, "overlapped_s": {}}}


def spans(*rows: tuple[str, str, float, float]) -> tuple[str, dict[str, Any]]:
    return "spans", {"spans": [[lane, cause, T0 + began, T0 + ended] for lane, cause, began, ended in rows]}


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_answers_members_only(route: str, rig: Rig, member: Client) -> None:
    push(rig.attempt, [metric(0.5)])
    assert fetch(member, rig, route).status_code == 200
    assert fetch(Client(), rig, route).status_code == 401
    stranger = Client()
    stranger.force_login(new_rig().user)
    assert fetch(stranger, rig, route).status_code == 404
    assert member.post(f"/runs/{rig.run.public_id}/{route}").status_code == 405


@pytest.mark.parametrize(
    ("route", "field"),
    [
        ("timeline.json?from=x", "from"),
        ("timeline.json?buckets=1", "buckets"),
        ("syncs.json?limit=0", "limit"),
        ("seeds.json?names=a&x=colour", "x"),
        ("seeds.json?names=" + ",".join(f"n{i}" for i in range(17)), "names"),
        ("series.csv?names=%3Dcmd()", "names"),
        ("series.csv?names=" + ",".join(f"n{i}" for i in range(65)), "names"),
    ],
)
def test_a_query_that_cannot_be_used_is_named(route: str, field: str, rig: Rig, member: Client) -> None:
    got = fetch(member, rig, route)
    assert got.status_code == 400 and got.json()["field"] == field and got.json()["cure"]


def test_the_catalogue_describes_every_series_and_hides_the_keeping_of_lag_and_spans(rig: Rig, member: Client) -> None:
    push(rig.attempt, [metric(0.5), metric(2.0, "engine/generator/0/running"), ("lag", {"counts": {"0": 4}}), spans(("t", "train", 0, 1))])
    rows = {row["name"]: row for row in fetch(member, rig, "catalogue.json").json()["series"]}
    assert set(rows) == {"reward/mean", "engine/generator/0/running"} == set(series.names(rig.run))
    assert rows["reward/mean"]["title"] == "Train reward" and rows["reward/mean"]["overview"]
    assert rows["engine/generator/0/running"] | {"group": "engine", "last": 2.0, "points": 1} == rows["engine/generator/0/running"]


def test_spans_come_back_as_they_were_and_clipped_to_the_window(rig: Rig, member: Client) -> None:
    push(rig.attempt, [spans(("trainer", "train", 1, 3), ("trainer", "wait_buffer_empty", 3, 4)), spans(("generator/0", "generate", 1, 9))])
    push(rig.attempt, [state(9.0, trainer={"train": 9.0})], first=3)
    push(rig.attempt, [metric(float(i)) for i in range(10)], first=4)
    got = fetch(member, rig, "timeline.json").json()
    assert (got["source"], got["mode"], got["began"], got["ended"]) == ("spans", "spans", T0 + 1, T0 + 13)
    assert got["lanes"]["trainer"] == {"train": [[T0 + 1, T0 + 3]], "wait_buffer_empty": [[T0 + 3, T0 + 4]]}
    assert got["lanes"]["generator/0"] == {"generate": [[T0 + 1, T0 + 9]]}
    assert got["ledgers"] == [{"attempt": 1, "wall_s": 9.0, "lanes": {"trainer": {"train": 9.0}}}] and got["price"] is None
    part = timeline.timeline(rig.run, T0 + 2, T0 + 5)
    assert part["lanes"]["trainer"]["train"] == [[T0 + 2, T0 + 3]] and part["lanes"]["generator/0"]["generate"] == [[T0 + 2, T0 + 5]]


def test_a_span_much_longer_than_the_window_is_in_it(rig: Rig) -> None:
    rows = [("trainer", "train", 0.0, 2.0), ("trainer", "idle", 2.0, 90.0), ("trainer", "train", 90.0, 91.0)]
    push(rig.attempt, [spans(*rows), state(91.0)])
    EventBatch.unscoped.update(t1=T0 + 91)
    got = timeline.timeline(rig.run, T0 + 50, T0 + 51)
    assert got["lanes"] == {"trainer": {"idle": [[T0 + 50, T0 + 51]]}}
    assert timeline.timeline(rig.run, T0 + 89, T0 + 91)["lanes"]["trainer"] == {"idle": [[T0 + 89, T0 + 90]], "train": [[T0 + 90, T0 + 91]]}


def test_lanes_outlive_their_events(rig: Rig) -> None:
    push(rig.attempt, [spans(("trainer", "train", 0.0, 2.0), ("trainer", "idle", 2.0, 4.0))])
    EventBatch.unscoped.all().delete()
    got = timeline.timeline(rig.run)
    assert (got["source"], got["began"], got["ended"]) == ("spans", T0, T0 + 2) and got["lanes"]["trainer"]["train"] == [[T0, T0 + 2]]
    assert selectors.began(rig.run) == T0


def test_many_spans_become_shares_that_lose_no_second(rig: Rig) -> None:
    first = 1
    generator = np.random.default_rng(3)
    instants = np.cumsum(generator.uniform(0.001, 0.01, 12_001))
    for start in range(0, 12_000, 500):
        rows = [("trainer", ("train", "idle")[i % 2], instants[i], instants[i + 1]) for i in range(start, start + 500)]
        push(rig.attempt, [spans(*rows)], first=first)
        first += 1
    push(rig.attempt, [metric(1.0) for _ in range(70)], first=first)
    got = timeline.timeline(rig.run, buckets=200)
    assert got["mode"] == "shares" and len(got["edges"]) == 201
    spent = {cause: sum(values) for cause, values in got["lanes"]["trainer"].items()}
    # The window begins with the first span, which is before the first event
    assert sum(spent.values()) == pytest.approx(float(instants[-1] - instants[0]), rel=0.01)
    widths = np.diff(got["edges"])
    table = np.sum(list(got["lanes"]["trainer"].values()), axis=0)
    assert (table <= widths * 1.01 + 1e-3).all()


def test_without_spans_the_ledger_is_differenced_and_the_answer_says_so(rig: Rig) -> None:
    push(rig.attempt, [state(1.0, trainer={"idle": 1.0})])
    push(rig.attempt, [state(2.0, trainer={"idle": 1.25, "train": 0.75})], first=2)
    push(rig.attempt, [state(3.0, trainer={"idle": 1.25, "train": 1.75})], first=3)
    got = timeline.timeline(rig.run)
    assert got["source"] == "ledger" and got["mode"] == "shares"
    assert got["edges"] == [T0 + 1, T0 + 2, T0 + 3]
    assert got["lanes"] == {"trainer": {"idle": [0.25, 0.0], "train": [0.75, 1.0]}}
    assert timeline.timeline(new_rig().run)["source"] == "none"


@pytest.mark.parametrize(
    "data",
    [
        {},
        {"spans": [["trainer", "train", 1.0]]},
        {"spans": [["trainer", "train", 2.0, 1.0]]},
        {"spans": [["trainer", "train", "NaN", 1.0]]},
        {"spans": [["=cmd()", "train", 0.0, 1.0]]},
        {"spans": [["trainer", "a/b", 0.0, 1.0]]},
        {"spans": [["trainer", 7, 0.0, 1.0]]},
    ],
)
def test_spans_that_make_no_sense_are_refused_by_name(data: dict[str, Any], rig: Rig) -> None:
    with pytest.raises(IngestProblem) as caught:
        push(rig.attempt, [("spans", data)])
    assert caught.value.field and caught.value.field.startswith("data.0.spans")


def test_syncs_are_the_newest_oldest_first(rig: Rig, member: Client) -> None:
    for number in range(1, 6):
        push(rig.attempt, [("sync", {"version": number, "bytes": 10 * number, "phases": {"export_s": 0.1}})], first=number)
    got = fetch(member, rig, "syncs.json?limit=3").json()["syncs"]
    assert [row["version"] for row in got] == [3, 4, 5] and got[0]["phases"] == {"export_s": 0.1} and got[0]["step"] == 3


def sibling(rig: Rig, seed: int, **config: Any) -> Run:
    data = {**rig.run.config.data, "seed": seed, **config}
    stored = Config.objects.create(team=rig.team, digest=f"{seed:064d}", schema_version=1, data=data)
    fields = {"team": rig.team, "project": rig.run.project, "config": stored, "name": f"seed {seed}", "seed": seed}
    return Run.objects.create(**fields, idempotency_key=f"s{seed}", group=rig.run.group)


def test_bands_are_over_runs_that_differ_in_the_seed_alone(rig: Rig, member: Client) -> None:
    twin = sibling(rig, 2)
    sibling(rig, 3, budget={"steps": 99})
    push(rig.attempt, [metric(float(i)) for i in range(5)])
    push(new_attempt(twin, 1, "hrw_a"), [metric(float(i) + 2.0) for i in range(7)])
    assert [run.seed for run in bands.siblings(rig.run)] == [2]
    got = fetch(member, rig, "seeds.json?names=reward/mean,nothing").json()
    assert [row["seed"] for row in got["runs"]] == [2] and list(got["bands"]) == ["reward/mean"]
    band = got["bands"]["reward/mean"]
    assert band["x"] == [1, 2, 3, 4, 5, 6, 7] and band["n"] == [2] * 5 + [1] * 2
    assert band["mean"][:2] == [1.0, 2.0] and band["low"][0] == 0.0 and band["high"][0] == 2.0
    assert band["interval_low"][6] is None and band["interval_high"][0] == pytest.approx(1.0 + 12.706, rel=1e-3)
    seconds = fetch(member, rig, "seeds.json?names=reward/mean&x=time").json()["bands"]["reward/mean"]
    assert seconds["x"][0] == 0.0 and seconds["x"][-1] == 6.0
    assert fetch(member, rig, "seeds.json?names=reward/mean&x=tokens").json()["bands"] == {}


def test_time_and_tokens_of_a_band_begin_where_the_charts_do(rig: Rig) -> None:
    twin = sibling(rig, 2)
    loading = ("phase", {"name": "loading"})
    for attempt in (rig.attempt, new_attempt(twin, 1, "hrw_a")):
        push(attempt, [loading, loading, metric(1.0), metric(10.0, "samples/tokens"), metric(2.0), metric(20.0, "samples/tokens")])
    others = bands.siblings(rig.run)
    assert bands.read(rig.run, others, ["reward/mean"], x="time", buckets=9)["reward/mean"]["x"] == [2.0, 4.0]
    assert bands.read(rig.run, others, ["reward/mean"], x="tokens", buckets=9)["reward/mean"]["x"] == [15.0], (
        "the first point is before any"
    )
    assert selectors.snapshot(rig.run)["began"] == selectors.began(rig.run)


def test_bands_never_reach_into_another_team(rig: Rig) -> None:
    other = new_rig()
    Run.unscoped.filter(pk=other.run.pk).update(seed=5)
    assert bands.siblings(rig.run) == []


def test_the_file_holds_every_point_with_its_non_finite_ones(rig: Rig, member: Client) -> None:
    push(rig.attempt, [metric(0.25), metric("NaN"), metric(-1.5, "loss/policy")])
    reply = fetch(member, rig, "series.csv?names=reward/mean")
    assert reply["Content-Disposition"].endswith('-series.csv"')
    rows = list(csv.DictReader(io.StringIO(b"".join(reply.streaming_content).decode())))
    assert [row["name"] for row in rows] == ["reward/mean"] * 2
    assert float(rows[0]["value"]) == 0.25 and rows[1]["value"].lower() == "nan" and rows[0]["step"] == "1"


def test_every_module_that_the_page_preloads_exists() -> None:
    assert [name for name in views.MODULES if finders.find(name) is None] == []
