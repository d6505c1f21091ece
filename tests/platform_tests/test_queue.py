"""The queue over the database: what is launched, why the rest waits, who may change it, and what other teams see of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import httpx
import pytest
from django.contrib.admin.sites import site
from django.db import connection
from django.test import Client
from django.utils import timezone

from headrace.dispatch import capacity, discovery, launcher, queue, queue_page, queue_services
from headrace.dispatch.admin import ClusterForm
from headrace.dispatch.models import Cluster, TeamQuota
from headrace.dispatch.ray_jobs import RayJobs, RayUnreachable
from headrace.experiments import lifecycle, services
from headrace.experiments.models import Attempt, Project, Run
from headrace.experiments.problems import BadInput, QuotaReached, WrongState
from headrace.experiments.states import RunState, lifecycle_writes
from headrace.teams.models import AuditEvent, Role, Team, User
from headrace.teams.services import NotAllowed
from headrace.telemetry.models import LatestState
from workers.contract import loading

Start = Callable[..., Run]
Member = Callable[..., User]


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
    settings.MAX_RUNS = None
    monkeypatch.setattr(capacity, "machine", lambda: {"cpus": 2.0, "gpus": 0.0, "memory_bytes": 8e9})
    monkeypatch.setattr(services, "wake_launcher", lambda attempt: False)


def age(run: Run, by: timedelta) -> None:
    with lifecycle_writes():
        Run.unscoped.filter(pk=run.pk).update(state_since=timezone.now() - by)


def place(run: Run) -> dict[str, Any]:
    run.refresh_from_db()
    return queue_page.place_of(run)


@pytest.mark.django_db
class TestLaunching:
    def test_the_second_run_waits_until_the_first_is_over(self, team: Team, start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launcher, "submit", lambda attempt, ship_s: None)
        first, second = start(team), start(team)
        assert launcher.launch_attempt(first.attempts.get().public_id)
        assert not launcher.launch_attempt(second.attempts.get().public_id)
        second.refresh_from_db()
        assert second.state == RunState.QUEUED
        assert place(second)["why"] == "waiting for 2 CPUs: 0 of 2 free"
        assert (place(second)["position"], place(first)["waits"]) == (1, False)
        lifecycle.attempt_finished(first.attempts.get(), "failed", cause="x")
        assert launcher.launch_attempt(second.attempts.get().public_id)

    def test_a_paused_run_keeps_its_place_and_an_upload_needs_none(self, team: Team, start: Start) -> None:
        paused = start(team)
        lifecycle.transition(paused, "launching")
        lifecycle.attempt_started(paused.attempts.get())
        lifecycle.transition(paused, "paused")
        services.create_upload(team=team, user=None, data={"preset": "demo"}, name="u", idempotency_key="u")
        assert len(queue.look().running) == 1
        assert not queue.claim(start(team).attempts.get())

    def test_a_late_message_for_an_attempt_that_was_resumed_claims_nothing(self, team: Team, start: Start) -> None:
        run = start(team)
        stale = run.attempts.get()
        services.cancel_run(run, None)
        fresh = services.resume_run(run, None)
        assert not queue.claim(stale) and queue.claim(fresh)

    def test_a_resume_needs_a_place_in_the_queue(self, team: Team, start: Start) -> None:
        run = start(team)
        services.cancel_run(run, None)
        start(team)
        TeamQuota.objects.create(team=team, most_queued=1)
        with pytest.raises(QuotaReached):
            services.resume_run(run, None)
        run.refresh_from_db()
        assert run.state == RunState.CANCELLED and run.attempts.count() == 1

    def test_the_reconciler_is_handed_what_may_start_now_in_order(self, team: Team, start: Start) -> None:
        normal, urgent, young = start(team), start(team, priority=20), start(team, priority=50)
        for run in (normal, urgent):
            age(run, timedelta(seconds=30))
        assert queue.ready(timezone.now() - timedelta(seconds=5)) == [], "the most urgent one is left to its own message"
        age(young, timedelta(seconds=30))
        assert [attempt.run for attempt in queue.ready(timezone.now() - timedelta(seconds=5))] == [young]

    def test_the_first_of_the_queue_knows_when_it_will_start(self, team: Team, start: Start) -> None:
        running, waiting, later = start(team), start(team), start(team)
        lifecycle.transition(running, "launching")
        lifecycle.attempt_started(running.attempts.get())
        assert place(waiting)["expected"] is None, "nothing is known before a step"
        state = {"data": {"step": 10, "steps_total": 30, "time": {"wall_s": 100.0}}}
        LatestState.unscoped.create(attempt=running.attempts.get(), state=state)
        expected = queue.expected_start(waiting, queue.look())
        assert expected is not None and 195 < (expected - timezone.now()).total_seconds() < 201
        assert queue.expected_start(later, queue.look()) is None

    def test_a_run_of_many_devices_counts_them_all(self, team: Team) -> None:
        config = loading.resolve(None, "demo", ["rollout.engines=3", "backend.kind=ddp", "backend.ranks=2"])
        assert capacity.asked(config.as_json()).devices == 5
        assert capacity.asked({"rollout": {"engines": None}}).devices == 2, "a config of an older schema counts what it names"


@pytest.mark.django_db(transaction=True)
def test_two_launchers_never_count_the_same_core(team: Team, start: Start) -> None:
    attempts = [start(team).attempts.get() for _ in range(4)]
    barrier, won = threading.Barrier(4), []

    def take(attempt: Attempt) -> None:
        barrier.wait()
        try:
            if queue.claim(Attempt.unscoped.select_related("run").get(pk=attempt.pk)):
                won.append(attempt.run_id)
        finally:
            connection.close()

    threads = [threading.Thread(target=take, args=(attempt,)) for attempt in attempts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert won == [attempts[0].run_id] or len(won) == 1
    assert Run.unscoped.filter(state=RunState.LAUNCHING).count() == 1


@pytest.mark.django_db
class TestQuota:
    def test_running_and_hours_hold_back_with_the_reason(self, team: Team, start: Start, settings: Any) -> None:
        run = start(team)
        TeamQuota.unscoped.create(team=team, most_running=0)
        assert "the team's quota: 0 running at once" in place(run)["why"]
        TeamQuota.unscoped.update(most_running=None, device_hours_month=1)
        done = start(team)
        attempt = done.attempts.get()
        now = timezone.now()
        Attempt.unscoped.filter(pk=attempt.pk).update(started_at=now - timedelta(hours=1), ended_at=now)
        used = queue.device_hours(team.pk)
        assert 0 < used <= 2.01, "one hour of an engine and a trainer rank, at most"
        assert queue.device_hours(team.pk, now.replace(day=1) + timedelta(days=40)) == 0, "another month"
        TeamQuota.unscoped.update(device_hours_month=used / 2)
        assert "device-hours of this month are used up" in place(run)["why"]

    def test_the_queue_is_full(self, team: Team, other_team: Team, start: Start) -> None:
        TeamQuota.unscoped.create(team=team, most_queued=1)
        first = start(team)
        with pytest.raises(QuotaReached, match="may have 1 runs queued"):
            start(team)
        start(other_team)
        lifecycle.transition(first, "launching")
        start(team)

    def test_owners_set_it_and_bad_values_are_named(self, team: Team, member: Member) -> None:
        owner = member(team, Role.OWNER)
        row = queue_services.set_quota(team, owner, most_running="2", most_queued="", device_hours_month="12.5")
        assert (row.most_running, row.most_queued, float(row.device_hours_month or 0)) == (2, None, 12.5)
        assert AuditEvent.unscoped.filter(action="quota.edit", user=owner).exists()
        for field, value in (("most_running", "-1"), ("most_queued", "many"), ("device_hours_month", "nan"), ("most_running", "9" * 9)):
            given = {"most_running": "", "most_queued": "", "device_hours_month": "", field: value}
            with pytest.raises(BadInput) as caught:
                queue_services.set_quota(team, owner, **given)
            assert caught.value.field == field and caught.value.cure
        with pytest.raises(NotAllowed):
            queue_services.set_quota(team, member(team, Role.MAINTAINER), most_running="1", most_queued="", device_hours_month="")


@pytest.mark.django_db
class TestPriority:
    def test_maintainers_move_runs_and_members_do_not(self, team: Team, other_team: Team, member: Member, start: Start) -> None:
        user = member(team, Role.MEMBER)
        run = start(team, user)
        with pytest.raises(NotAllowed):
            queue_services.set_priority(run, user, 10)
        maintainer = member(team, Role.MAINTAINER)
        queue_services.set_priority(run, maintainer, 10)
        run.refresh_from_db()
        assert run.priority == 10 and AuditEvent.unscoped.filter(action="queue.priority").exists()
        for bad in ("high", 101, True, 1.5):
            with pytest.raises(BadInput, match="priority"):
                queue_services.set_priority(run, maintainer, bad)  # type: ignore[arg-type]
        with pytest.raises(NotAllowed):
            queue_services.set_priority(run, member(other_team, Role.OWNER), 10)
        lifecycle.transition(run, "launching")
        with pytest.raises(WrongState):
            queue_services.set_priority(run, maintainer, 0)

    def test_a_member_launches_at_normal_or_lower(self, team: Team, member: Member, start: Start) -> None:
        user = member(team, Role.MEMBER)
        assert start(team, user, priority=-10).priority == -10
        with pytest.raises(NotAllowed):
            start(team, user, priority=10)
        assert start(team, member(team, Role.MAINTAINER), priority=20).priority == 20


@pytest.mark.django_db
class TestPrice:
    def test_staff_price_the_servers_cluster_and_owners_their_own(self, team: Team, other_team: Team, member: Member, start: Start) -> None:
        owner, staff = member(team, Role.OWNER), member(team, Role.VIEWER, is_staff=True)
        run = start(team)
        assert capacity.price_of(run) is None
        with pytest.raises(NotAllowed):
            queue_services.set_price(team, owner, price="1", currency="EUR")
        with pytest.raises(NotAllowed):
            queue_services.set_price(other_team, staff, price="1", currency="EUR")
        queue_services.set_price(team, staff, price="0.12", currency="usd")
        price = capacity.price_of(run)
        assert price is not None and (float(price.per_device_hour), price.currency) == (0.12, "USD")
        own = Cluster.unscoped.create(team=team, name="ours", address="http://ray.example", is_default=True)
        queue_services.set_price(team, owner, price="3", currency="EUR")
        own.refresh_from_db()
        assert own.price_per_device_hour == 3
        for price, currency, field in (
            ("-1", "EUR", "price_per_device_hour"),
            ("1", "euro", "currency"),
            ("1e99", "EUR", "price_per_device_hour"),
        ):
            with pytest.raises(BadInput) as caught:
                queue_services.set_price(team, owner, price=price, currency=currency)
            assert caught.value.field == field

    def test_the_admin_form_says_what_a_capacity_is(self) -> None:
        good = {"name": "c", "address": "http://ray", "currency": "eur", "capacity": '{"cpus": 16}'}
        form = ClusterForm(good)
        assert form.is_valid(), form.errors
        assert form.cleaned_data["currency"] == "EUR"
        for capacity_text in ('{"cores": 1}', '{"cpus": -1}', '{"cpus": true}', "[1]"):
            assert "capacity" in ClusterForm({**good, "capacity": capacity_text}).errors
        assert Cluster in site._registry and TeamQuota in site._registry


@pytest.mark.django_db
class TestPages:
    def test_the_page_shows_the_teams_own_runs_and_sums_the_others(
        self, client: Client, team: Team, other_team: Team, member: Member, start: Start
    ) -> None:
        running, foreign = start(other_team, name="their secret"), start(other_team, name="their other secret")
        lifecycle.transition(running, "launching")
        mine = start(team, name="my own <b>run</b>")
        client.force_login(member(team, Role.VIEWER))
        page = client.get("/queue/").content.decode()
        assert "my own &lt;b&gt;run" in page and "secret" not in page and foreign.public_id not in page
        assert "2 by others" in page and "0 of 2 free" in page
        assert "Save the quota" not in page and 'name="priority"' not in page
        assert mine.name.replace("<", "&lt;").replace(">", "&gt;") in client.get("/queue/?rows=1").content.decode()
        assert client.get(f"/runs/{mine.public_id}/queue.json").json()["waits"] is True
        assert client.get(f"/runs/{foreign.public_id}/queue.json").status_code == 404

    def test_what_a_launch_would_do_now(self, client: Client, team: Team, member: Member, start: Start) -> None:
        client.force_login(member(team, Role.VIEWER))
        assert "starts at once, if it fits" in client.get("/queue/").content.decode()
        lifecycle.transition(start(team), "launching")
        page = client.get("/queue/").content.decode()
        assert "0 of 2 free" in page and "starts when one of those above has ended" in page

    def test_buttons(self, client: Client, team: Team, other_team: Team, member: Member, start: Start) -> None:
        run, foreign = start(team), start(other_team)
        client.force_login(member(team, Role.OWNER))
        assert client.post(f"/runs/{run.public_id}/priority/", {"priority": "10"})["Location"] == "/queue/"
        run.refresh_from_db()
        assert run.priority == 10
        client.post(f"/runs/{run.public_id}/priority/", {"priority": "soon"})
        assert "Priority: Is not a priority" in client.get("/queue/").content.decode()
        assert client.post(f"/runs/{foreign.public_id}/priority/", {"priority": "10"}).status_code == 404
        client.post("/queue/quota/", {"most_running": "3"})
        assert TeamQuota.unscoped.get(team=team).most_running == 3
        assert client.post("/queue/price/", {"price": "1", "currency": "EUR"}).status_code == 403
        client.force_login(member(team, Role.MEMBER))
        assert client.post("/queue/quota/", {"most_running": "9"}).status_code == 403
        assert client.post(f"/runs/{run.public_id}/priority/", {"priority": "0"}).status_code == 403
        client.logout()
        assert "/login/" in client.get("/queue/")["Location"]

    def test_somebody_without_a_team(self, client: Client, member: Member) -> None:
        client.force_login(member(None))
        assert b"no team yet" in client.get("/queue/").content
        assert client.post("/queue/quota/", {}).status_code == 403


@pytest.mark.django_db
class TestClusters:
    def test_a_team_with_a_cluster_of_its_own_waits_for_that_one_alone(self, team: Team, other_team: Team, start: Start) -> None:
        lifecycle.transition(start(other_team), "launching")
        own = Cluster.unscoped.create(team=team, name="ours", address="http://ray.example", is_default=True, capacity={"cpus": 4})
        first, second, third = start(team), start(team), start(team)
        assert {run.attempts.get().cluster for run in (first, second, third)} == {own}
        assert queue.claim(first.attempts.get()) and queue.claim(second.attempts.get()) and not queue.claim(third.attempts.get())
        assert place(third)["why"] == "waiting for 2 CPUs: 0 of 4 free"
        assert [(row["total"], row["ours"], row["others"]) for row in queue_page.usage(team, queue.look())] == [(4, 4, 0)]

    def test_what_ray_tells_of_clusters_elsewhere(self, team: Team, monkeypatch: pytest.MonkeyPatch, settings: Any) -> None:
        settings.RAY_ADDRESS = "http://ray.example:8265"
        silent = Cluster.unscoped.create(team=team, name="silent", address="http://silent.example", capacity={"cpus": 1})
        told = {"cpus": 64.0, "gpus": 8.0, "memory_bytes": 1e12}

        def resources(jobs: RayJobs) -> dict[str, float]:
            if "silent" in jobs.address:
                raise RayUnreachable("no answer")
            return told

        monkeypatch.setattr(RayJobs, "resources", resources)
        monkeypatch.setattr(discovery, "_last", None)
        now = timezone.now()
        assert discovery.refresh(now) and not discovery.refresh(now + timedelta(seconds=59))
        assert capacity.cluster_here().found == told and capacity.cluster_here().last_seen_at == now
        there = capacity.capacities()
        assert (there[capacity.HERE].cpus, there[capacity.HERE].gpus) == (64.0, 8.0)
        assert (there[silent.pk].cpus, there[silent.pk].gpus) == (1.0, None), "what is not known is no bound"

    @pytest.mark.parametrize("body", [[], {"data": 1}, {"data": {"summary": "x"}}])
    def test_an_answer_that_names_no_nodes_is_no_answer(self, body: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(RayJobs, "_call", lambda *args, **more: httpx.Response(200, json=body))
        with pytest.raises(RayUnreachable):
            RayJobs("http://x", "").resources()

    def test_dead_nodes_count_nothing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        nodes = [
            {"raylet": {"state": state, "resourcesTotal": {"CPU": 4.0, "GPU": 1.0, "memory": 5.0}}} for state in ("ALIVE", "DEAD", "ALIVE")
        ]
        body = {"data": {"summary": [*nodes, {}, None, {"raylet": {"state": "ALIVE"}}]}}
        monkeypatch.setattr(RayJobs, "_call", lambda *args, **more: httpx.Response(200, json=body))
        assert RayJobs("http://x", "").resources() == {"cpus": 8.0, "gpus": 2.0, "memory_bytes": 10.0}


@pytest.mark.django_db
class TestPaths:
    def test_a_config_reads_no_other_teams_folder(self, team: Team, other_team: Team, start: Start, settings: Any) -> None:
        foreign = start(other_team)
        project, _ = Project.unscoped.get_or_create(team=team, slug="p", defaults={"name": "P"})
        for field in ("model.path", "environment.dataset", "model.init_from"):
            ways = [f"{settings.RUNS_DIR}/{foreign.public_id}/attempt-1/x", f"{settings.RUNS_DIR}/../runs/{foreign.public_id}/x"]
            for path in ways[: 1 if field == "model.init_from" else 2]:  # the contract itself refuses .. in that one
                path += ".jsonl" if field == "environment.dataset" else ""
                config = services.create_config(team, loading.resolve(None, "demo", [f"{field}={path}"]))
                with pytest.raises(BadInput, match="not of a run of this team") as caught:
                    start(team, config=config, project=project)
                assert caught.value.field == field
