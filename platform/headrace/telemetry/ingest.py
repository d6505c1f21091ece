"""Events come in here, each stored exactly once. Called by the REST route that drivers and `ship` post to.

One transaction: lock the attempt's row, compare seq with its mark, store what is new, derive, move the mark. The caller gets the
new mark and what the run's people ask of it. Telling the live pages happens after the commit and may fail without harm.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass

from django.conf import settings
from django.db import transaction
from django.db.models import Max, Sum
from django.utils import timezone

from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import RunState
from headrace.telemetry import codec, effects, notify, store
from headrace.telemetry.codec import Columns
from headrace.telemetry.derive import Derived, derive
from headrace.telemetry.frames import events_message
from headrace.telemetry.models import EventBatch
from headrace.telemetry.problems import Conflict, EventsGone, FencedOut, Gap, IngestProblem
from headrace.telemetry.signals import batch_stored
from workers.contract.events import Control, IngestReply
from workers.contract.failpoints import reached

log = logging.getLogger(__name__)

DEFAULT_NAMES_QUOTA = 2000


@dataclass(frozen=True, slots=True)
class _Ready:
    """What storing a stretch needs, worked out before the database is locked."""

    columns: Columns
    body: bytes
    sha256: str
    found: Derived


def ingest(attempt_public_id: str, fence: int, columns: Columns, *, replay: bool = False) -> IngestReply:
    """Store the new part of a batch. `replay`: a spool sent after its attempt was superseded; it adds history and asks for nothing.

    Raises Gap, Conflict, FencedOut, QuotaExceeded and other IngestProblems; then nothing of the batch is stored, but that its sender
    lives is noted all the same: a driver whose batches are refused is not lost.
    """
    ready = None
    with suppress(IngestProblem):  # raised again inside, after the questions of fence and order
        ready = _prepare(columns)
    try:
        with transaction.atomic():
            attempt = Attempt.unscoped.select_for_update(of=("self",)).select_related("run").get(public_id=attempt_public_id)
            _check_fence(attempt, fence, replay)
            was_over = attempt.is_over
            new = _new_part(attempt, columns)
            changed = []
            if not replay:  # a spool that is read back says nothing about its driver
                attempt.heartbeat_at = timezone.now()
                changed.append("heartbeat_at")
            if new is not None:
                stored = ready if ready is not None and new is columns else _prepare(new)
                _store(attempt, stored)
                changed.append("ingested_through")
                if not replay:
                    transaction.on_commit(lambda: _tell(attempt, stored))
            attempt.save(update_fields=changed)
            reached("ingest.stored")
            # effects may have moved the run on: its control is read afterwards
            attempt.run.refresh_from_db(fields=["control", "state"])
            return IngestReply(ingested_through=attempt.ingested_through, control=_control(attempt, was_over and not replay))
    except FencedOut:
        raise
    except IngestProblem:
        if not replay:
            Attempt.unscoped.filter(public_id=attempt_public_id).update(heartbeat_at=timezone.now())
        raise


def heard(attempt: Attempt, *, replay: bool = False) -> IngestReply:
    """A driver with nothing to send asks what is wanted of it. Called by the mark's route; counts as a heartbeat.

    One that is over or superseded is told to stop. `replay`: the spool is shipped, its driver may be long gone.
    """
    if replay:
        return IngestReply(ingested_through=attempt.ingested_through, control=_control(attempt, False))
    superseded = Attempt.unscoped.filter(run_id=attempt.run_id, fence__gt=attempt.fence).exists()
    if not superseded and not attempt.is_over:
        Attempt.unscoped.filter(pk=attempt.pk).update(heartbeat_at=timezone.now())
    return IngestReply(ingested_through=attempt.ingested_through, control=_control(attempt, superseded or attempt.is_over))


def rebuild(attempt: Attempt) -> int:
    """Derive everything of this attempt again from its events. Returns the number of batches read.

    Raises EventsGone where retention has taken events: clearing first would lose what they once said.
    """
    with transaction.atomic():
        attempt = Attempt.unscoped.select_for_update(of=("self",)).get(pk=attempt.pk)
        held = EventBatch.unscoped.filter(attempt=attempt).aggregate(count=Sum("count"))["count"] or 0
        if held < attempt.ingested_through:
            raise EventsGone(
                f"{attempt.ingested_through - held} of {attempt.ingested_through} events are no longer kept",
                field="run",
                value=attempt.run.public_id,
                cure="leave it as it is: what was derived cannot be derived again",
            )
        store.clear(attempt)
        batches = 0
        stored = EventBatch.unscoped.filter(attempt=attempt).order_by("first_seq")
        for batch in stored.iterator(chunk_size=16):
            columns = codec.unpack(batch.body, batch.first_seq, batch.codec)
            store.apply(attempt, derive(columns), batch.last_seq, names_quota=None)
            batches += 1
        return batches


def _check_fence(attempt: Attempt, fence: int, replay: bool) -> None:
    """Raises FencedOut for a writer that must stop: another attempt's fence, or a newer attempt exists."""
    current = Attempt.unscoped.filter(run_id=attempt.run_id).aggregate(value=Max("fence"))["value"]
    if fence != attempt.fence or (attempt.fence < current and not replay):
        raise FencedOut(fence, current)


