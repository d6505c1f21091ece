"""All writes people ask for: probes, exports, checks and deletions of what a run left behind. Permission, audit, one transaction."""

from __future__ import annotations

import logging
import math
import shutil
from pathlib import Path
from typing import Any

from django.db import transaction
from django.utils import timezone

from headrace.artifacts import places
from headrace.artifacts.models import ACTIVE, Export, JobState, Probe
from headrace.experiments.models import Artifact, Attempt, Run
from headrace.experiments.problems import BadInput, QuotaReached, WrongState
from headrace.experiments.states import AttemptState, RunState
from headrace.schema_form import lookup
from headrace.teams import audit
from headrace.teams.services import require

log = logging.getLogger(__name__)

MAX_PROMPTS = 4
MAX_PROMPT_CHARACTERS = 8000
MAX_NEW_TOKENS = 512
WAITING_A_TEAM = 8
KEPT_PROBES = 50
PROBE_TASK, EXPORT_TASK = "headrace.artifacts.probe", "headrace.artifacts.export"
# name -> (default where the run's config names none, lowest, highest, whole number)
SAMPLING = {
    "temperature": (1.0, 0.01, 10.0, False),
    "top_p": (1.0, 0.0, 1.0, False),
    "top_k": (0, 0, 1_000_000, True),
    "max_new_tokens": (128, 1, MAX_NEW_TOKENS, True),
    "seed": (7, 0, 2**31 - 1, True),
}


def ask_probe(run: Run, user: Any, *, prompts: list[str], sampling: dict[str, Any], artifact: Artifact | None) -> Probe:
    """Queues a probe and wakes the launcher. Raises NotAllowed, BadInput, QuotaReached, NotHere."""
    require(user, "probe.create", run.team)
    prompts = _prompts(prompts)
    usual = usual_sampling(run)
    settled = {name: _setting(name, sampling.get(name), usual[name]) for name in SAMPLING}
    if artifact is not None:
        if artifact.run_id != run.pk or artifact.kind != Artifact.Kind.CHECKPOINT or artifact.state != Artifact.State.COMPLETE:
            raise BadInput("not a checkpoint of this run", field="artifact", value=artifact.public_id, cure="choose one from the list")
        places.locate(artifact)
    with transaction.atomic():
        waiting = Probe.objects.for_team(run.team_id).select_for_update().filter(state__in=ACTIVE)
        if len(waiting) >= WAITING_A_TEAM:
            raise QuotaReached(
                "your team has as many probes waiting as it may", field="probes", value=WAITING_A_TEAM, cure="wait for one, or cancel one"
            )
        probe = Probe.objects.create(
            team=run.team,
            run=run,
            artifact=artifact,
            checkpoint=name_of(artifact) if artifact else "",
            prompts=prompts,
            sampling=settled,
            created_by=user,
        )
        audit.record("probe.create", user=user, team=run.team, obj=probe, detail={"run": run.public_id})
        transaction.on_commit(lambda: wake(PROBE_TASK, probe.public_id))
    return probe


def cancel_probe(probe: Probe, user: Any) -> None:
    """Takes a probe back; a running one is ended by the reconciler. Raises NotAllowed, WrongState."""
    require(user, "probe.create", probe)
    now = timezone.now()
    with transaction.atomic():
        mine = Probe.objects.for_team(probe.team_id).filter(pk=probe.pk)
        ended = mine.filter(state=JobState.QUEUED).update(state=JobState.CANCELLED, state_since=now, ended_at=now)
        if not ended and not mine.filter(state=JobState.RUNNING).update(state=JobState.STOPPING, state_since=now):
            raise WrongState("the probe is over", field="state", value=probe.state, cure="ask a new one")
        audit.record("probe.cancel", user=user, team=probe.team, obj=probe)


