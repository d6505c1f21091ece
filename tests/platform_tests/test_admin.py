"""The admin: every model is there, its pages open with a bounded number of queries, no secret is shown, and services keep the writing."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.apps import apps
from django.contrib import admin
from django.test import Client
from django.urls import reverse

from headrace.experiments.models import Run
from headrace.teams import invitations, services
from headrace.teams.models import AuditEvent, Role, SetupLink, SignIn, Team, User
from tests.platform_tests.telemetry_rig import SAMPLE, metric, new_rig, push

pytestmark = pytest.mark.django_db
Member = Callable[..., User]
OURS = ("teams", "experiments", "dispatch", "telemetry", "compare", "alerts", "artifacts", "api")
# Written in the admin, because administrators are the ones who look after them.
WRITABLE = {"user", "team", "cluster", "teamquota"}
MODELS = [model for label in OURS if apps.is_installed(f"headrace.{label}") for model in apps.get_app_config(label).get_models()]


@pytest.fixture
def administrator(team: Team, member: Member) -> User:
    return member(team, Role.OWNER, is_staff=True, is_superuser=True)


@pytest.fixture
def desk(administrator: User) -> Client:
    client = Client()
    client.force_login(administrator)
    return client


def test_every_model_is_there() -> None:
    shown = set(admin.site._registry)
    assert {model for model in MODELS if not model._meta.auto_created} <= shown


def test_lists_open_with_a_bounded_number_of_queries(
    desk: Client, team: Team, administrator: User, start: Callable[..., Run], django_assert_max_num_queries: Callable[..., object]
) -> None:
    for _ in range(4):
        run = start(team, administrator)
        push(run.attempts.get(), [metric(0.5), ("sample", SAMPLE), ("log", {"level": "info", "message": "m", "source": "driver"})])
        invitations.invite(by=administrator, team=team)
    for model in MODELS:
        address = reverse(f"admin:{model._meta.app_label}_{model._meta.model_name}_changelist")
        with django_assert_max_num_queries(16):  # type: ignore[attr-defined]
            assert desk.get(address).status_code == 200, model
        if admin.site._registry[model].search_fields:
            assert desk.get(address, {"q": run.public_id}).status_code == 200, model


def test_rows_open_and_show_no_secret(desk: Client, administrator: User) -> None:
    rig = new_rig()
    push(rig.attempt, [metric(0.5), ("sample", SAMPLE), ("log", {"level": "info", "message": "m", "source": "driver"})])
    services.issue_api_token(user=rig.user, team=rig.team, name="t")
    services.issue_setup_link(rig.team)
    invitations.invite(by=rig.user, team=rig.team)
    secrets = {rig.attempt.token_hash, SetupLink.unscoped.get().token_hash, *SignIn.objects.values_list("session_key", flat=True)}
    seen = 0
    for model in MODELS:
        row = model._default_manager.first()
        if row is None:
            continue
        meta = model._meta
        page = desk.get(reverse(f"admin:{meta.app_label}_{meta.model_name}_change", args=[row.pk]))
        assert page.status_code == 200, model
        text = page.content.decode()
        assert not any(secret in text for secret in secrets) and "token_hash" not in text and "Session key" not in text, model
        seen += 1
    assert seen > 14


def test_services_keep_the_writing(desk: Client, administrator: User, team: Team, start: Callable[..., Run]) -> None:
    start(team, administrator)
    for model in MODELS:
        name = f"{model._meta.app_label}_{model._meta.model_name}"
        expected = 200 if model._meta.model_name in WRITABLE else 403
        assert desk.get(reverse(f"admin:{name}_add")).status_code == expected, name
        row = model._default_manager.first()
        if row is not None and model._meta.model_name not in WRITABLE:
            assert desk.post(reverse(f"admin:{name}_change", args=[row.pk]), {}).status_code == 403, name
            assert desk.post(reverse(f"admin:{name}_delete", args=[row.pk]), {"post": "yes"}).status_code == 403, name
    assert desk.post(reverse("admin:teams_team_delete", args=[team.pk]), {"post": "yes"}).status_code == 403


def test_rows_lead_to_the_products_pages(desk: Client, administrator: User, team: Team, start: Callable[..., Run]) -> None:
    run = start(team, administrator)
    assert f'href="/runs/{run.public_id}/"' in desk.get("/admin/experiments/run/").content.decode()
    page = desk.get(f"/admin/experiments/run/{run.pk}/change/").content.decode()
    assert f'href="/runs/{run.public_id}/"' in page


def test_the_first_page_tells_how_the_server_is(
    desk: Client, administrator: User, team: Team, start: Callable[..., Run], django_assert_max_num_queries: Callable[..., object]
) -> None:
    for _ in range(3):
        start(team, administrator)
    with django_assert_max_num_queries(20):  # type: ignore[attr-defined]
        page = desk.get("/admin/").content.decode()
    assert "<strong>3</strong><span>Runs queued</span>" in page and "Disk free" in page and "asleep" in page


def test_what_administrators_change_is_in_the_trail(desk: Client, administrator: User, member: Member) -> None:
    user = member(None)
    body = {"email": user.email, "name": "Renamed", "is_active": "on"}
    assert desk.post(f"/admin/teams/user/{user.pk}/change/", body).status_code == 302
    row = AuditEvent.unscoped.get(action="user.edit")
    assert row.user == administrator and row.object_id == user.public_id and "name" in row.detail["fields"]


def test_only_administrators_get_in(team: Team, member: Member) -> None:
    client = Client()
    client.force_login(member(team, Role.OWNER))
    assert client.get("/admin/").status_code == 302
