"""A database that cannot: page, JSON and API say which trouble it is, and that nothing was done."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import InterfaceError, OperationalError, connection
from django.test import Client

from headrace import trouble
from tests.platform_tests.telemetry_rig import Rig, new_rig

pytestmark = pytest.mark.django_db


@pytest.fixture
def rig() -> Rig:
    return new_rig()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("database or disk is full", trouble.FULL),
        ('could not extend file "base/1/2": No space left on device', trouble.FULL),
        ("disk I/O error", trouble.FAILING),
        ("attempt to write a readonly database", trouble.FAILING),
        ("database is locked", trouble.BUSY),
        ("connection to server failed: Connection refused", trouble.AWAY),
    ],
)
def test_the_databases_words_are_understood(said: str, expected: trouble.Trouble) -> None:
    assert trouble.trouble_of(OperationalError(said)) == expected


@pytest.mark.parametrize("kind", [OperationalError, InterfaceError])
def test_page_json_and_api_say_it(rig: Rig, client: Client, kind: type[Exception]) -> None:
    def broken(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        if "experiments_run" in sql:
            raise kind("database or disk is full")
        return execute(sql, params, many, context)

    client.force_login(rig.user)
    with connection.execute_wrapper(broken):
        page = client.get("/runs/")
        data = client.get(f"/runs/{rig.run.public_id}/control.json")
        answer = client.get(f"/api/v1/runs/{rig.run.public_id}")
    assert [reply.status_code for reply in (page, data, answer)] == [503] * 3
    assert page.headers["Retry-After"] and trouble.FULL.message in page.content.decode() and "free some space" in page.content.decode()
    assert data.json()["code"] == answer.json()["code"] == "storage_full"
    assert answer.json()["field"] == "database" and answer.json()["cure"] == trouble.FULL.cure and answer.json()["retryable"]
    assert client.get("/runs/").status_code == 200