def ask_export(artifact: Artifact, user: Any) -> Export:
    """Makes the adapter ready to take away, unless it is or is being made. Raises NotAllowed, WrongState, NotHere."""
    require(user, "artifact.view", artifact)
    _must_be_a_checkpoint(artifact)
    places.locate(artifact)
    with transaction.atomic():
        export, fresh = (
            Export.objects.for_team(artifact.team_id)
            .select_for_update()
            .get_or_create(artifact=artifact, defaults={"team": artifact.team, "created_by": user})
        )
        whole = export.state == JobState.DONE and export.result is not None and places.is_here(export.result)
        if not fresh and not whole and export.state not in ACTIVE:
            export.state, export.state_since, export.problem, export.created_by = JobState.QUEUED, timezone.now(), None, user
            export.save(update_fields=["state", "state_since", "problem", "created_by"])
            fresh = True
        if fresh:
            audit.record("artifact.export", user=user, team=artifact.team, obj=artifact)
            transaction.on_commit(lambda: wake(EXPORT_TASK, export.public_id))
    return export


def check_artifact(artifact: Artifact, user: Any) -> dict[str, Any]:
    """Hashes it again and remembers what is gone. Raises NotAllowed, NotHere, Damaged."""
    require(user, "artifact.view", artifact)
    try:
        found = places.verify(artifact)
    except places.NotHere:
        if artifact.attempt and artifact.attempt.cluster_id is None and artifact.attempt.out_dir:
            Artifact.objects.for_team(artifact.team_id).filter(pk=artifact.pk, state=Artifact.State.COMPLETE).update(
                state=Artifact.State.MISSING
            )
        raise
    return found


def delete_artifact(artifact: Artifact, user: Any) -> None:
    """Removes a checkpoint and its export from the disk; the row stays, as deleted. Raises NotAllowed, WrongState, NotHere."""
    require(user, "artifact.delete", artifact)
    with transaction.atomic():
        locked = Artifact.objects.for_team(artifact.team_id).select_for_update(of=("self",)).get(pk=artifact.pk)
        if locked.state == Artifact.State.DELETED:
            raise WrongState("it is deleted already", field="state", value=locked.state, cure="choose another one")
        _must_be_unused(locked)
        mark_deleted(locked)
        audit.record("artifact.delete", user=user, team=artifact.team, obj=locked, detail={"path": name_of(locked), "bytes": locked.bytes})


def mark_deleted(locked: Artifact) -> None:
    """A checkpoint and its export are deleted: the rows now, the files after the commit. Called inside a transaction, the row locked.

    Only what truly lies in the run's own folder is removed, whatever path an event told.
    """
    gone = [_path_of(locked)]
    export = Export.objects.for_team(locked.team_id).filter(artifact=locked).select_related("result__run", "result__attempt").first()
    if export is not None and export.result is not None:
        gone.append(_path_of(export.result))
        Artifact.objects.for_team(locked.team_id).filter(pk=export.result_id).update(state=Artifact.State.DELETED)
    if export is not None:
        export.delete()
    locked.state = Artifact.State.DELETED
    locked.save(update_fields=["state"])
    transaction.on_commit(lambda: [_remove(path) for path in gone if path is not None])


def wake(task: str, public_id: str) -> bool:
    """Sends a wake-up. False: the broker did not take it, which the reconciler makes good."""
    from headrace.celery import app

    try:
        app.send_task(task, args=[public_id], retry=False)
    except Exception as error:  # whatever the broker's client raises: the row stands, and none of it may fail the request
        log.warning("nobody was woken for %s %s: %s: %s", task, public_id, type(error).__name__, error)
        return False
    return True


def name_of(artifact: Artifact) -> str:
    """What people call it: the last part of its path."""
    return Path(artifact.path).name[:100]


def _must_be_a_checkpoint(artifact: Artifact) -> None:
    if artifact.kind != Artifact.Kind.CHECKPOINT or artifact.state != Artifact.State.COMPLETE:
        raise WrongState("it is no complete checkpoint", field="artifact", value=artifact.public_id, cure="choose a complete checkpoint")


