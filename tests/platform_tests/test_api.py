"""REST: tokens, sessions, scopes, named errors, and that no team reaches another's runs."""

from __future__ import annotations

import gzip
import json
from datetime import timedelta
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from headrace.experiments import services as runs
from headrace.experiments.models import Attempt, Run
from headrace.teams import services as teams
from headrace.teams.models import Membership
from headrace.telemetry.models import EventBatch
from tests.platform_tests.telemetry_rig import Rig, document, metric, new_rig
from workers.contract.events import MAX_BATCH_BYTES, Control

pytestmark = pytest.mark.django_db

CONFIG = {"preset": "demo", "budget": {"steps": 3}}


@pytest.fixture
def rig() -> Rig:
    return new_rig()


def as_token(rig: Rig, scope: str = "write") -> dict[str, str]:
    _, secret = teams.issue_api_token(user=rig.user, team=rig.team, name="t", scope=scope)
    return {"Authorization": f"Bearer {secret}"}


def post(path: str, body: Any, headers: dict[str, str], client: Client | None = None) -> Any:
    data = body if isinstance(body, bytes) else json.dumps(body)
    return (client or Client()).post(f"/api/v1{path}", data=data, content_type="application/json", headers=headers)


def ship(rig: Rig, body: Any, token: str | None = None, **headers: str) -> Any:
    return post(f"/attempts/{rig.attempt.public_id}/events", body, {"Authorization": f"Bearer {token or rig.token}", **headers})


# --- what a driver calls


def test_a_batch_is_stored_and_answered(rig: Rig) -> None:
    got = ship(rig, document([metric(0.5)]))
    assert got.status_code == 200
    assert got.json() == {"ingested_through": 1, "control": Control().model_dump()}
    packed = gzip.compress(json.dumps(document([metric(0.6)], first=2)).encode())
    assert ship(rig, packed, **{"Content-Encoding": "gzip"}).json()["ingested_through"] == 2
    mark = Client().get(f"/api/v1/attempts/{rig.attempt.public_id}/mark", headers={"Authorization": f"Bearer {rig.token}"})
    control = Control().model_dump()
    assert mark.json() == {"attempt": rig.attempt.public_id, "fence": 1, "ingested_through": 2, "control": control}


def test_a_cancelled_run_tells_its_driver(rig: Rig) -> None:
    ship(rig, document([("started", {"resumed_from": None})]))
    runs.cancel_run(Run.unscoped.get(pk=rig.run.pk), rig.user)
    assert ship(rig, document([metric(0.5)], first=2)).json()["control"]["cancel"] is True


def test_refusals_are_named(rig: Rig) -> None:
    ship(rig, document([metric(0.5)]))
    gap = ship(rig, document([metric(0.5)], first=5))
    assert (gap.status_code, gap.json()["code"], gap.json()["expected"]) == (409, "gap", 2)
    conflict = ship(rig, document([metric(0.9)]))
    assert (conflict.status_code, conflict.json()["code"], conflict.json()["seq"]) == (409, "conflict", 1)
    rig.resume(2)
    fenced = ship(rig, document([metric(0.5)], first=2))
    assert (fenced.status_code, fenced.json()["code"]) == (409, "fenced")
    replay = post(
        f"/attempts/{rig.attempt.public_id}/events?replay=1", document([metric(0.5)], first=2), {"Authorization": f"Bearer {rig.token}"}
    )
    assert replay.status_code == 200


@pytest.mark.parametrize(
    "body, status, code",
    [
        (b"{", 400, "bad_body"),
        (b" " * (MAX_BATCH_BYTES + 1), 413, "too_large"),
        (json.dumps(document([metric("high")])).encode(), 422, "invalid"),
        (json.dumps(document([metric(1.0)] * 2001)).encode(), 413, "too_large"),
    ],
    ids=["not json", "too many bytes", "not a number", "too many events"],
)
def test_a_body_that_cannot_be_stored_is_named(rig: Rig, body: bytes, status: int, code: str) -> None:
    got = ship(rig, body)
    assert (got.status_code, got.json()["code"]) == (status, code)
    assert got.json()["field"] and got.json()["cure"]
    assert EventBatch.unscoped.count() == 0


def test_only_the_attempts_own_live_token_may_append(rig: Rig) -> None:
    other = new_rig()
    path = f"/attempts/{rig.attempt.public_id}/events"
    for headers in (
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {other.token}"},
        {"Authorization": rig.token},
        as_token(rig),
    ):
        got = post(path, document([metric(0.5)]), headers)
        assert got.status_code == 401 and got.json()["code"] == "unauthenticated"
    signed_in = Client()
    signed_in.force_login(rig.user)
    assert post(path, document([metric(0.5)]), {}, signed_in).status_code == 401
    assert post("/attempts/aaaaaaaaaaaa/events", document([metric(0.5)]), {"Authorization": f"Bearer {rig.token}"}).status_code == 401
    Attempt.unscoped.filter(pk=rig.attempt.pk).update(token_expires=timezone.now() - timedelta(seconds=1))
    assert ship(rig, document([metric(0.5)])).status_code == 401
    Attempt.unscoped.filter(pk=rig.attempt.pk).update(token_hash="", token_expires=None)
    assert ship(rig, document([metric(0.5)])).status_code == 401
    assert EventBatch.unscoped.count() == 0


