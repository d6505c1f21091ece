"""A driver says that it is paused and that it goes on: the run follows, and stays one that can be cancelled, lost and resumed."""

from __future__ import annotations

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from headrace.experiments import lifecycle, services
from headrace.experiments.models import Run, RunTransition
from tests.platform_tests.telemetry_rig import STATE, Rig, new_rig, push

pytestmark = pytest.mark.django_db
STARTED = ("started", {"config_digest": "d", "provenance": {}, "resumed_from": None, "lanes": ["trainer"]})
RUNS = ("state", STATE)
PAUSED = ("state", {**STATE, "status": "paused"})
ENDED = ("finished", {"outcome": "succeeded", "cause": None, "log_tail": [], "summary": {"steps": 3}})


@pytest.fixture
def rig() -> Rig:
    return new_rig()


def story(run: Run) -> list[str]:
    return list(RunTransition.unscoped.filter(run=run).order_by("pk").values_list("to_state", flat=True))


def test_the_run_follows_what_its_driver_says(rig: Rig) -> None:
    push(rig.attempt, [STARTED, RUNS])
    push(rig.attempt, [RUNS, PAUSED], first=3)
    push(rig.attempt, [PAUSED], first=5)
    push(rig.attempt, [PAUSED, RUNS, PAUSED], first=6)
    assert Run.unscoped.get(pk=rig.run.pk).state == "paused"
    push(rig.attempt, [RUNS], first=9)
    push(rig.attempt, [PAUSED, ENDED], first=10)
    assert story(rig.run) == ["running", "paused", "running", "succeeded"]


def test_a_start_and_a_pause_may_come_together(rig: Rig) -> None:
    push(rig.attempt, [STARTED, RUNS, PAUSED])
    assert story(rig.run) == ["running", "paused"]


def test_a_state_that_changes_nothing_costs_no_look_at_the_run(rig: Rig) -> None:
    push(rig.attempt, [STARTED, RUNS])
    with CaptureQueriesContext(connection) as plain:
        push(rig.attempt, [("state", {"step": 1})], first=3)
    with CaptureQueriesContext(connection) as same:
        push(rig.attempt, [RUNS], first=4)
    assert len(same) == len(plain)


def test_cancel_loss_and_resume_from_a_pause(rig: Rig) -> None:
    push(rig.attempt, [STARTED, PAUSED])
    assert services.cancel_run(Run.unscoped.get(pk=rig.run.pk), None) is True
    reply = push(rig.attempt, [PAUSED], first=3)
    assert reply.control.cancel and Run.unscoped.get(pk=rig.run.pk).state == "stopping"
    push(rig.attempt, [("finished", {"outcome": "cancelled", "cause": None, "log_tail": [], "summary": {}})], first=4)
    services.resume_run(Run.unscoped.get(pk=rig.run.pk), None)
    push(rig.attempt, [RUNS], first=5, replay=True)
    assert story(rig.run) == ["running", "paused", "stopping", "cancelled", "queued"]


def test_a_paused_run_can_be_lost_and_an_older_attempt_moves_nothing(rig: Rig) -> None:
    push(rig.attempt, [STARTED, PAUSED])
    lifecycle.attempt_finished(rig.attempt, "lost")
    services.resume_run(Run.unscoped.get(pk=rig.run.pk), None)
    assert lifecycle.attempt_held(rig.attempt, True) is False
    assert Run.unscoped.get(pk=rig.run.pk).state == "queued"
