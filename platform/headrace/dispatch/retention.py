"""What is kept how long, and what takes the rest away: a team's policy on runs that are over, and runs that were deleted.

The reconciler calls `go_on` every pass; once a day that begins a round, in pieces of at most BUDGET_S, so that a cancel never waits for it.
Series stay whatever the policy says: events are dropped, what was derived of them is not.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.db.models import Count, F, Q, QuerySet, Sum, Value
from django.db.models.functions import Coalesce, Length

from headrace.artifacts.models import ACTIVE as JOBS
from headrace.artifacts.services import mark_deleted
from headrace.dispatch import remains
from headrace.dispatch.models import RetentionPolicy
from headrace.experiments.models import Artifact, Run
from headrace.experiments.states import RunState
from headrace.teams import audit
from headrace.teams.models import Team
from headrace.telemetry.models import EventBatch, LogChunk, Sample, Series, SeriesChunk

log = logging.getLogger(__name__)

EVERY = timedelta(days=1)
BUDGET_S = 2.0
BATCH = 200
DELETED_GRACE = timedelta(days=3)
LONGEST_DAYS = 3650
# A driver's spool may arrive for seven days after the end, so events are compared with what is stored until then.
LEAST_DAYS = {"events": 8, "samples": 1, "logs": 1, "checkpoints": 1}
KINDS = tuple(LEAST_DAYS)
ROW_BYTES = 200  # of a sample's numbers and short words, beside its texts

_TEXTS = ("prompt", "completion", "answer_expected", "answer_given")
SIZES: dict[Any, Any] = {
    EventBatch: Length("body"),
    LogChunk: Length("body"),
    SeriesChunk: Length("body"),
    Sample: sum((Length(F(name)) for name in _TEXTS), Value(ROW_BYTES)),
}
TABLES: dict[str, Any] = {"events": EventBatch, "samples": Sample, "logs": LogChunk}

_begun: datetime | None = None
_work: Iterator[int] | None = None


@dataclass(frozen=True)
class Due:
    """What a policy takes away of one kind, were it enforced now. Bytes of samples are an estimate."""

    kind: str
    runs: int
    items: int
    bytes: int


@dataclass(frozen=True)
class Plan:
    """A dry run: nothing is changed by making one."""

    due: tuple[Due, ...]
    runs: int

    @property
    def bytes(self) -> int:
        return sum(item.bytes for item in self.due)


def days_of(policy: RetentionPolicy | None) -> dict[str, int | None]:
    """Days by kind; None: for ever."""
    return {kind: getattr(policy, f"{kind}_days") if policy else None for kind in KINDS}


def plan(team: Team, days: dict[str, int | None], now: datetime) -> Plan:
    """What these days would take away."""
    due: list[Due] = []
    touched: set[int] = set()
    for kind in KINDS:
        number = days.get(kind)
        if number is None:
            continue
        rows = _rows(kind, _due_runs(team, number, now))
        path = "run_id" if kind == "checkpoints" else "attempt__run_id"
        size = Sum("bytes") if kind == "checkpoints" else Sum(SIZES[TABLES[kind]])
        told = rows.aggregate(items=Count("pk"), runs=Count(path, distinct=True), bytes=Coalesce(size, Value(0)))
        if told["items"]:
            due.append(Due(kind, told["runs"], told["items"], told["bytes"]))
            touched.update(rows.order_by().values_list(path, flat=True).distinct())
    return Plan(tuple(due), len(touched))


def go_on(now: datetime) -> bool:
    """Called every pass of the reconciler. True: a round is under way and not finished."""
    global _begun, _work
    if _work is None:
        if _begun is not None and now - _begun < EVERY:
            return False
        _begun, _work = now, steps(now)
    until = time.monotonic() + BUDGET_S
    try:
        for _ in _work:
            if time.monotonic() > until:
                return True
    except Exception:  # tomorrow again: a chore must not end the pass
        log.exception("the round of retention failed")
    _work = None
    return False


def steps(now: datetime) -> Iterator[int]:
    """One round in small pieces, each of them whole when it is yielded: stopping between two loses nothing."""
    for policy in RetentionPolicy.unscoped.select_related("team"):
        freed: Counter[str] = Counter()
        for kind, number in days_of(policy).items():
            if number is None:
                continue
            # Not below the least, whatever a row says: somebody may have written it past the service.
            number = max(number, LEAST_DAYS[kind])
            for gone in _enforce(policy.team, kind, number, now):
                freed[kind] += gone
                yield gone
        if freed.total():
            audit.record("retention.enforce", actor="retention", team=policy.team, detail=dict(freed))
    yield from purge_deleted(now)


def purge_deleted(now: datetime) -> Iterator[int]:
    """Removes runs that were deleted longer ago than the grace, files first: what fails half-way is found again by its row."""
    for pk in list(Run.unscoped.filter(deleted_at__lt=now - DELETED_GRACE).values_list("pk", flat=True)):
        run = Run.unscoped.select_related("team").filter(pk=pk).first()
        if run is None or not run.is_over or run.deleted_at is None or not remains.gone(run.public_id):
            continue
        if Run.unscoped.filter(forked_from__run=pk, state__in=RunState.active()).exists():
            continue  # one that was forked from it may have yet to read its weights
        for model in (SeriesChunk, Series, Sample, LogChunk, EventBatch):
            yield from _in_batches(model.unscoped.filter(attempt__run_id=pk), model)  # type: ignore[attr-defined]
        remove_folder(settings.RUNS_DIR / run.public_id)
        with transaction.atomic():
            audit.record("run.purge", actor="retention", team=run.team, obj=run, detail={"name": run.name})
            run.delete()
        yield 1


def run_folder(run: Run) -> Path:
    """Where every attempt of a run writes on this machine."""
    folder: Path = settings.RUNS_DIR / run.public_id
    return folder


def remove_folder(folder: Path) -> bool:
    """Removes a folder that lies truly inside the runs' folder. Links are not followed. False: it was not there."""
    root = settings.RUNS_DIR.resolve()
    if folder.is_symlink() or not folder.is_dir():
        return False
    real = folder.resolve()
    if root not in real.parents:
        log.error("retention: %s is not inside the runs' folder and stays", folder.name)
        return False
    shutil.rmtree(real)
    return True


