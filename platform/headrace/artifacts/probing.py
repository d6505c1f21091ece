"""From a queued probe to its answer: one job at Ray, a result file, and an end for every case. Driven by a task and the reconciler."""

from __future__ import annotations

import json
import logging
import shlex
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.utils import timezone

from headrace.artifacts import places, results
from headrace.artifacts.models import JobState, Probe
from headrace.artifacts.services import model_of
from headrace.dispatch.launcher import jobs_of
from headrace.dispatch.ray_jobs import ABSENT, TERMINAL, RayJobs, RayRefused, RayUnreachable
from headrace.schema_form import lookup
from headrace.supervisor.layout import write_private
from headrace.supervisor.process import carrying, end
from workers.contract.errors import HeadraceError

log = logging.getLogger(__name__)

VARIABLE = "HEADRACE_PROBE_ID"
RUNNING_A_TEAM = 2
MESSAGE_LOST_AFTER = timedelta(seconds=3)
NEVER_LAUNCHED_AFTER = timedelta(minutes=30)
TIMEOUT = timedelta(minutes=15)
BEING_SUBMITTED = timedelta(seconds=30)
ASK_RAY_EVERY_S = 2.0
PATIENCE_S = 4.0
_asked: dict[int, float] = {}


def advance(guard: Callable[[], None]) -> None:
    """Called every pass of the reconciler: launches what nobody launched, reads results, ends what took too long or was cancelled."""
    now = timezone.now()
    for probe in _probes(JobState.STOPPING):
        guard()
        _stop(probe)
        _settle(probe, JobState.CANCELLED)
    for probe in _probes(JobState.RUNNING):
        if now - probe.state_since > TIMEOUT:
            guard()
            _stop(probe)
            _fail(
                probe,
                f"no answer within {TIMEOUT.seconds // 60} minutes",
                cure="ask for fewer tokens or prompts, or when the machine is idle",
            )
        else:
            collect(probe)
    for probe in _probes(JobState.QUEUED):
        if now - probe.created_at > NEVER_LAUNCHED_AFTER:
            _fail(probe, "it could not be started within 30 minutes", cure="see that the Ray cluster runs, then ask again")
        elif now - probe.state_since > MESSAGE_LOST_AFTER and _asked.get(probe.pk, 0.0) < time.monotonic() - ASK_RAY_EVERY_S:
            _asked[probe.pk] = time.monotonic()
            guard()
            launch(probe.public_id)


def launch(public_id: str) -> bool:
    """Submits the probe's job where its team has room. False: nothing to do, or later. Doing it twice is harmless."""
    probe = Probe.unscoped.select_related("run__config", "artifact__attempt", "artifact__run").filter(public_id=public_id).first()
    if probe is None or probe.state != JobState.QUEUED:
        return False
    if Probe.unscoped.filter(team_id=probe.team_id, state__in=(JobState.RUNNING, JobState.STOPPING)).count() >= RUNNING_A_TEAM:
        return False
    now = timezone.now()
    submission_id = f"probe-{probe.public_id}"
    claimed = Probe.unscoped.filter(pk=probe.pk, state=JobState.QUEUED)
    try:
        spec = write_spec(probe)
        if not claimed.update(state=JobState.RUNNING, state_since=now, started_at=now, submission_id=submission_id):
            return False
        command = shlex.join([sys.executable, "-m", "workers", "probe", str(spec)])
        _jobs(probe).submit(submission_id, command, {VARIABLE: probe.public_id})
    except RayUnreachable as error:
        log.warning("probe %s: %s", probe.public_id, error)
        Probe.unscoped.filter(pk=probe.pk, state=JobState.RUNNING).update(state=JobState.QUEUED, problem=error.as_dict())
        return False
    except RayRefused as error:
        _fail(probe, error.message, cure=error.cure)
        return False
    except (HeadraceError, OSError) as error:
        _fail(probe, str(error)[:300], cure="choose another checkpoint, or see that the server may write its data folder")
        return False
    log.info("probe %s: job %s", probe.public_id, submission_id)
    return True


