"""All writes of this app, but for states (lifecycle.py). Called by the form, the API, the demo and the command line alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.db import IntegrityError, transaction
from django.utils import timezone

from headrace.experiments import admission, lifecycle
from headrace.experiments.budget import used_up
from headrace.experiments.editions import check_edition
from headrace.experiments.models import Artifact, Attempt, Config, Experiment, Project, Run, Sweep
from headrace.experiments.problems import BadInput, IdempotencyConflict, WrongState
from headrace.experiments.states import AttemptState, RunState
from headrace.experiments.text import clean_line, clean_text
from headrace.experiments.tokens import issue_run_token as issue_run_token
from headrace.experiments.tokens import verify_run_token as verify_run_token
from headrace.experiments.wake import wake_forecast as wake_forecast
from headrace.experiments.wake import wake_launcher as wake_launcher
from headrace.teams import audit
from headrace.teams.models import Team, User
from headrace.teams.services import require
from workers.contract import loading
from workers.contract.config import RunConfig
from workers.contract.events import Control
from workers.contract.failpoints import reached

MOST_TAGS = 20
_OWNED = ("config", "project", "parent", "experiment", "sweep", "forked_from")


def create_config(team: Team, data: Mapping[str, Any] | RunConfig, *, user: User | None = None, parent: Config | None = None) -> Config:
    """Resolve, check and store a config; the same content is stored once a team.

    Raises ConfigError, whose `problems` name every fault with field, value and cure.
    """
    if user is not None:
        require(user, "config.create", team)
    resolved = data if isinstance(data, RunConfig) else loading.resolve(data)
    _same_team(team, parent=parent)
    digest = resolved.digest()
    found = Config.objects.for_team(team).filter(digest=digest).first()
    if found is not None:
        return found
    try:
        with transaction.atomic():
            return Config.objects.create(
                team=team,
                digest=digest,
                schema_version=resolved.schema_version,
                preset=resolved.preset or "",
                data=resolved.as_json(),
                parent=parent,
                created_by=user,
            )
    except IntegrityError:  # somebody stored the same content in the meantime
        return Config.objects.for_team(team).get(digest=digest)


def start_run(
    *,
    team: Team,
    user: User | None,
    config: Config,
    project: Project,
    name: str,
    idempotency_key: str,
    parent: Run | None = None,
    experiment: Experiment | None = None,
    source: str = Run.Source.WEB,
    note: str = "",
    tags: list[str] | None = None,
    group: str = "",
    priority: int = 0,
    sweep: Sweep | None = None,
    forked_from: Artifact | None = None,
) -> Run:
    """Queue a run with its first attempt. On commit the launcher is woken; should that message be lost, the reconciler launches it.

    The same key in the same team returns the run it made before, or raises IdempotencyConflict if the content differs. `user` None:
    the server itself, for the demo. `group` and `sweep` hold together runs of one question; `forked_from` is the checkpoint whose weights
    the config starts from. Raises BadInput, QuotaReached, NotAllowed.
    """
    fields = {
        "config": config,
        "project": project,
        "parent": parent,
        "experiment": experiment,
        "source": source,
        "name": clean_line(name, field="name"),
        "note": clean_text(note, field="note"),
        "tags": _tags(tags or []),
        "group": clean_line(group, field="group", longest=100) if group else "",
        "priority": admission.check_priority(team, user, priority),
        "sweep": sweep,
        "forked_from": forked_from,
    }
    run, made = _make_run(team, user, idempotency_key, fields)
    if made:
        attempt = run.attempts.get()
        transaction.on_commit(lambda: wake_launcher(attempt))
        transaction.on_commit(lambda: wake_forecast(run))
    return run


def create_upload(
    *, team: Team, user: User | None, data: Mapping[str, Any], name: str, idempotency_key: str, project: Project | None = None
) -> tuple[Run, Attempt, str]:
    """A run that was trained elsewhere: nothing is launched, its spool comes in by `ship`. Returns run, attempt and the attempt's token.

    Asking again with the same key gives a fresh token for the same run, so a broken upload goes on where it stopped.
    """
    with transaction.atomic():
        config = create_config(team, data, user=user)
        home = project or Project.objects.for_team(team).order_by("created_at").first()
        if home is None:
            raise BadInput("this team has no project", field="project", cure="make a project first")
        fields = {"config": config, "project": home, "name": clean_line(name, field="name"), "source": Run.Source.UPLOAD}
        run, _ = _make_run(team, user, idempotency_key, fields)
        attempt = run.attempts.latest("number")
        return run, attempt, issue_run_token(attempt)


def cancel_run(run: Run, user: User | None) -> bool:
    """Ask a run to stop; one that has not been launched is over at once. A run that is over stays as it is. True: it changed."""
    if user is not None:
        require(user, "run.cancel", run)
    actor = user.email if user else "headrace"
    with transaction.atomic():
        attempt = Attempt.unscoped.select_for_update(of=("self",)).filter(run=run).order_by("-number").first()
        locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
        if locked.is_over or locked.state == RunState.STOPPING:
            run.refresh_from_db()
            return False
        _ask(locked, cancel=True)
        if locked.state == RunState.QUEUED:
            if attempt is not None and attempt.state == AttemptState.PENDING:
                lifecycle.transition_attempt(attempt, AttemptState.CANCELLED, cause="cancelled before it was launched")
            lifecycle.transition(locked, RunState.CANCELLED, cause="cancelled before it was launched", actor=actor, attempt=attempt)
        else:
            lifecycle.transition(locked, RunState.STOPPING, cause="cancel was asked for", actor=actor, attempt=attempt)
        audit.record("run.cancel", user=user, team=locked.team, obj=locked)
        run.refresh_from_db()
    reached("cancel.marked")
    return True


def resume_run(run: Run, user: User | None) -> Attempt:
    """Queue a new attempt that goes on from the last complete checkpoint, or from the start if there is none.

    Raises NotAllowed, WrongState, QuotaReached: a resumed run stands in the queue as a new one does.
    """
    if user is not None:
        require(user, "run.resume", run)
    with transaction.atomic():
        last = Attempt.unscoped.select_for_update(of=("self",)).filter(run=run).latest("number")
        locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
        if locked.source == Run.Source.UPLOAD:
            raise WrongState("an uploaded run ran elsewhere", field="run", value=run.public_id, cure="clone it instead")
        if not locked.is_over:
            raise WrongState(f"a run that is {locked.state} cannot be resumed", field="state", value=locked.state, cure="cancel it first")
        spent = used_up(locked)
        if spent is not None:
            cure = "give it more steps" if spent.endswith("done") else "clone it with a larger budget, from its last checkpoint"
            raise WrongState(f"nothing is left to do: {spent}", field="state", value=locked.state, cure=cure)
        admission.check_quota(locked.team)
        checkpoint = _latest_checkpoint(locked)
        number = last.number + 1
        attempt = Attempt.unscoped.create(
            team_id=locked.team_id,
            run=locked,
            number=number,
            fence=last.fence + 1,
            cluster=last.cluster,
            resumed_from=checkpoint,
            resumed_from_attempt=checkpoint.attempt if checkpoint else last,
            out_dir=_out_dir(locked, number),
        )
        kept = Control.model_validate(locked.control or {})
        locked.control = Control(steps=kept.steps, wall_s=kept.wall_s).model_dump()
        locked.save(update_fields=["control"])
        actor = user.email if user else "headrace"
        lifecycle.transition(locked, RunState.QUEUED, cause=f"resumed as attempt {number}", actor=actor, attempt=attempt)
        audit.record("run.resume", user=user, team=locked.team, obj=locked, detail={"attempt": number})
        run.refresh_from_db()
        transaction.on_commit(lambda: wake_launcher(attempt))
    return attempt


@transaction.atomic
def edit_run(
    run: Run, user: User, *, name: str | None = None, note: str | None = None, tags: list[str] | None = None, version: str | None = None
) -> Run:
    """Change what people say about a run; what it did stays. `version`: the edition its editor has read. Raises BadInput, WrongState."""
    require(user, "run.edit", run)
    if version is not None:
        check_edition(Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk), version)
    changes: dict[str, Any] = {}
    if name is not None:
        changes["name"] = clean_line(name, field="name")
    if note is not None:
        changes["note"] = clean_text(note, field="note")
    if tags is not None:
        changes["tags"] = _tags(tags)
    for field, value in changes.items():
        setattr(run, field, value)
    if changes:
        run.save(update_fields=list(changes))
        audit.record("run.edit", user=user, team=run.team, obj=run, detail={"fields": sorted(changes)})
    return run


@transaction.atomic
def delete_run(run: Run, user: User) -> None:
    """Put a run that is over out of sight; its tokens stop working."""
    require(user, "run.delete", run)
    list(Attempt.unscoped.select_for_update(of=("self",)).filter(run=run).order_by("pk"))  # before the run, as everywhere
    locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
    if not locked.is_over:
        raise WrongState(f"a run that is {locked.state} cannot be deleted", field="state", value=locked.state, cure="cancel it first")
    if locked.deleted_at is None:
        locked.deleted_at = timezone.now()
        locked.save(update_fields=["deleted_at"])
        Attempt.unscoped.filter(run=locked).update(token_hash="")
        audit.record("run.delete", user=user, team=locked.team, obj=locked)


def _make_run(team: Team, user: User | None, key: str, fields: dict[str, Any]) -> tuple[Run, bool]:
    if user is not None:
        require(user, "run.create", team)
    key = clean_line(key, field="idempotency_key")
    _same_team(team, **{name: fields.get(name) for name in _OWNED})
    try:
        with transaction.atomic():
            existing = Run.objects.for_team(team).filter(idempotency_key=key).first()
            if existing is None:
                if fields["source"] != Run.Source.UPLOAD:
                    admission.check_quota(team)
                    admission.check_paths(team, fields["config"], fields.get("forked_from"))
                return _insert_run(team, user, key, fields), True
    except IntegrityError:  # two requests with one key met; the other was first
        existing = Run.objects.for_team(team).get(idempotency_key=key)
    _check_same(existing, key, fields)
    return existing, False


def _check_same(existing: Run, key: str, fields: dict[str, Any]) -> None:
    """A key answers with its own run alone: an upload must never take over the token of a run that was launched, nor the reverse."""
    if existing.deleted_at is not None:
        raise IdempotencyConflict("the run of this key was deleted", field="idempotency_key", value=key, cure="send a new key")
    if not admission.same_start(existing, fields):
        raise IdempotencyConflict("this key was used for a different run", field="idempotency_key", value=key, cure="send a new key")


def _insert_run(team: Team, user: User | None, key: str, fields: dict[str, Any]) -> Run:
    config = fields["config"]
    run = Run(
        team=team,
        created_by=user,
        idempotency_key=key,
        seed=config.data["seed"],
        preset=config.preset,
        control=Control().model_dump(),
        **fields,
    )
    run.save()
    cluster = None if run.source == Run.Source.UPLOAD else admission.cluster_for(team)
    Attempt.unscoped.create(team=team, run=run, number=1, fence=1, out_dir=_out_dir(run, 1), cluster=cluster)
    audit.record("run.start", user=user, team=team, obj=run, detail={"config": config.digest, "source": run.source})
    return run


def _out_dir(run: Run, number: int) -> str:
    return "" if run.source == Run.Source.UPLOAD else str(settings.RUNS_DIR / run.public_id / f"attempt-{number}")


def _latest_checkpoint(run: Run) -> Artifact | None:
    complete = Artifact.objects.for_team(run.team_id).filter(run=run, kind=Artifact.Kind.CHECKPOINT, state=Artifact.State.COMPLETE)
    return complete.select_related("attempt").order_by("attempt__number", "step", "pk").last()


def _ask(run: Run, **changes: Any) -> None:
    run.control = {**run.control, **Control.model_validate(run.control).model_copy(update=changes).model_dump()}
    run.save(update_fields=["control"])


def _tags(tags: list[str]) -> list[str]:
    if len(tags) > MOST_TAGS:
        raise BadInput(f"are more than {MOST_TAGS}", field="tags", value=len(tags), cure="keep the useful ones")
    return list(dict.fromkeys(clean_line(tag, field="tags", longest=60) for tag in tags))


def _same_team(team: Team, **rows: Any) -> None:
    """A row of another team is treated as one that does not exist."""
    for field, row in rows.items():
        if row is not None and row.team_id != team.pk:
            raise BadInput("is not in this team", field=field, value=row.public_id, cure="choose one of this team's")
