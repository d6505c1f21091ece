"""/metrics: what a scrape sees, and that it sees one team."""

from __future__ import annotations

import pytest
from django.test import Client
from prometheus_client.parser import text_string_to_metric_families

from headrace.teams import services as teams
from tests.platform_tests.telemetry_rig import Rig, metric, new_rig, push

pytestmark = pytest.mark.django_db


def scrape(rig: Rig) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    _, secret = teams.issue_api_token(user=rig.user, team=rig.team, name="scraper", scope="read")
    answer = Client().get("/metrics", headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200 and answer["Content-Type"].startswith("text/plain; version=0.0.4")
    families = text_string_to_metric_families(answer.content.decode())
    return {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for family in families for sample in family.samples}


def test_runs_and_their_last_values() -> None:
    rig, other = new_rig(), new_rig()
    push(rig.attempt, [("started", {}), metric(0.25), metric("NaN", "loss/policy")])
    push(other.attempt, [("started", {}), metric(0.5)])
    found = scrape(rig)
    run = (("run", rig.run.public_id),)
    assert found["headrace_runs", (("state", "running"), ("team", rig.team.slug))] == 1
    assert found["headrace_runs", (("state", "failed"), ("team", rig.team.slug))] == 0
    assert found["headrace_run_reward_mean", run] == 0.25
    assert found["headrace_run_heartbeat_age_seconds", run] >= 0
    assert ("headrace_run_loss_policy", run) not in found, "no finite value is no data, not zero"
    assert not any(other.run.public_id in str(key) or other.team.slug in str(key) for key in found)
    assert not any(name in ("headrace_ready", "headrace_disk_free_bytes") for name, _ in found), "the server's parts are for administrators"


def test_administrators_see_the_server_too(monkeypatch: pytest.MonkeyPatch) -> None:
    from headrace import health

    monkeypatch.setattr(health, "results", lambda: {"database": "ok", "ray": "not ready: RayUnreachable"})
    rig = new_rig()
    rig.user.is_staff = True
    rig.user.save()
    found = scrape(rig)
    assert found["headrace_ready", (("part", "database"),)] == 1 and found["headrace_ready", (("part", "ray"),)] == 0
    assert found["headrace_disk_free_bytes", ()] > 0


@pytest.mark.parametrize("header", ["", "Bearer", "Bearer hra_wrong", "Basic abc", "Bearer hrw_x"])
def test_strangers_see_nothing(header: str, db: None) -> None:
    answer = Client().get("/metrics", headers={"Authorization": header} if header else {})
    assert answer.status_code == 401 and answer["WWW-Authenticate"] == "Bearer"


def test_a_session_is_no_token() -> None:
    client = Client()
    client.force_login(new_rig().user)
    assert client.get("/metrics").status_code == 401