def _due_runs(team: Team, days: int, now: datetime) -> QuerySet[Run]:
    """Runs that ended so long ago and that nobody keeps. Never an active one: only an end sets these states."""
    over = Run.objects.for_team(team).filter(state__in=RunState.over(), keep=False, deleted_at=None)
    return over.filter(state_since__lt=now - timedelta(days=days))


def _rows(kind: str, runs: QuerySet[Run]) -> QuerySet[Any]:
    if kind != "checkpoints":
        found: QuerySet[Any] = TABLES[kind].unscoped.filter(attempt__run__in=runs)
        return found
    active = RunState.active()
    needed = Q(resumed_attempts__run__state__in=active) | Q(forks__state__in=active)
    needed |= Q(probes__state__in=JOBS) | Q(export__state__in=JOBS)
    rows = Artifact.unscoped.filter(run__in=runs, kind=Artifact.Kind.CHECKPOINT, state=Artifact.State.COMPLETE)
    return rows.exclude(pk__in=Artifact.unscoped.filter(needed).values("pk"))


def _enforce(team: Team, kind: str, days: int, now: datetime) -> Iterator[int]:
    runs = _due_runs(team, days, now)
    if kind != "checkpoints":
        yield from _in_batches(_rows(kind, runs), TABLES[kind])
        return
    for pk, run_pk in list(_rows(kind, runs).values_list("pk", "run_id")):
        with transaction.atomic():
            Run.unscoped.select_for_update(of=("self",)).get(pk=run_pk)  # a resume of it waits, or has been seen
            locked = Artifact.unscoped.select_for_update(of=("self",)).filter(pk=pk).select_related("run", "attempt").first()
            # Asked again: a round takes many passes, and in the meantime somebody may have kept, resumed or forked the run
            if locked is None or not _rows(kind, _due_runs(team, days, now)).filter(pk=pk).exists():
                continue
            mark_deleted(locked)  # the rows first: nothing resumes from a folder that is going
        yield 1


def _in_batches(rows: QuerySet[Any], model: Any) -> Iterator[int]:
    """The query is asked again for every batch: a run that is kept or resumed in the meantime is left alone from then on."""
    while True:
        with transaction.atomic():
            pks = list(rows.order_by("pk").values_list("pk", flat=True)[:BATCH])
            if pks:
                model.unscoped.filter(pk__in=pks).delete()
        if not pks:
            return
        yield len(pks)
