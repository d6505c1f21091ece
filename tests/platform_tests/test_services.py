"""Configs, runs, uploads: what services store, refuse, and do once however often they are asked."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection
from django.test import TransactionTestCase

from headrace.experiments import lifecycle, selectors, services
from headrace.experiments.models import Artifact, Attempt, Config, ConfigIsImmutable, Project, Run
from headrace.experiments.problems import BadInput, IdempotencyConflict, WrongState
from headrace.experiments.states import AttemptState, RunState
from headrace.identifiers import hash_secret
from headrace.teams.models import AuditEvent, Role, Team, User
from headrace.teams.services import NotAllowed
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

Start = Callable[..., Run]
Member = Callable[..., User]


@pytest.mark.django_db
class TestConfigs:
    def test_is_resolved_and_stored_once(self, team: Team, other_team: Team) -> None:
        first = services.create_config(team, {"preset": "demo"})
        again = services.create_config(team, dict(reversed(first.data.items())))
        assert first == again
        assert RunConfig.model_validate(first.data).digest() == first.digest
        assert first.preset.startswith("demo@")
        assert services.create_config(other_team, {"preset": "demo"}) != first

    def test_every_fault_is_named_and_nothing_is_stored(self, team: Team) -> None:
        with pytest.raises(ConfigError) as refused:
            services.create_config(team, {"preset": "demo", "batch": {"group_size": 1}, "optimizer": {"learning_rate": -1.0}})
        assert {problem.field for problem in refused.value.problems} == {"batch.group_size", "optimizer.learning_rate"}
        assert not Config.objects.for_team(team).exists()

    def test_what_cannot_work_together_is_refused(self, team: Team) -> None:
        with pytest.raises(ConfigError) as refused:
            services.create_config(team, {"preset": "demo", "buffer": {"depth": 1}})
        assert "buffer.depth" in {problem.field for problem in refused.value.problems}

    def test_never_changes(self, team: Team) -> None:
        config = services.create_config(team, {"preset": "demo"})
        config.preset = "other@1"
        with pytest.raises(ConfigIsImmutable, match="parent"):
            config.save()


@pytest.mark.django_db
class TestRuns:
    def test_starts_queued_with_one_attempt(self, team: Team, member: Member, start: Start) -> None:
        user = member(team)
        run = start(team, user, name="  Sums \u0065\u0301 ", tags=["a", "a", "b"])
        attempt = run.attempts.get()
        assert (run.state, run.name, run.tags, run.seed) == (RunState.QUEUED, "Sums é", ["a", "b"], run.config.data["seed"])
        assert (attempt.number, attempt.fence, attempt.state, attempt.ingested_through) == (1, 1, AttemptState.PENDING, 0)
        assert attempt.out_dir.endswith(f"{run.public_id}/attempt-1")
        assert AuditEvent.objects.for_team(team).get(action="run.start").object_id == run.public_id

    def test_the_same_key_gives_the_same_run_or_a_conflict(self, team: Team, other_team: Team, start: Start) -> None:
        first = start(team, idempotency_key="k")
        assert start(team, idempotency_key="k") == first
        assert start(other_team, idempotency_key="k") != first, "keys are a team's own"
        with pytest.raises(IdempotencyConflict):
            start(team, idempotency_key="k", name="another")
        with pytest.raises(IdempotencyConflict):
            start(team, idempotency_key="k", steps=4)

    def test_an_upload_never_takes_over_a_launched_run(self, team: Team, start: Start) -> None:
        run = start(team, idempotency_key="k", name="n")
        token = services.issue_run_token(run.attempts.get())
        upload = {"team": team, "user": None, "data": run.config.data, "name": "n", "idempotency_key": "k", "project": run.project}
        with pytest.raises(IdempotencyConflict):
            services.create_upload(**upload)
        assert services.verify_run_token(run.attempts.get().public_id, token), "its driver goes on"
        services.create_upload(**{**upload, "idempotency_key": "u"})
        with pytest.raises(IdempotencyConflict):
            start(team, idempotency_key="u", name="n")

    def test_the_key_of_a_deleted_run_is_refused_by_name(self, team: Team, member: Member, start: Start) -> None:
        user = member(team, Role.OWNER)
        run = start(team, user, idempotency_key="k")
        services.cancel_run(run, user)
        services.delete_run(run, user)
        with pytest.raises(IdempotencyConflict, match="deleted"):
            start(team, user, idempotency_key="k")

    @pytest.mark.parametrize("name", ["", "  ", "a\x00b", "a\u202eb", "a\u200bb", "\ud800", "x" * 201, "y" * 10_000_000])
    def test_names_that_deceive_are_refused(self, name: str, team: Team, start: Start) -> None:
        with pytest.raises(BadInput) as refused:
            start(team, name=name)
        assert refused.value.field == "name"
        assert not Run.objects.for_team(team).exists()

    def test_a_viewer_starts_nothing(self, team: Team, member: Member, start: Start) -> None:
        with pytest.raises(NotAllowed):
            start(team, member(team, Role.VIEWER))

    def test_launch_is_sent_after_commit(self, team: Team, start: Start, django_capture_on_commit_callbacks: Any) -> None:
        from headrace.celery import app

        assert app.conf.task_serializer == "json"
        assert app.conf.accept_content == ["json"]
        _sent()  # what earlier tests of this process committed
        with django_capture_on_commit_callbacks(execute=True):
            run = start(team)
            assert _sent() == [], "nothing leaves before the commit"
        assert [message[0] for message in _sent()] == [run.attempts.get().public_id, run.public_id], "the launch first, then the forecast"

    def test_a_dead_broker_costs_a_moment_and_no_run(self) -> None:
        """In a process of its own, whose Valkey does not exist."""
        code = (
            "import django, time; django.setup()\n"
            "from headrace.experiments.models import Attempt\n"
            "from headrace.experiments.services import wake_launcher\n"
            "begun = time.monotonic(); sent = wake_launcher(Attempt()); print(sent, time.monotonic() - begun < 3)\n"
        )
        env = {**os.environ, "HEADRACE_VALKEY_URL": "unix:///nowhere/valkey.sock"}
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=env)
        assert done.stdout.split() == ["False", "True"], done.stderr
        assert "the launcher was not woken" in done.stderr

    def test_cancel_before_launch_and_after(self, team: Team, member: Member, start: Start) -> None:
        user = member(team)
        run = start(team, user)
        assert services.cancel_run(run, user) is True
        assert (run.state, run.attempts.get().state) == (RunState.CANCELLED, AttemptState.CANCELLED)
        assert services.cancel_run(run, user) is False, "twice is once"
        running = start(team, user)
        lifecycle.attempt_started(running.attempts.get())
        assert services.cancel_run(running, user) is True
        assert (running.state, running.control["cancel"]) == (RunState.STOPPING, True)
        with pytest.raises(NotAllowed):
            services.cancel_run(start(team), user)

    def test_resume_goes_on_from_the_last_checkpoint(self, team: Team, member: Member, start: Start) -> None:
        user = member(team)
        run = start(team, user)
        first = run.attempts.get()
        lifecycle.attempt_started(first)
        with pytest.raises(WrongState, match="running"):
            services.resume_run(run, user)
        for step, state in ((2, "complete"), (4, "complete"), (6, "missing")):
            fields = {"path": f"/c/{step}", "step": step, "state": state, "kind": "checkpoint"}
            Artifact.objects.create(team=team, run=run, attempt=first, **fields)
        services.cancel_run(run, user)
        lifecycle.attempt_finished(first, "cancelled")
        second = services.resume_run(run, user)
        assert (second.number, second.fence, second.resumed_from.step, second.resumed_from_attempt) == (2, 2, 4, first)
        assert second.out_dir != first.out_dir
        run.refresh_from_db()
        assert (run.state, run.control["cancel"]) == (RunState.QUEUED, False)
        assert selectors.current_attempt(run) == second
        with pytest.raises(WrongState):
            services.resume_run(run, user)

    def test_delete_hides_and_ends_tokens(self, team: Team, member: Member, start: Start) -> None:
        user = member(team)
        run = start(team, user)
        token = services.issue_run_token(run.attempts.get())
        with pytest.raises(WrongState):
            services.delete_run(run, user)
        services.cancel_run(run, user)
        services.delete_run(run, user)
        assert services.verify_run_token(run.attempts.get().public_id, token) is None
        with pytest.raises(Run.DoesNotExist):
            selectors.run_for(user, run.public_id)


@pytest.mark.django_db
class TestTokensOfRuns:
    def test_only_the_hash_is_stored_and_it_opens_one_attempt(self, team: Team, start: Start) -> None:
        one, two = start(team).attempts.get(), start(team).attempts.get()
        token = services.issue_run_token(one)
        assert token.startswith("hrw_")
        assert len(token) >= 4 + 43, "256 random bits"
        assert Attempt.unscoped.get(pk=one.pk).token_hash == hash_secret(token)
        assert services.verify_run_token(one.public_id, token) == one
        assert services.verify_run_token(two.public_id, token) is None
        assert services.verify_run_token("absent234567", token) is None
        assert services.verify_run_token(two.public_id, "") is None, "an attempt without a token is opened by none"
        assert services.issue_run_token(one) != token
        assert services.verify_run_token(one.public_id, token) is None, "a new token ends the old one"

    def test_upload(self, team: Team, member: Member, start: Start) -> None:
        user = member(team)
        Project.objects.create(team=team, name="p", slug="p")
        given = {"team": team, "user": user, "data": {"preset": "demo"}, "name": "from a laptop", "idempotency_key": "u"}
        run, attempt, token = services.create_upload(**given)
        assert (run.source, run.state, attempt.out_dir) == ("upload", RunState.QUEUED, "")
        again, same, fresh = services.create_upload(**given)
        assert (again, same) == (run, attempt)
        assert services.verify_run_token(attempt.public_id, token) is None
        assert services.verify_run_token(attempt.public_id, fresh) == attempt
        lifecycle.attempt_started(attempt)
        lifecycle.attempt_finished(attempt, "succeeded", summary={"steps": 3})
        run.refresh_from_db()
        assert (run.state, run.summary) == (RunState.SUCCEEDED, {"steps": 3})
        assert [row.to_state for row in selectors.transitions_of(run)] == ["running", "succeeded"]


class TestAtOnce(TransactionTestCase):
    """Real transactions from several threads on the real database."""

    def test_fifty_submits_with_one_key_make_one_run(self) -> None:
        team = Team.objects.create(name="T", slug="t")
        project = Project.objects.create(team=team, name="p", slug="p")
        key, made, errors = uuid.uuid4().hex, [], []
        gate = threading.Barrier(10)

        def submit() -> None:
            try:
                gate.wait(timeout=30)
                for _ in range(5):
                    config = services.create_config(team, {"preset": "demo"})
                    run = services.start_run(team=team, user=None, config=config, project=project, name="n", idempotency_key=key)
                    made.append(run.pk)
            except Exception as error:
                errors.append(error)
            finally:
                connection.close()

        threads = [threading.Thread(target=submit) for _ in range(10)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(timeout=120)
        assert errors == []
        assert len(made) == 50
        assert len(set(made)) == 1
        assert Run.objects.for_team(team).count() == Attempt.objects.for_team(team).count() == Config.objects.for_team(team).count() == 1

    def test_cancel_against_finish_ends_in_one_state(self) -> None:
        team = Team.objects.create(name="T", slug="t")
        project = Project.objects.create(team=team, name="p", slug="p")
        config = services.create_config(team, {"preset": "demo"})
        for turn in range(6):
            run = services.start_run(team=team, user=None, config=config, project=project, name="n", idempotency_key=str(turn))
            attempt = run.attempts.get()
            lifecycle.attempt_started(attempt)
            errors: list[Exception] = []

            def safely(act: Callable[[], object], errors: list[Exception] = errors) -> None:
                try:
                    act()
                except Exception as error:
                    errors.append(error)
                finally:
                    connection.close()

            acts: list[Callable[[], object]] = [
                lambda run=run: services.cancel_run(Run.unscoped.get(pk=run.pk), None),  # type: ignore[misc]
                lambda attempt=attempt: lifecycle.attempt_finished(attempt, "succeeded"),  # type: ignore[misc]
            ]
            threads = [threading.Thread(target=safely, args=(act,)) for act in acts]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(timeout=60)
            assert errors == []
            run.refresh_from_db()
            assert run.state == RunState.SUCCEEDED


def _sent() -> list[list[Any]]:
    """Arguments of the messages that wait in this process's broker."""
    from headrace.celery import app

    found = []
    with app.connection_for_write() as broker:
        channel = broker.default_channel
        while (message := channel.basic_get("celery", no_ack=True)) is not None:
            assert message.content_type == "application/json"
            found.append(json.loads(message.body)[0])
    return found
