"""The run page's JSON: what it holds, and that no other team ever sees it."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from headrace.experiments import lifecycle
from headrace.experiments.models import Attempt
from headrace.teams.models import Membership, User
from tests.platform_tests.telemetry_rig import SAMPLE, STATE, Rig, metric, new_rig, push

ROUTES = [
    "snapshot.json",
    "series.json",
    "series.json?names=reward/mean",
    "events.json",
    "lag.json",
    "samples.json",
    "samples/1/3.json",
    "logs.json",
]


@pytest.fixture
def rig(db: None) -> Rig:
    rig = new_rig()
    push(
        rig.attempt,
        [
            ("started", {"provenance": {"torch": "2.13"}, "resumed_from": None}),
            metric(0.25),
            ("sample", SAMPLE),
            ("log", {"level": "info", "message": "one", "source": "driver"}),
            ("log", {"level": "error", "message": "two", "source": "driver"}),
            ("state", STATE),
            ("phase", {"name": "train", "detail": "", "done": None}),
            ("sync", {"version": 1, "bytes": 10}),
            ("lag", {"counts": {"0": 4}}),
        ],
    )
    return rig


@pytest.fixture
def member(rig: Rig) -> Client:
    client = Client()
    client.force_login(rig.user)
    return client


def fetch(client: Client, rig: Rig, route: str) -> Any:
    return client.get(f"/runs/{rig.run.public_id}/{route}")


@pytest.mark.parametrize("route", ROUTES)
def test_every_route_answers_members_only(route: str, rig: Rig, member: Client) -> None:
    assert fetch(member, rig, route).status_code == 200
    anonymous = fetch(Client(), rig, route)
    assert anonymous.status_code == 401 and anonymous.json()["code"] == "login_required"
    stranger = Client()
    stranger.force_login(new_rig().user)
    outside = fetch(stranger, rig, route)
    assert outside.status_code == 404 and outside.json() == fetch(stranger, rig, "snapshot.json").json()
    Membership.unscoped.filter(user=rig.user).delete()
    assert fetch(member, rig, route).status_code == 404
    User.objects.filter(pk=rig.user.pk).update(is_active=False)
    assert fetch(member, rig, route).status_code == 401


def test_a_deleted_run_is_gone(rig: Rig, member: Client) -> None:
    type(rig.run).unscoped.filter(pk=rig.run.pk).update(deleted_at="2026-01-01T00:00Z")
    assert fetch(member, rig, "snapshot.json").status_code == 404


def test_the_snapshot_is_what_the_page_shows_first(rig: Rig, member: Client) -> None:
    got = fetch(member, rig, "snapshot.json").json()
    assert got["run"]["state"] == "running" and got["run"]["steps_total"] == 20
    assert got["attempt"]["number"] == 1 and got["attempt"]["ingested_through"] == 9 and got["attempt"]["started"]
    assert got["state"]["buffer"] == {"depth": 2, "capacity": 4} and got["state"]["seq"] == 6
    assert got["phase"]["name"] == "train" and got["syncs"][0]["version"] == 1 and got["lag"]["counts"] == {"0": 4}
    assert [line["message"] for line in got["logs"]] == ["one", "two"]
    assert got["samples"][0]["prompt"] == "What is 2 + 2?" and got["provenance"]["torch"] == "2.13"
    assert [row["to"] for row in got["transitions"]] == ["running"]
    assert 0 <= got["attempt"]["heartbeat_age_s"] < 60 and got["attempt"]["silent"] is False


def test_the_snapshot_says_when_an_attempt_is_silent(rig: Rig, member: Client) -> None:
    Attempt.unscoped.filter(pk=rig.attempt.pk).update(heartbeat_at=timezone.now() - timedelta(minutes=2))
    got = fetch(member, rig, "snapshot.json").json()["attempt"]
    assert 115 < got["heartbeat_age_s"] < 180 and got["silent"] is True
    lifecycle.attempt_finished(rig.attempt, "lost", cause="silent")
    got = fetch(member, rig, "snapshot.json").json()["attempt"]
    assert got["heartbeat_age_s"] is None and got["silent"] is False


def test_events_fill_a_gap_without_heavy_columns(rig: Rig, member: Client) -> None:
    got = fetch(member, rig, "events.json?attempt=1&after=1&limit=2").json()
    assert (got["attempt"], got["through_seq"]) == (1, 9)
    assert [(row["seq"], row["kind"]) for row in got["events"]] == [(2, "metrics"), (3, "sample")]
    assert "tokens" not in got["events"][1]["data"]
    assert fetch(member, rig, "samples/1/3.json").json()["data"]["tokens"]["ids"] == [5, 6]
    assert fetch(member, rig, "samples/1/2.json").status_code == 404
    assert fetch(member, rig, "events.json?attempt=2").status_code == 404


def test_series_samples_and_logs_are_filtered(rig: Rig, member: Client) -> None:
    got = fetch(member, rig, "series.json?names=reward/mean,nothing").json()
    assert got["series"]["reward/mean"]["value"] == [0.25] and got["through_seq"] == 9
    assert fetch(member, rig, "series.json").json()["names"] == ["reward/mean"]
    assert len(fetch(member, rig, "samples.json?outcome=trained&q=2+%2B+2&step=3").json()["samples"]) == 1
    assert fetch(member, rig, "samples.json?step=4").json()["samples"] == []
    assert [row["message"] for row in fetch(member, rig, "logs.json?after=4").json()["logs"]] == ["two"]


@pytest.mark.parametrize(
    "route, field",
    [
        ("series.json?names=a&x=tokens", "x"),
        ("series.json?names=a&buckets=2001", "buckets"),
        ("series.json?names=a&from=nan", "from"),
        ("series.json?names=%20", "names"),
        ("series.json?names=" + ",".join(f"n{i}" for i in range(65)), "names"),
        ("events.json?after=-1", "after"),
        ("events.json?after=1e3", "after"),
        ("events.json?limit=9999", "limit"),
        ("samples.json?outcome=fine", "outcome"),
        ("samples.json?step=%C2%B2", "step"),
    ],
)
def test_a_query_that_cannot_be_used_is_named(route: str, field: str, rig: Rig, member: Client) -> None:
    got = fetch(member, rig, route)
    assert got.status_code == 400
    assert got.json()["field"] == field and got.json()["cure"]


def test_only_get_is_answered(rig: Rig, member: Client) -> None:
    assert member.post(f"/runs/{rig.run.public_id}/snapshot.json").status_code == 405
