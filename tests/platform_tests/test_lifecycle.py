"""The state machine of runs, and that nothing goes round it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import IntegrityError, connection, transaction
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import headrace
from headrace.experiments import lifecycle
from headrace.experiments.lifecycle import InvalidTransition
from headrace.experiments.models import Attempt, Run, RunTransition
from headrace.experiments.signals import run_changed
from headrace.experiments.states import ATTEMPT_MOVES, RUN_MOVES, AttemptState, RunState, StateWrittenElsewhere
from headrace.teams.models import Team

pytestmark = pytest.mark.django_db


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(wanted=st.lists(st.sampled_from(RunState.values), max_size=12))
def test_any_sequence_of_moves_stays_inside_the_machine(wanted: list[str], team: Team, start: Callable[..., Run]) -> None:
    """Whatever is asked for: the stored state follows the table, and the transitions tell its whole story."""
    run = start(team)
    expected, story = RunState.QUEUED.value, []
    for to in wanted:
        if to == expected:
            assert lifecycle.transition(run, to, cause="again") is False
        elif to in RUN_MOVES[expected]:
            assert lifecycle.transition(run, to, cause="asked", actor="test") is True
            story.append((expected, to))
            expected = to
        else:
            with pytest.raises(InvalidTransition):
                lifecycle.transition(run, to, cause="asked")
        assert run.state == expected
        assert Run.unscoped.get(pk=run.pk).state == expected
    assert list(RunTransition.objects.for_team(team).filter(run=run).order_by("pk").values_list("from_state", "to_state")) == story


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    steps=st.lists(
        st.one_of(
            st.just(("submitted", "")),
            st.just(("started", "")),
            st.tuples(st.just("finished"), st.sampled_from(sorted(AttemptState.over()))),
            st.just(("cancel", "")),
            st.just(("resume", "")),
        ),
        max_size=14,
    )
)
def test_messages_in_any_order_never_break_a_run(steps: list[tuple[str, str]], team: Team, start: Callable[..., Run]) -> None:
    """Late, doubled and crossing messages: every move is in the table, and a run is over only if its newest attempt is."""
    from headrace.experiments import services
    from headrace.experiments.problems import WrongState

    run = start(team)
    for what, outcome in steps:
        attempt = Attempt.unscoped.filter(run=run).latest("number")
        if what == "submitted":
            lifecycle.attempt_submitted(attempt, "job-1")
        elif what == "started":
            lifecycle.attempt_started(attempt)
        elif what == "finished":
            lifecycle.attempt_finished(attempt, outcome, cause={"message": "m"})
        elif what == "cancel":
            services.cancel_run(run, None)
        else:
            try:
                services.resume_run(run, None)
            except WrongState as refused:
                assert refused.field == "state"
        run.refresh_from_db()
        newest = Attempt.unscoped.filter(run=run).latest("number")
        assert newest.fence == newest.number
        if run.state == RunState.QUEUED:
            assert newest.state in (AttemptState.PENDING, AttemptState.SUBMITTED)
        if newest.state in AttemptState.over():
            assert run.is_over
    for row in RunTransition.objects.for_team(team).filter(run=run):
        assert row.to_state in RUN_MOVES[row.from_state]


def test_tables_name_every_state() -> None:
    assert set(RUN_MOVES) == set(RunState.values)
    assert set(ATTEMPT_MOVES) == set(AttemptState.values)
    for state in RunState.over():
        assert RUN_MOVES[state] <= {RunState.QUEUED} | RunState.over()


def test_no_way_round(team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    run.state = RunState.SUCCEEDED
    with pytest.raises(StateWrittenElsewhere):
        run.save()
    with pytest.raises(StateWrittenElsewhere):
        run.save(update_fields=["state"])
    with pytest.raises(StateWrittenElsewhere):
        Run.unscoped.filter(pk=run.pk).update(state=RunState.SUCCEEDED)
    with pytest.raises(StateWrittenElsewhere):
        Run.objects.for_team(team).update(state=RunState.SUCCEEDED)
    with pytest.raises(StateWrittenElsewhere):
        Run.unscoped.bulk_update([run], ["state"])
    with pytest.raises(StateWrittenElsewhere):
        team.runs.all().update(state_since=timezone.now())
    copied = Run.unscoped.get(pk=run.pk)
    copied.pk, copied.state = None, RunState.RUNNING
    copied._state.adding = True
    with pytest.raises(StateWrittenElsewhere):
        Run.unscoped.bulk_create([copied])
    with pytest.raises(StateWrittenElsewhere):
        copied.save()
    deferred = Run.unscoped.defer("state").get(pk=run.pk)
    deferred.state = RunState.LOST
    with pytest.raises(StateWrittenElsewhere):
        deferred.save()
    assert Run.unscoped.get(pk=run.pk).state == RunState.QUEUED


def test_an_old_copy_cannot_undo_a_transition(team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    old = Run.unscoped.get(pk=run.pk)
    lifecycle.transition(run, RunState.LAUNCHING)
    old.note = "written from a copy that was loaded before"
    old.save()
    fresh = Run.unscoped.get(pk=run.pk)
    assert (fresh.state, fresh.note) == (RunState.LAUNCHING, old.note)


def test_the_database_refuses_an_unknown_state(team: Team, start: Callable[..., Run]) -> None:
    run = start(team)
    with pytest.raises(IntegrityError), transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("update experiments_run set state = 'odd' where id = %s", [run.pk])


def test_only_the_lifecycle_opens_the_guard() -> None:
    package = Path(headrace.__file__).parent
    users = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if re.search(r"\blifecycle_writes\b|\b_writing\b", path.read_text())
    }
    assert users == {"experiments/states.py", "experiments/lifecycle.py"}


def test_a_transition_carries_its_cause_and_tells_listeners_after_commit(
    team: Team, start: Callable[..., Run], django_capture_on_commit_callbacks: Callable[..., object]
) -> None:
    run = start(team)
    lifecycle.transition(run, RunState.LAUNCHING)
    heard: list[str] = []

    def listen(run: Run, transition: RunTransition, **_: object) -> None:
        heard.append(f"{transition.from_state}->{run.state}")

    run_changed.connect(listen)
    try:
        with django_capture_on_commit_callbacks(execute=True):  # type: ignore[attr-defined]
            lifecycle.transition(run, RunState.FAILED, cause={"message": "no such cluster", "cure": "start one"}, actor="launcher")
            assert heard == []
    finally:
        run_changed.disconnect(listen)
    assert heard == ["launching->failed"]
    row = run.transitions.get(to_state=RunState.FAILED)
    assert row.cause == run.outcome_cause == {"message": "no such cluster", "cure": "start one"}
    assert row.actor == "launcher"
    assert row.at >= run.created_at


def test_a_superseded_attempt_cannot_end_its_run(team: Team, start: Callable[..., Run]) -> None:
    from headrace.experiments import services

    run = start(team)
    first = run.attempts.get()
    lifecycle.attempt_started(first)
    lifecycle.attempt_finished(first, "lost", cause="no heartbeat", actor="reconciler")
    second = services.resume_run(run, None)
    lifecycle.attempt_started(second)
    assert lifecycle.attempt_finished(first, "succeeded", summary={"steps": 3}) is False
    run.refresh_from_db()
    first.refresh_from_db()
    assert (run.state, first.state) == (RunState.RUNNING, AttemptState.SUCCEEDED)
    assert run.summary == {}


def test_the_end_of_an_attempt_ends_its_token(team: Team, start: Callable[..., Run]) -> None:
    from headrace.experiments import services

    run = start(team)
    attempt = run.attempts.get()
    token = services.issue_run_token(attempt)
    assert services.verify_run_token(attempt.public_id, token) == attempt
    lifecycle.attempt_started(attempt)
    lifecycle.attempt_finished(attempt, "succeeded")
    assert services.verify_run_token(attempt.public_id, token) == attempt, "a spool may still be shipped"
    attempt.refresh_from_db()
    assert attempt.token_expires is not None
    attempt.token_expires = timezone.now()
    attempt.save()
    assert services.verify_run_token(attempt.public_id, token) is None