def _new_part(attempt: Attempt, columns: Columns) -> Columns | None:
    """The events beyond the mark, after those up to it have been compared with what is stored."""
    mark = attempt.ingested_through
    if columns.first_seq > mark + 1:
        raise Gap(mark + 1, columns.first_seq)
    if columns.first_seq <= mark:
        _compare_overlap(attempt, columns, min(mark, columns.last_seq))
    if columns.last_seq <= mark:
        return None
    return columns if columns.first_seq == mark + 1 else columns.between(mark + 1, columns.last_seq)


def _compare_overlap(attempt: Attempt, columns: Columns, last: int) -> None:
    first = columns.first_seq
    overlapping = EventBatch.unscoped.filter(attempt=attempt, first_seq__lte=last, last_seq__gte=first).order_by("first_seq")
    for batch in overlapping.iterator(chunk_size=16):
        lo, hi = max(first, batch.first_seq), min(last, batch.last_seq)
        came = columns.between(lo, hi)
        if lo == batch.first_seq and hi == batch.last_seq and codec.digest(came) == batch.sha256:
            continue
        stored = codec.unpack(batch.body, batch.first_seq, batch.codec).between(lo, hi)
        for mine, theirs in zip(stored.events(), came.events(), strict=True):
            if codec.canonical_event(mine) != codec.canonical_event(theirs):
                raise Conflict(mine.seq)


def _prepare(new: Columns) -> _Ready:
    body, sha256 = codec.pack(new)
    return _Ready(new, body, sha256, derive(new))


def _store(attempt: Attempt, ready: _Ready) -> None:
    new = ready.columns
    EventBatch.unscoped.create(
        attempt=attempt,
        first_seq=new.first_seq,
        last_seq=new.last_seq,
        t0=new.t[0],
        t1=new.t[-1],
        count=len(new),
        codec=codec.CODEC,
        body=ready.body,
        sha256=ready.sha256,
    )
    quota = getattr(settings, "HEADRACE_MAX_SERIES_NAMES", DEFAULT_NAMES_QUOTA)
    store.apply(attempt, ready.found, new.last_seq, names_quota=quota)
    attempt.ingested_through = new.last_seq
    effects.apply(attempt, new, ready.found)
    notify.on_commit(attempt.run.public_id, events_message(attempt.number, new))


def _tell(attempt: Attempt, stored: _Ready) -> None:
    """After the commit: whoever listens, and none of them may fail an ingest."""
    given = {"attempt": attempt, "points": stored.found.points, "last_t": stored.columns.t[-1]}
    for receiver, answer in batch_stored.send_robust(sender=Attempt, **given):
        if isinstance(answer, Exception):
            log.warning("a listener of stored events failed: %r: %s", receiver, answer)


def _control(attempt: Attempt, must_stop: bool) -> Control:
    """What the driver is asked. `must_stop`: the server has given this attempt up; an upload runs elsewhere and is asked nothing."""
    control = Control.model_validate(attempt.run.control or {})
    if attempt.run.source == Run.Source.UPLOAD:
        return control
    if must_stop or attempt.run.state == RunState.STOPPING:
        return control.model_copy(update={"cancel": True})
    return control