def test_a_run_token_opens_nothing_else(rig: Rig) -> None:
    for path in ("runs", f"runs/{rig.run.public_id}", "presets"):
        assert Client().get(f"/api/v1/{path}", headers={"Authorization": f"Bearer {rig.token}"}).status_code == 401


# --- what people and their scripts call


@pytest.mark.parametrize("path", ["runs", "runs/aaaaaaaaaaaa", "config/schema", "presets"])
def test_nobody_reads_without_a_login(rig: Rig, path: str) -> None:
    got = Client().get(f"/api/v1/{path}")
    assert got.status_code == 401 and got.json()["cure"]


def test_a_run_is_started_listed_read_and_cancelled(rig: Rig, django_capture_on_commit_callbacks: Any) -> None:
    headers = as_token(rig)
    payload = {"name": "first", "config": CONFIG, "idempotency_key": "k1", "tags": ["a"]}
    made = post("/runs", payload, headers)
    assert made.status_code == 201, made.content
    run = made.json()
    assert run["state"] == "queued" and run["steps_total"] == 3 and run["source"] == "api" and run["config"]["budget"]["steps"] == 3
    assert post("/runs", payload, headers).json()["id"] == run["id"]
    assert post("/runs", {**payload, "name": "other"}, headers).status_code == 409
    listed = Client().get("/api/v1/runs?limit=1", headers=headers).json()
    assert [row["id"] for row in listed["runs"]] == [run["id"]] and listed["next"]
    rest = Client().get("/api/v1/runs", {"before": listed["next"]}, headers=headers).json()
    assert [row["id"] for row in rest["runs"]] == [rig.run.public_id] and rest["next"] is None
    cancelled = post(f"/runs/{run['id']}/cancel", {}, headers)
    assert cancelled.status_code == 200 and cancelled.json()["state"] == "cancelled"
    assert Client().get("/api/v1/runs?state=cancelled", headers=headers).json()["runs"][0]["id"] == run["id"]


def test_faults_of_a_config_are_all_named(rig: Rig) -> None:
    got = post("/runs", {"name": "x", "idempotency_key": "k", "config": {"budget": {"steps": -1}, "nonsense": 1}}, as_token(rig))
    assert got.status_code == 422 and got.json()["code"] == "bad_config"
    fields = [fault["field"] for fault in got.json()["problems"]]
    assert "budget.steps" in fields and "nonsense" in fields
    assert Run.unscoped.count() == 1


@pytest.mark.parametrize(
    "change, field",
    [
        ({"name": ""}, "name"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"project": "aaaaaaaaaaaa"}, "project"),
        ({"parent": "b"}, "parent"),
    ],
)
def test_other_faults_are_named(rig: Rig, change: dict[str, Any], field: str) -> None:
    got = post("/runs", {"name": "x", "config": CONFIG, "idempotency_key": "k", **change}, as_token(rig))
    assert got.status_code in (400, 422) and got.json()["field"] == field and got.json()["cure"]


def test_another_teams_runs_do_not_exist(rig: Rig) -> None:
    stranger = new_rig()
    headers = as_token(stranger)
    assert Client().get(f"/api/v1/runs/{rig.run.public_id}", headers=headers).status_code == 404
    assert post(f"/runs/{rig.run.public_id}/cancel", {}, headers).status_code == 404
    assert [row["id"] for row in Client().get("/api/v1/runs", headers=headers).json()["runs"]] == [stranger.run.public_id]
    # a token is for one team, even if its owner is in several
    Membership.objects.create(team=rig.team, user=stranger.user, role="owner")
    assert Client().get(f"/api/v1/runs/{rig.run.public_id}", headers=headers).status_code == 404
    parent = post("/runs", {"name": "x", "config": CONFIG, "idempotency_key": "k", "parent": rig.run.public_id}, headers)
    assert parent.status_code == 400 and parent.json()["field"] == "parent"


