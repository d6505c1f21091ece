"""The API is what its OpenAPI description says: made-up requests of three callers, on every operation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import schemathesis
from django.core.cache import cache
from django.core.signals import request_finished, request_started
from django.core.wsgi import get_wsgi_application
from django.db import close_old_connections, transaction
from django.test import Client
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import checks
from schemathesis.specs.openapi import checks as openapi

from headrace.api import limits
from headrace.api.urls import api
from tests.platform_tests.security_rig import World, build

pytestmark = pytest.mark.django_db

CHECKS = (
    checks.not_a_server_error,
    openapi.status_code_conformance,
    openapi.content_type_conformance,
    openapi.response_headers_conformance,
    openapi.response_schema_conformance,
)
KINDS = {"attempt_id": "attempt", "run_id": "run", "artifact_id": "artifact", "probe_id": "probe"}
KINDS |= {"race_id": "race", "sweep_id": "sweep", "view_id": "view"}


@pytest.fixture
def world(db: None, settings: Any, tmp_path: Any) -> Iterator[World]:
    settings.RUNS_DIR = tmp_path / "runs"
    cache.clear()
    for signal in (request_started, request_finished):  # as Django's own test client does: the test's connection stays open
        signal.disconnect(close_old_connections)
    yield build("schemaword")
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


def requests(world: World, headers: Callable[[str], dict[str, str]], examples: int, *, ids: bool) -> int:
    """Asks every operation `examples` times, half of them with ids that exist, and checks every answer. Returns how often."""
    schema = schemathesis.openapi.from_dict(api.get_openapi_schema())
    schema.app = get_wsgi_application()
    asked = 0
    for found in schema.get_all_operations():
        operation = found.ok()

        @settings(
            max_examples=examples,
            database=None,
            derandomize=True,
            deadline=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(), real=st.booleans())
        def ask(case: Any, real: bool) -> None:
            nonlocal asked
            if (real or not ids) and case.path_parameters:
                named = {name: world.ids[kind] for name, kind in KINDS.items() if name in case.path_parameters}
                case.path_parameters = {**case.path_parameters, **named}
            cache.clear()
            with transaction.atomic():
                case.call_and_validate(headers=headers(case.path), checks=CHECKS)
                transaction.set_rollback(True)
            asked += 1

        ask()
    return asked


def test_a_stranger_meets_only_what_is_described(world: World) -> None:
    assert requests(world, lambda path: {}, 1, ids=False) >= 45


def test_a_reading_token_meets_only_what_is_described(world: World) -> None:
    token = world.token("read")
    assert requests(world, lambda path: token, 3, ids=True) >= 90


def test_a_writing_token_meets_only_what_is_described(world: World) -> None:
    token, own = world.token("write"), {"Authorization": f"Bearer {world.attempt_token}"}
    assert requests(world, lambda path: own if "/attempts/" in path else token, 6, ids=True) >= 180


def test_every_operation_names_its_refusals(world: World) -> None:
    schema = api.get_openapi_schema()
    assert schema["components"]["schemas"]["Problem"]["properties"]["cure"]
    for path, methods in schema["paths"].items():
        for method, operation in methods.items():
            statuses = set(operation["responses"])
            assert {"401", "403", "429"} <= set(map(str, statuses)), (method, path)
            assert ("404" in statuses) == ("{" in path), (method, path)


def test_too_many_requests_are_told_to_wait(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "PER_CALLER", 3)
    monkeypatch.setattr(limits, "PER_ATTEMPT", 2)
    monkeypatch.setattr(limits, "FAILURES_PER_ADDRESS", 2)
    monkeypatch.setattr(limits.time, "time", lambda: 1_800_000_010.0)
    token, other = world.token("read"), world.token("read")
    answers = [Client().get("/api/v1/me", headers=token) for _ in range(4)]
    assert [answer.status_code for answer in answers] == [200, 200, 200, 429]
    told = answers[-1].json()
    assert (told["code"], told["field"], told["value"], told["retryable"]) == ("too_many", "requests", "4", True)
    assert 1 <= int(answers[-1]["Retry-After"]) <= limits.WINDOW_S
    assert Client().get("/api/v1/me", headers=other).status_code == 200, "each token has its own count"
    mark = f"/api/v1/attempts/{world.ids['attempt']}/mark"
    own = {"Authorization": f"Bearer {world.attempt_token}"}
    assert [Client().get(mark, headers=own).status_code for _ in range(3)] == [200, 200, 429]
    assert [Client().get("/api/v1/me").status_code for _ in range(3)] == [401, 401, 429]
    monkeypatch.setattr(limits.time, "time", lambda: 1_800_000_080.0)
    assert Client().get("/api/v1/me", headers=token).status_code == 200, "the next minute is a new one"
