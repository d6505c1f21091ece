"""Writes of the queue: a run's priority, a team's quota, a cluster's price. Called by the queue page and the API."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation
from typing import Any

from django.db import transaction

from headrace.dispatch.capacity import cluster_of
from headrace.dispatch.models import Cluster, TeamQuota
from headrace.experiments.admission import check_priority
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.experiments.states import RunState
from headrace.teams import audit
from headrace.teams.models import Team, User
from headrace.teams.policy import can, role_in
from headrace.teams.services import NotAllowed, require

MOST = 100_000
MOST_HOURS = Decimal(10_000_000)
HIGHEST_PRICE = Decimal(1_000_000)


def set_priority(run: Run, user: User, priority: int) -> Run:
    """Move a run up or down its team's queue. Once it is launched there is nothing to move."""
    require(user, "queue.edit", run)
    wanted = check_priority(run.team, user, priority)
    with transaction.atomic():
        locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
        if locked.state != RunState.QUEUED:
            raise WrongState(f"a run that is {locked.state} is not in the queue", field="state", value=locked.state, cure="nothing to move")
        before, locked.priority = locked.priority, wanted
        locked.save(update_fields=["priority"])
        audit.record("queue.priority", user=user, team=locked.team, obj=locked, detail={"from": before, "to": wanted})
    run.priority = wanted
    return run


@transaction.atomic
def set_quota(team: Team, user: User, *, most_running: Any, most_queued: Any, device_hours_month: Any) -> TeamQuota:
    """What the team may have under way; None or "": no bound. Raises BadInput at the field."""
    require(user, "quota.edit", team)
    values = {
        "most_running": _whole("most_running", most_running),
        "most_queued": _whole("most_queued", most_queued),
        "device_hours_month": _decimal("device_hours_month", device_hours_month, MOST_HOURS, 2),
    }
    row, _ = TeamQuota.objects.for_team(team).update_or_create(team=team, defaults=values)
    audit.record("quota.edit", user=user, team=team, obj=team, detail={name: _told(value) for name, value in values.items()})
    return row


def may_price(user: User, team: Team, cluster: Cluster) -> bool:
    """A team's own cluster: its owners. The server's, which every team uses: staff who are members here."""
    if cluster.team_id is not None:
        return can(user, "cluster.edit", cluster)
    return bool(user.is_staff and role_in(user, team) is not None)


@transaction.atomic
def set_price(team: Team, user: User, *, price: Any, currency: str) -> Cluster:
    """What a device-hour costs on the cluster of this team; None or "": not known."""
    cluster = cluster_of(team)
    if not may_price(user, team, cluster):
        raise NotAllowed("your role does not allow this", field="user", value="cluster.edit", cure="ask an owner or an administrator")
    code = str(currency).strip().upper()
    if len(code) != 3 or not code.isascii() or not code.isalpha():
        raise BadInput("is not a currency", field="currency", value=currency, cure="give three letters, for example EUR")
    cluster.price_per_device_hour = _decimal("price_per_device_hour", price, HIGHEST_PRICE, 4)
    cluster.currency = code
    cluster.save()
    audit.record(
        "cluster.price", user=user, team=team, obj=cluster, detail={"price": _told(cluster.price_per_device_hour), "currency": code}
    )
    return cluster


def _whole(field: str, value: Any) -> int | None:
    text = str(value).strip() if value is not None else ""
    if not text:
        return None
    if not text.isascii() or not text.isdigit() or len(text) > 6 or int(text) > MOST:
        raise BadInput("is not a whole number", field=field, value=value, cure=f"give 0 to {MOST}, or nothing for no bound")
    return int(text)


def _decimal(field: str, value: Any, most: Decimal, places: int) -> Decimal | None:
    text = str(value).strip() if value is not None else ""
    if not text:
        return None
    try:
        found = Decimal(text) if len(text) <= 20 else None
    except InvalidOperation:
        found = None
    if found is None or not found.is_finite() or not 0 <= found <= most:
        raise BadInput("is not an amount", field=field, value=value, cure=f"give 0 to {most}, or nothing")
    return found.quantize(Decimal(1).scaleb(-places))


def _told(value: Any) -> Any:
    return str(value) if isinstance(value, Decimal) else value