def test_a_reading_token_and_a_viewer_change_nothing(rig: Rig) -> None:
    reader = as_token(rig, "read")
    assert Client().get("/api/v1/runs", headers=reader).status_code == 200
    assert post("/runs", {"name": "x", "config": CONFIG, "idempotency_key": "k"}, reader).status_code == 403
    assert post(f"/runs/{rig.run.public_id}/cancel", {}, reader).status_code == 403
    writer = as_token(rig)
    Membership.unscoped.filter(user=rig.user).update(role="viewer")
    assert post(f"/runs/{rig.run.public_id}/cancel", {}, writer).status_code == 403
    assert post("/uploads", {"name": "x", "config": CONFIG, "idempotency_key": "k"}, writer).status_code == 403
    Membership.unscoped.filter(user=rig.user).delete()
    assert Client().get("/api/v1/runs", headers=writer).status_code == 401


def test_a_session_needs_csrf_to_change_something(rig: Rig) -> None:
    client = Client(enforce_csrf_checks=True)
    client.force_login(rig.user)
    assert client.get("/api/v1/runs").status_code == 200
    path = f"/runs/{rig.run.public_id}/cancel"
    assert post(path, {}, {}, client).status_code == 403
    assert Run.unscoped.get(pk=rig.run.pk).state == "queued"
    relaxed = Client()
    relaxed.force_login(rig.user)
    assert post(path, {}, {}, relaxed).json()["state"] == "cancelled"


def test_an_upload_is_announced_and_shipped(rig: Rig) -> None:
    headers = as_token(rig)
    payload = {"name": "trained elsewhere", "config": CONFIG, "idempotency_key": "up"}
    first = post("/uploads", payload, headers)
    assert first.status_code == 201, first.content
    again = post("/uploads", payload, headers).json()
    assert again["attempt"] == first.json()["attempt"] and again["token"] != first.json()["token"]
    events = [
        ("started", {"resumed_from": None}),
        metric(0.5),
        ("finished", {"outcome": "succeeded", "cause": None, "summary": {"steps": 1}}),
    ]
    sent = post(f"/attempts/{again['attempt']}/events", document(events), {"Authorization": f"Bearer {again['token']}"})
    assert sent.status_code == 200, sent.content
    got = Client().get(f"/api/v1/runs/{again['run']}", headers=headers).json()
    assert (got["state"], got["source"], got["series"]) == ("succeeded", "upload", ["reward/mean"])


def test_schema_presets_and_check(rig: Rig) -> None:
    headers = as_token(rig, "read")
    schema = Client().get("/api/v1/config/schema", headers=headers).json()
    assert "budget" in schema["properties"]
    assert any(row["name"] == "demo" for row in Client().get("/api/v1/presets", headers=headers).json()["presets"])
    checked = post("/config/check", {"preset": "demo", "set": ["budget.steps=7"]}, headers).json()
    assert checked["config"]["budget"]["steps"] == 7 and checked["digest"]


def test_the_description_is_behind_the_login(rig: Rig) -> None:
    assert Client().get("/api/v1/openapi.json").status_code == 302
    client = Client()
    client.force_login(rig.user)
    described = client.get("/api/v1/openapi.json").json()
    assert "/api/v1/attempts/{attempt_id}/events" in described["paths"]
    assert described["components"]["securitySchemes"]["AttemptTokenAuth"]


def test_pages_leave_out_nothing_that_was_made_in_the_same_instant_and_keep_an_order_that_is_asked_for(rig: Rig) -> None:
    headers = as_token(rig)
    bodies = [{"name": f"r{i}", "config": CONFIG, "set": [f"seed={i}"], "idempotency_key": f"k{i}"} for i in (3, 1, 4, 2, 5)]
    made = [post("/runs", body, headers).json()["id"] for body in bodies]
    Run.unscoped.filter(public_id__in=made).update(created_at=timezone.now())
    for query in ("preset:demo", "preset:demo sort:seed", "preset:demo sort:-seed"):
        told: list[dict[str, Any]] = []
        before = ""
        for _ in range(9):
            page = Client().get("/api/v1/runs", {"before": before, "limit": 2, "query": query}, headers=headers).json()
            told, before = told + page["runs"], page["next"]
            if before is None:
                break
        assert {row["id"] for row in told} >= set(made) and len(told) == len({row["id"] for row in told}), query
        seeds = [row["seed"] for row in told if row["id"] in made]
        assert "sort" not in query or seeds == sorted(seeds, reverse="-seed" in query)
    for wrong in ("@-1", "@x", "tomorrow"):
        query = "sort:seed" if wrong.startswith("@") else ""
        assert Client().get("/api/v1/runs", {"before": wrong, "query": query}, headers=headers).status_code == 400


def test_extending_one_limit_leaves_the_other(rig: Rig) -> None:
    headers = as_token(rig)
    run = post("/runs", {"name": "long", "config": CONFIG, "idempotency_key": "k"}, headers).json()
    assert post(f"/runs/{run['id']}/extend", {"wall_s": 7200}, headers).json()["control"]["wall_s"] == 7200
    control = post(f"/runs/{run['id']}/extend", {"steps": 9}, headers).json()["control"]
    assert (control["steps"], control["wall_s"]) == (9, 7200)
