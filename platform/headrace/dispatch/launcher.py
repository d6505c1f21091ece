"""Launching an attempt: two files in its folder, one job at Ray, and back. Training itself never runs in here.

A run is launched when the scheduler takes it; until then it stays queued, and the reconciler asks again in every pass.
Doing it twice is harmless: the run's move queued -> launching is a compare-and-set, and Ray refuses a submission id it has seen. The
id follows from run and attempt and is stored before Ray is asked, so a launcher that dies in between leaves nothing unknown behind.
"""

from __future__ import annotations

import logging
import shlex
import sys
from pathlib import Path
from typing import Any

from django.db.models import Q

from headrace.dispatch import queue, shipping
from headrace.dispatch.folders import NOTE, SPEC, has_checkpoint, write_files
from headrace.dispatch.ray_jobs import RayJobs, RayRefused, RayUnreachable
from headrace.dispatch.remains import ATTEMPT_VARIABLE, RUN_VARIABLE
from headrace.experiments import lifecycle
from headrace.experiments.models import Artifact, Attempt, Run
from headrace.experiments.states import AttemptState, RunState
from workers.contract.events import Control
from workers.contract.failpoints import reached

log = logging.getLogger(__name__)

SHIP_FIRST_S = 30.0


def launch_attempt(attempt_id: str, *, repeat: bool = False, ship_s: float = SHIP_FIRST_S) -> bool:
    """Submits the attempt's job. False: nothing to do: it waits, somebody else launches it, or it is over.

    `repeat`: the reconciler found an attempt that was claimed and never submitted, so the claim is not asked again. `ship_s`: how long
    the attempt before a resumed one may take to tell its rest; 0 in the reconciler, which has a shipper of its own.
    """
    attempt = find_attempt(attempt_id)
    if attempt is None:
        log.warning("launch: there is no attempt %s", attempt_id)
        return False
    run = attempt.run
    if attempt.is_over or not lifecycle.is_current(attempt):
        return False
    claimed = queue.claim(attempt)
    if not claimed and not (repeat and run.state == RunState.LAUNCHING):
        return False
    try:
        submit(attempt, ship_s)
    except RayUnreachable as error:
        # The run stays "launching": the reconciler tries again, and gives up with this cause if Ray stays away.
        log.warning("launch of run %s: %s", run.public_id, error)
        lifecycle.attempt_delayed(attempt, error.as_dict())
        return False
    except (RayRefused, OSError) as error:
        cause = error.as_dict() if isinstance(error, RayRefused) else _write_problem(error)
        lifecycle.attempt_finished(attempt, "failed", cause=cause, actor="launcher")
        return False
    return True


def find_attempt(attempt_id: str) -> Attempt | None:
    """By public id; a number is taken as the row's key."""
    by_key = Q(pk=int(attempt_id)) if str(attempt_id).isdecimal() else Q()
    query = Q(public_id=attempt_id) | by_key if by_key else Q(public_id=attempt_id)
    return Attempt.unscoped.select_related("run", "run__config", "cluster", "resumed_from__attempt").filter(query).first()


def submit(attempt: Attempt, ship_s: float = 0.0) -> None:
    """Writes the files and submits. Raises RayUnreachable (try later), RayRefused and OSError (final)."""
    folder = write_files(attempt)
    settle_origin(attempt, ship_s)
    submission_id = submission_id_of(attempt)
    lifecycle.attempt_claimed(attempt, submission_id)
    reached("launch.claimed")
    jobs = jobs_of(attempt)
    # The driver gives its actors variables of its own; without the last one Ray refuses to add them to the job's.
    variables = {RUN_VARIABLE: attempt.run.public_id, ATTEMPT_VARIABLE: attempt.public_id, "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
    fresh = jobs.submit(submission_id, entrypoint(attempt, folder), variables)
    reached("launch.taken")
    lifecycle.attempt_submitted(attempt, submission_id)
    log.info("run %s: job %s %s", attempt.run.public_id, submission_id, "submitted" if fresh else "was submitted before")
    if attempt.is_over and fresh:
        jobs.stop(submission_id)  # it was cancelled while Ray was asked


def submission_id_of(attempt: Attempt) -> str:
    """The job's name at Ray: the same for every try to submit this attempt."""
    return f"run-{attempt.run.public_id}-{attempt.number}"


def jobs_of(attempt: Attempt) -> RayJobs:
    """The attempt's cluster, or the one that settings name."""
    return RayJobs(attempt.cluster.address, attempt.cluster.token_file) if attempt.cluster else RayJobs.default()


def settle_origin(attempt: Attempt, ship_s: float = 0.0) -> None:
    """Called before a resumed attempt is submitted: what it really goes on from, and the attempt before it told to its end.

    The checkpoint's event may never have been shipped, so the folders are looked at, the newest attempt first.
    """
    earlier = list(Attempt.unscoped.select_related("run").filter(run=attempt.run, number__lt=attempt.number).order_by("-number"))
    if not earlier or attempt.state != AttemptState.PENDING:
        return
    if ship_s > 0 and not shipping.is_told(earlier[0]):
        shipping.ship_attempt(earlier[0], ship_s)
    found = next((one for one in earlier if has_checkpoint(one.out_dir)), None)
    if found is None:
        if attempt.resumed_from is None:
            log.warning("run %s, attempt %d starts from step 0: no complete checkpoint was left", attempt.run.public_id, attempt.number)
        return
    attempt.resumed_from_attempt = found
    rows = Artifact.unscoped.select_related("attempt").filter(attempt=found, kind=Artifact.Kind.CHECKPOINT, state=Artifact.State.COMPLETE)
    attempt.resumed_from = rows.order_by("step", "pk").last()
    Attempt.unscoped.filter(pk=attempt.pk, state=AttemptState.PENDING).update(
        resumed_from=attempt.resumed_from, resumed_from_attempt=attempt.resumed_from_attempt
    )


def entrypoint(attempt: Attempt, folder: Path) -> str:
    """The command line Ray hands to a shell: absolute paths, quoted, no secret in it.

    With a checkpoint's row and none on this disk the driver is told to resume all the same: the folder may be on its cluster alone,
    and where it is gone the driver says so.
    """
    before, recorded = attempt.resumed_from_attempt, attempt.resumed_from
    earlier = before if before and has_checkpoint(before.out_dir) else recorded.attempt if recorded else None
    what = ["resume", earlier.out_dir] if earlier and earlier.out_dir else ["run", str(folder / SPEC)]
    note = ["--out", str(folder), "--attempt-file", str(folder / NOTE)]
    return shlex.join([sys.executable, "-m", "workers", *what, *note, *_budget(attempt.run)])


def _budget(run: Run) -> list[str]:
    """The budget as people set it anew: a resumed driver must know it before its first step, not from its first reply."""
    control = Control.model_validate(run.control or {})
    given = (("budget.steps", control.steps), ("budget.wall_s", control.wall_s))
    return [word for path, value in given if value is not None for word in ("--set", f"{path}={value}")]


def _write_problem(error: OSError) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "message": f"the run's folder cannot be written ({error.strerror})",
        "field": "HEADRACE_DATA_DIR",
        "value": str(error.filename or ""),
        "cure": "free space or correct the folder's owner, then start the run again",
        "retryable": True,
    }
