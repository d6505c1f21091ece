"""What the admin's first page says of the server: a number and a link for each thing that an administrator looks after."""

from __future__ import annotations

from dataclasses import dataclass

from django import template
from django.db.models import Count
from django.utils import timezone

from headrace.compare.races.models import Race
from headrace.dispatch import storage
from headrace.dispatch.models import ReconcilerLease
from headrace.dispatch.templatetags.sizes import size
from headrace.experiments.models import Run
from headrace.experiments.states import RunState
from headrace.teams.models import Invitation, Team, User

register = template.Library()


@dataclass(frozen=True)
class Card:
    """`bad`: an administrator should look at it."""

    label: str
    value: str
    link: str
    note: str = ""
    bad: bool = False


@register.simple_tag
def admin_overview() -> dict[str, list[Card]]:
    """Counts over every team, with a fixed number of queries."""
    now = timezone.now()
    alive = Run.unscoped.filter(deleted_at=None)
    by_state = dict(alive.order_by().values_list("state").annotate(Count("pk")))
    queued = by_state.get(RunState.QUEUED, 0)
    busy = sum(by_state.get(state, 0) for state in RunState.active()) - queued
    failed = by_state.get(RunState.FAILED, 0) + by_state.get(RunState.LOST, 0)
    lease = ReconcilerLease.objects.first()
    awake = lease is not None and lease.expires_at is not None and lease.expires_at > now
    disk = storage.disk()
    still_open = Invitation.unscoped.filter(accepted_at=None, revoked_at=None, expires_at__gt=now).count()
    cards = [
        Card("Runs under way", str(busy), "/admin/experiments/run/?state__in=launching%2Crunning%2Cpaused%2Cstopping"),
        Card("Runs queued", str(queued), "/queue/"),
        Card("Runs failed or lost", str(failed), "/admin/experiments/run/?state__in=failed%2Clost"),
        Card("Races open", str(Race.unscoped.filter(closed_at=None).count()), "/races/"),
        Card("Teams", str(Team.objects.count()), "/admin/teams/team/"),
        Card(
            "People", str(User.objects.filter(is_active=True).count()), "/admin/teams/user/", f"{still_open} invited" if still_open else ""
        ),
        Card("Disk free", size(disk.free), "/team/storage/", f"of {size(disk.total)}", disk.tight),
        Card("Reconciler", "at work" if awake else "asleep", "/admin/dispatch/reconcilerlease/", "", not awake),
        Card("Health", "look", "/healthz/ready", "database, queue, Ray, disk"),
    ]
    return {"cards": cards}
