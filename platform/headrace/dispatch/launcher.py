"""Launching an attempt: two files in its folder, one job at Ray, and back. Training itself never runs in here.

Doing it twice is harmless: the run's move queued -> launching is a compare-and-set, and Ray refuses a submission id it has seen.
"""

from __future__ import annotations

import json
import logging
import shlex
import sys
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db.models import Q

from headrace.dispatch.ray_jobs import RayJobs, RayRefused, RayUnreachable
from headrace.dispatch.remains import RUN_VARIABLE
from headrace.experiments import lifecycle
from headrace.experiments.models import Attempt
from headrace.experiments.states import RunState
from headrace.experiments.tokens import issue_run_token
from headrace.identifiers import hash_secret
from headrace.supervisor.layout import write_private

log = logging.getLogger(__name__)

SPEC, NOTE = "spec.json", "attempt.json"


def launch_attempt(attempt_id: str, *, repeat: bool = False) -> bool:
    """Submits the attempt's job. False: nothing to do, somebody else launches it or it is over.

    `repeat`: the reconciler found an attempt that was claimed and never submitted, so the claim is not asked again.
    """
    attempt = find_attempt(attempt_id)
    if attempt is None:
        log.warning("launch: there is no attempt %s", attempt_id)
        return False
    run = attempt.run
    if attempt.is_over or not lifecycle.is_current(attempt):
        return False
    try:
        claimed = lifecycle.transition(run, RunState.LAUNCHING, cause="submitting the job", actor="launcher", attempt=attempt)
    except lifecycle.InvalidTransition:
        return False
    if not claimed and not repeat:
        return False
    try:
        submit(attempt)
    except RayUnreachable as error:
        # The run stays "launching": the reconciler tries again, and gives up with this cause if Ray stays away.
        log.warning("launch of run %s: %s", run.public_id, error)
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


def submit(attempt: Attempt) -> None:
    """Writes the files and submits. Raises RayUnreachable (try later), RayRefused and OSError (final)."""
    folder = write_files(attempt)
    submission_id = f"run-{attempt.run.public_id}-{attempt.number}"
    jobs = jobs_of(attempt)
    # The driver gives its actors variables of its own; without the last one Ray refuses to add them to the job's.
    variables = {RUN_VARIABLE: attempt.run.public_id, "HEADRACE_ATTEMPT": attempt.public_id, "RAY_OVERRIDE_JOB_RUNTIME_ENV": "1"}
    fresh = jobs.submit(submission_id, entrypoint(attempt, folder), variables)
    lifecycle.attempt_submitted(attempt, submission_id)
    log.info("run %s: job %s %s", attempt.run.public_id, submission_id, "submitted" if fresh else "was submitted before")


def jobs_of(attempt: Attempt) -> RayJobs:
    """The attempt's cluster, or the one that settings name."""
    return RayJobs(attempt.cluster.address, attempt.cluster.token_file) if attempt.cluster else RayJobs.default()


def entrypoint(attempt: Attempt, folder: Path) -> str:
    """The command line Ray hands to a shell: absolute paths, quoted, no secret in it."""
    earlier = attempt.resumed_from.attempt if attempt.resumed_from else None
    what = ["resume", earlier.out_dir] if earlier and earlier.out_dir else ["run", str(folder / SPEC)]
    return shlex.join([sys.executable, "-m", "workers", *what, "--out", str(folder), "--attempt-file", str(folder / NOTE)])


def write_files(attempt: Attempt) -> Path:
    """DATA_DIR/runs/<run>/attempt-<number>/ with spec.json and attempt.json, both 0600. A repeat keeps the token that a driver may hold."""
    run = attempt.run
    folder = Path(attempt.out_dir or settings.RUNS_DIR / run.public_id / f"attempt-{attempt.number}").resolve()
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_private(folder / SPEC, json.dumps(run.config.data, indent=2, allow_nan=False))
    note = folder / NOTE
    if attempt.out_dir != str(folder):
        attempt.out_dir = str(folder)
        attempt.save(update_fields=["out_dir"])
    # The hash is stored before the file is there: a driver must never hold a token that the server does not know.
    token = _kept_token(note, attempt) or issue_run_token(attempt)
    content: dict[str, Any] = {
        "run": run.public_id,
        "attempt": attempt.public_id,
        "number": attempt.number,
        "fence": attempt.fence,
        "server": f"http://127.0.0.1:{settings.PORT}" if attempt.cluster is None else settings.BASE_URL,
        "token": token,
        "ingested_through": attempt.ingested_through,
    }
    write_private(note, json.dumps(content))
    return folder


def _kept_token(note: Path, attempt: Attempt) -> str | None:
    try:
        token = json.loads(note.read_text())["token"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return token if isinstance(token, str) and attempt.token_hash == hash_secret(token) else None


def _write_problem(error: OSError) -> dict[str, Any]:
    return {
        "type": type(error).__name__,
        "message": f"the run's folder cannot be written ({error.strerror})",
        "field": "HEADRACE_DATA_DIR",
        "value": str(error.filename or ""),
        "cure": "free space or correct the folder's owner, then start the run again",
        "retryable": True,
    }