def _must_be_unused(artifact: Artifact) -> None:
    """The newest checkpoint of a run that goes on is what it would be rescued with; others may be read right now."""
    checkpoints = Artifact.objects.for_team(artifact.team_id).filter(
        run=artifact.run, kind=Artifact.Kind.CHECKPOINT, state=Artifact.State.COMPLETE
    )
    latest = checkpoints.order_by("-attempt__number", "-step", "-pk").first()
    if artifact.run.state in RunState.active() and latest is not None and latest.pk == artifact.pk:
        raise WrongState(
            "the run goes on and this is its newest checkpoint", field="state", value=artifact.run.state, cure="wait for the end"
        )
    starting = Attempt.objects.for_team(artifact.team_id).filter(resumed_from=artifact).exclude(state__in=AttemptState.over())
    if starting.exists() or Run.objects.for_team(artifact.team_id).filter(forked_from=artifact, state__in=RunState.active()).exists():
        raise WrongState("a run starts from it now", field="artifact", value=artifact.public_id, cure="wait until that run is over")
    if Probe.objects.for_team(artifact.team_id).filter(artifact=artifact, state__in=ACTIVE).exists():
        raise WrongState("a probe reads it now", field="artifact", value=artifact.public_id, cure="wait for the probe, or cancel it")
    if Export.objects.for_team(artifact.team_id).filter(artifact=artifact, state__in=ACTIVE).exists():
        raise WrongState("an export reads it now", field="artifact", value=artifact.public_id, cure="wait for the export")


def _path_of(artifact: Artifact) -> Path | None:
    try:
        return places.locate(artifact)
    except places.NotHere:
        return None


def _remove(path: Path) -> None:
    """After the commit: first out of sight, so that nothing half-deleted is ever taken for a checkpoint."""
    aside = path.with_name(f".deleted-{path.name}")
    try:
        path.rename(aside)
        if aside.is_dir():
            shutil.rmtree(aside)
        else:
            aside.unlink()
    except OSError as error:
        log.warning("%s could not be removed to its end: %s", aside, error)


def _prompts(given: list[str]) -> list[str]:
    prompts = [prompt.replace("\x00", "").replace("\r\n", "\n") for prompt in given if prompt.strip()]
    if not prompts:
        raise BadInput("no prompt", field="prompts", value="", cure="write what both models shall answer")
    if len(prompts) > MAX_PROMPTS:
        raise BadInput("too many prompts", field="prompts", value=len(prompts), cure=f"at most {MAX_PROMPTS} at once")
    long = next((prompt for prompt in prompts if len(prompt) > MAX_PROMPT_CHARACTERS), None)
    if long is not None:
        raise BadInput("the prompt is too long", field="prompts", value=len(long), cure=f"at most {MAX_PROMPT_CHARACTERS} characters")
    return [prompt.encode("utf-8", "replace").decode("utf-8") for prompt in prompts]


def _setting(name: str, given: Any, default: float | int) -> float | int:
    _, low, high, whole = SAMPLING[name]
    if given in (None, ""):
        return default
    try:
        value = int(str(given)) if whole else float(given)
    except (TypeError, ValueError, OverflowError):
        value = math.nan
    if not (math.isfinite(value) and low <= value <= high) or (name == "top_p" and value == 0):
        kind = "a whole number" if whole else "a number"
        raise BadInput("not usable", field=name, value=str(given)[:40], cure=f"{kind} from {low} to {high}")
    return value


def usual_sampling(run: Run) -> dict[str, float | int]:
    """What a probe of this run draws with unless told otherwise: as the run itself samples."""
    usual: dict[str, float | int] = {}
    for name, (default, low, high, whole) in SAMPLING.items():
        found = lookup(run.config.data, f"sampling.{name}")
        fits = isinstance(found, int | float) and not isinstance(found, bool) and (not whole or isinstance(found, int))
        usual[name] = min(max(found, low), high) if fits else default
    return usual


def model_of(run: Run) -> str:
    """The base model that the run's config names."""
    return str(lookup(run.config.data, "model.path") or "")
