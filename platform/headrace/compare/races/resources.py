"""What the races find: how many entries fit side by side, and what a device-hour costs."""

from __future__ import annotations

from dataclasses import dataclass

from django.conf import settings

from headrace.compare.races.plan import RaceSpec
from headrace.dispatch.capacity import cluster_here, cluster_of, of_row
from headrace.teams.models import Team

MOST_AT_ONCE = 16


@dataclass(frozen=True)
class Money:
    """Price of one device for an hour, and in what currency."""

    per_hour: float
    currency: str


def money(team: Team) -> Money | None:
    """None: nobody has said what the team's cluster costs."""
    cluster = cluster_of(team)
    if cluster.price_per_device_hour is None:
        return None
    return Money(float(cluster.price_per_device_hour), cluster.currency)


def fitting(team: Team, spec: RaceSpec) -> int:
    """How many entries run side by side: as chosen, or as many as the cluster has cores for (an unknown one: one after another)."""
    if spec.at_once is not None:
        return spec.at_once
    cluster = cluster_of(team)
    here = cluster.pk is None or cluster.pk == cluster_here().pk
    capacity = of_row(cluster, local=here)
    if capacity.cpus is None:
        return 1
    fit = int(capacity.cpus // (spec.devices or 2))
    most = int(settings.MAX_RUNS) if here and settings.MAX_RUNS else MOST_AT_ONCE
    return max(1, min(MOST_AT_ONCE, most, fit))