def write_spec(probe: Probe) -> Path:
    """spec.json as `python -m workers probe` takes it. Raises NotHere, Damaged, OSError."""
    folder = folder_of(probe)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    checkpoint = None
    if probe.artifact is not None:
        path = places.locate(probe.artifact)
        places.check_plain(path)
        checkpoint = str(path)
    sampling = dict(probe.sampling)
    spec: dict[str, Any] = {
        "model": model_of(probe.run),
        "system_prompt": lookup(probe.run.config.data, "environment.system_prompt") or None,
        "checkpoint": checkpoint,
        "prompts": probe.prompts,
        "max_new_tokens": sampling.pop("max_new_tokens", 128),
        "sampling": sampling,
        "out": str(folder / "result.json"),
    }
    write_private(folder / "spec.json", json.dumps(spec, indent=1))
    return folder / "spec.json"


def folder_of(probe: Probe) -> Path:
    return places.run_folder(probe.run) / "probes" / probe.public_id


def collect(probe: Probe) -> bool:
    """Reads the result where it is there; asks Ray now and then whether it still may come. True: the probe is over."""
    path = folder_of(probe) / "result.json"
    if path.is_file():
        try:
            found = results.read(path)
        except results.Unreadable as error:
            _fail(probe, error.message, cure=error.cure)
            return True
        _settle(probe, JobState.DONE, result=found)
        return True
    last = _asked.get(probe.pk, 0.0)
    if time.monotonic() - last < ASK_RAY_EVERY_S:
        return False
    _asked[probe.pk] = time.monotonic()
    try:
        jobs = replace(_jobs(probe), timeout_s=PATIENCE_S)
        status = jobs.status(probe.submission_id)
        if path.is_file() or status not in TERMINAL | {ABSENT}:
            return False
        if status == ABSENT and timezone.now() - probe.state_since < BEING_SUBMITTED:
            return False  # a worker has claimed it and is telling Ray now
        lines = jobs.last_lines(probe.submission_id) if status != ABSENT else []
    except RayUnreachable as error:
        log.warning("probe %s: its job's state is unknown: %s", probe.public_id, error)
        return False
    _fail(probe, *_said(status, lines))
    return True


def _said(status: str, lines: list[str]) -> tuple[str, str]:
    """What the job's last lines say went wrong, and the cure they name."""
    line = next((text for text in reversed(lines) if text.startswith("error: ")), "")
    if line:
        message, _, cure = line.removeprefix("error: ").partition(" -> ")
        return message[:400], cure[:300] or "mend what it names, then ask again"
    if status == ABSENT:
        return "its job vanished: the Ray cluster was restarted", "ask again"
    tail = next((text.strip() for text in reversed(lines) if text.strip()), "no last words")
    return f"its job ended without an answer: {tail[:300]}", "see that the model and the checkpoint can be loaded, then ask again"


def _stop(probe: Probe) -> None:
    """Ends the job and whatever still carries the probe's id on this machine."""
    try:
        if probe.submission_id:
            replace(_jobs(probe), timeout_s=PATIENCE_S).stop(probe.submission_id)
    except RayUnreachable as error:
        log.warning("stop of probe %s: %s", probe.public_id, error)
    left = end(carrying(VARIABLE, probe.public_id), 0.5)
    if left:
        log.error("probe %s left processes behind: %s", probe.public_id, [process.pid for process in left])


def _fail(probe: Probe, message: str, cure: str | None) -> None:
    _settle(probe, JobState.FAILED, problem={"message": message, "cure": cure})


def _settle(probe: Probe, state: JobState, *, result: dict[str, Any] | None = None, problem: dict[str, Any] | None = None) -> None:
    """The end of a probe. One that was cancelled meanwhile stays cancelled."""
    _asked.pop(probe.pk, None)
    now = timezone.now()
    rows = Probe.unscoped.filter(pk=probe.pk, state__in=(JobState.QUEUED, JobState.RUNNING, JobState.STOPPING))
    if state != JobState.CANCELLED:
        rows = rows.exclude(state=JobState.STOPPING)
    rows.update(state=state, state_since=now, ended_at=now, result=result, problem=problem)


def _probes(state: JobState) -> list[Probe]:
    rows = Probe.unscoped.filter(state=state).select_related("run", "artifact__attempt__cluster")
    return list(rows.order_by("state_since", "pk")[:100])


def _jobs(probe: Probe) -> RayJobs:
    """The cluster that trained the checkpoint, or the one that settings name."""
    attempt = probe.artifact.attempt if probe.artifact else None
    return jobs_of(attempt) if attempt is not None else RayJobs.default()
