"""The append-only trail. Called by services for log-in, tokens, members, launches, cancels, deletions and settings."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from django.db import connection, transaction
from django.utils import timezone

from headrace.teams.models import AuditEvent, Team, User

_LOCK = 0x68720001  # any fixed number: the lock's name on PostgreSQL


def record(
    action: str,
    *,
    user: User | None = None,
    actor: str = "",
    team: Team | None = None,
    obj: Any = None,
    detail: dict[str, Any] | None = None,
) -> AuditEvent:
    """Append one line. `actor` names the part that acted where there is no user. Never put a secret into `detail`."""
    with transaction.atomic():
        _one_at_a_time()
        last = AuditEvent.unscoped.order_by("-pk").first()
        row = AuditEvent(
            team=team,
            user=user,
            actor=user.email if user else actor or "headrace",
            action=action,
            object_kind=type(obj).__name__.lower() if obj is not None else "",
            object_id=str(getattr(obj, "public_id", None) or getattr(obj, "pk", "")) if obj is not None else "",
            detail=detail or {},
            created_at=timezone.now(),
            previous_hash=last.row_hash if last else "",
        )
        row.row_hash = digest(row)
        row.save()
    return row


def digest(row: AuditEvent) -> str:
    """sha256 over the row's words and the hash before it. Team and user enter by their text, which outlives the rows."""
    words = [
        row.previous_hash,
        row.actor,
        row.action,
        row.object_kind,
        row.object_id,
        json.dumps(row.detail, sort_keys=True),
        row.created_at.isoformat(),
    ]
    return hashlib.sha256("\x1f".join(words).encode()).hexdigest()


def first_broken() -> AuditEvent | None:
    """The first row whose hash does not fit the row or its predecessor; None: the chain is whole."""
    previous = ""
    for row in AuditEvent.unscoped.order_by("pk").iterator():
        if row.previous_hash != previous or row.row_hash != digest(row):
            return row
        previous = row.row_hash
    return None


def _one_at_a_time() -> None:
    """SQLite's immediate transactions already are one at a time; PostgreSQL needs a lock that lasts until the commit."""
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("select pg_advisory_xact_lock(%s)", [_LOCK])
