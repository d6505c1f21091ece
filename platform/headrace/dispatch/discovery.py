"""What clusters elsewhere have, asked of Ray once a minute. The one on this machine needs no asking: its cores are counted."""

from __future__ import annotations

import logging
from datetime import datetime, timedelta

from django.conf import settings

from headrace.dispatch.capacity import NAME_HERE, is_this_machine
from headrace.dispatch.models import Cluster
from headrace.dispatch.ray_jobs import RayJobs, RayUnreachable

log = logging.getLogger(__name__)

EVERY = timedelta(minutes=1)
PATIENCE_S = 4.0
_last: datetime | None = None


def refresh(now: datetime) -> bool:
    """Called every pass; asks at the first and then once a minute. True: it asked. A cluster that does not answer keeps what it had."""
    global _last
    if _last is not None and now - _last < EVERY:
        return False
    _last = now
    if not is_this_machine(settings.RAY_ADDRESS):
        Cluster.unscoped.get_or_create(team=None, name=NAME_HERE, defaults={"address": settings.RAY_ADDRESS, "is_default": True})
    for row in Cluster.unscoped.all():
        here = row.team_id is None and row.name == NAME_HERE
        address, token = (settings.RAY_ADDRESS, settings.RAY_TOKEN_FILE) if here else (row.address, row.token_file)
        if here and is_this_machine(address):
            continue
        try:
            found = RayJobs(address, token, PATIENCE_S).resources()
        except RayUnreachable as error:
            log.warning("cluster %s: %s", row.name, error)
            continue
        Cluster.unscoped.filter(pk=row.pk).update(found=found, address=address, last_seen_at=now)
    return True
