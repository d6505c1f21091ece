"""What the reconciler does once a day: sessions that have ended are removed, artifacts whose folder is gone are marked so."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta
from pathlib import Path

from django.core.management import call_command

from headrace.dispatch import retention
from headrace.experiments.models import Artifact

log = logging.getLogger(__name__)

EVERY = timedelta(days=1)
_last: datetime | None = None


def daily(now: datetime) -> bool:
    """Called every pass; does its work at the first and then once a day. True: it did."""
    global _last
    retention.go_on(now)
    if _last is not None and now - _last < EVERY:
        return False
    _last = now
    try:
        call_command("clearsessions")
        gone = mark_missing()
    except Exception:  # tomorrow again: a chore must not end the pass
        log.exception("the daily chores failed")
        return False
    if gone:
        log.warning("%d artifacts are marked as missing: their folders are gone", gone)
    return True


def mark_missing() -> int:
    """Artifacts of this machine's attempts whose path is gone. Returns how many were marked.

    An attempt on a cluster of its own, and an upload, wrote on another machine's disk: nothing is known of those from here.
    """
    rows = Artifact.unscoped.filter(state=Artifact.State.COMPLETE, attempt__isnull=False, attempt__cluster=None)
    paths = rows.exclude(attempt__out_dir="").values_list("pk", "attempt__out_dir", "path")
    gone = [pk for pk, folder, path in paths.iterator(chunk_size=500) if not (Path(folder) / path).exists()]
    return Artifact.unscoped.filter(pk__in=gone).update(state=Artifact.State.MISSING) if gone else 0
