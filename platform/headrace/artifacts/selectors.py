"""Reads: a run's artifacts and probes as its page shows them. The caller has checked the run."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django.db.models import QuerySet

from headrace.artifacts import places
from headrace.artifacts.models import ACTIVE, Export, JobState, Probe
from headrace.artifacts.services import name_of
from headrace.experiments.models import Artifact, Run

SHOWN = 100
FRESH_STATES = (JobState.QUEUED, JobState.RUNNING)


def artifact_of(run: Run, public_id: str) -> Artifact | None:
    """One of the run's artifacts."""
    rows = Artifact.objects.for_team(run.team_id).filter(run=run, public_id=public_id)
    return rows.select_related("run", "attempt", "team").first()


def checkpoints(run: Run, limit: int = SHOWN) -> list[dict[str, Any]]:
    """Newest first, with what can be done with each. Deleted ones stay in the list, at the end."""
    rows = Artifact.objects.for_team(run.team_id).filter(run=run, kind=Artifact.Kind.CHECKPOINT)
    rows = rows.select_related("run", "attempt").order_by("-attempt__number", "-step", "-pk")
    found = list(rows[:limit])
    exports = {row.artifact_id: row for row in Export.objects.for_team(run.team_id).filter(artifact__in=found).select_related("result")}
    listed = [_row(artifact, exports.get(artifact.pk)) for artifact in found]
    _tell_replaced(run, listed)
    return sorted(listed, key=lambda row: row["state"] == Artifact.State.DELETED)


def others(run: Run) -> list[Artifact]:
    """Uploads; exports are shown beside their checkpoint."""
    return list(Artifact.objects.for_team(run.team_id).filter(run=run, kind=Artifact.Kind.UPLOAD).order_by("-pk")[:SHOWN])


def usable(run: Run) -> list[Artifact]:
    """Checkpoints that can be read here, newest first."""
    rows = Artifact.objects.for_team(run.team_id).filter(run=run, kind=Artifact.Kind.CHECKPOINT, state=Artifact.State.COMPLETE)
    found = rows.select_related("run", "attempt").order_by("-attempt__number", "-step", "-pk")[:SHOWN]
    return [artifact for artifact in found if places.is_here(artifact)]


def probes(run: Run, limit: int = 20, before: int | None = None) -> list[Probe]:
    """The newest probes of the run, newest first."""
    rows = Probe.objects.for_team(run.team_id).filter(run=run).select_related("created_by", "artifact").order_by("-pk")
    return list((rows if before is None else rows.filter(pk__lt=before))[:limit])


def probe_of(run: Run, public_id: str) -> Probe | None:
    """One of the run's probes."""
    rows: QuerySet[Probe] = Probe.objects.for_team(run.team_id).filter(run=run, public_id=public_id)
    return rows.select_related("created_by", "artifact", "team").first()


def probe_row(probe: Probe, *, whole: bool = False) -> dict[str, Any]:
    """A probe as its page reads it; the answers only where `whole`."""
    row = {
        "id": probe.public_id,
        "state": probe.state,
        "checkpoint": probe.checkpoint,
        "artifact": probe.artifact.public_id if probe.artifact else None,
        "step": probe.artifact.step if probe.artifact else None,
        "prompts": [prompt[:400] for prompt in probe.prompts] if not whole else probe.prompts,
        "sampling": probe.sampling,
        "by": (probe.created_by.get_short_name() if probe.created_by else "somebody who left"),
        "created": probe.created_at.isoformat(),
        "seconds": (probe.ended_at - probe.started_at).total_seconds() if probe.ended_at and probe.started_at else None,
        "active": probe.state in ACTIVE,
        "problem": probe.problem,
    }
    return {**row, "result": probe.result} if whole else row


def _row(artifact: Artifact, export: Export | None) -> dict[str, Any]:
    here = artifact.state == Artifact.State.COMPLETE and places.is_here(artifact)
    gone = artifact.state == Artifact.State.COMPLETE and not here
    ready = export is not None and export.state == JobState.DONE and export.result is not None and places.is_here(export.result)
    return {
        "artifact": artifact,
        "name": name_of(artifact),
        "state": "elsewhere" if gone and _elsewhere(artifact) else "missing" if gone else artifact.state,
        "here": here,
        "files": places.files(places.locate(artifact)) if here else [],
        "export": export,
        "ready": export.result if export is not None and ready else None,
        "making": export is not None and export.state in ACTIVE,
        "failed": export.problem if export is not None and export.state == JobState.FAILED else None,
        "card": export.card if export is not None and ready else "",
    }


def _tell_replaced(run: Run, listed: list[dict[str, Any]]) -> None:
    """A run deletes its own older checkpoints (checkpoint.keep_last): those are replaced, not lost."""
    kept = run.config.data.get("checkpoint", {}).get("keep_last")
    newer: Counter[int | None] = Counter()
    for row in listed:  # newest first
        attempt = row["artifact"].attempt_id
        if row["state"] == Artifact.State.MISSING and kept and newer[attempt] >= kept:
            row |= {"state": "replaced", "kept": kept}
        newer[attempt] += row["artifact"].state != Artifact.State.DELETED


def _elsewhere(artifact: Artifact) -> bool:
    return artifact.attempt is not None and (artifact.attempt.cluster_id is not None or not artifact.attempt.out_dir)
