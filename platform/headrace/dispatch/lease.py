"""The reconciler's lease: one holder at a time, by compare-and-set; a holder that was paused past its lease finds itself fenced."""

from __future__ import annotations

import os
import socket
import uuid
from datetime import timedelta

from django.db import transaction
from django.db.models import F, Q
from django.utils import timezone

from headrace.dispatch.models import ReconcilerLease

LEASE = timedelta(seconds=15)


class LeaseLost(RuntimeError):
    """Another reconciler holds the lease now; whatever was about to be written must not be."""


class Lease:
    """Held by one reconciler process. `fence` grows whenever the holder changes."""

    def __init__(self, name: str = "reconciler", length: timedelta = LEASE) -> None:
        self.name = name
        self.length = length
        self.holder = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:8]}"
        self.fence: int | None = None

    def acquire(self) -> bool:
        """Takes or renews the lease. False while somebody else holds it."""
        now = timezone.now()
        until = now + self.length
        ReconcilerLease.objects.get_or_create(name=self.name)
        rows = ReconcilerLease.objects.filter(name=self.name)
        if self.fence is not None:
            if rows.filter(holder=self.holder, fence=self.fence).update(expires_at=until):
                return True
            self.fence = None
        free = Q(expires_at__isnull=True) | Q(expires_at__lt=now) | Q(holder="")
        taken = rows.filter(free).update(holder=self.holder, fence=F("fence") + 1, acquired_at=now, expires_at=until)
        if taken:
            self.fence = rows.get().fence
        return bool(taken)

    def check(self) -> None:
        """Called inside the transaction of every write. Raises LeaseLost when another holder has taken over or time is up."""
        rows = ReconcilerLease.objects.select_for_update().filter(name=self.name, holder=self.holder, fence=self.fence or 0)
        if not rows.filter(expires_at__gt=timezone.now()).exists():
            raise LeaseLost(f"the lease {self.name!r} is not held by {self.holder} any more")

    def release(self) -> None:
        """Called at a clean stop, so that the next holder need not wait."""
        with transaction.atomic():
            ReconcilerLease.objects.filter(name=self.name, holder=self.holder).update(holder="", expires_at=None)
        self.fence = None
