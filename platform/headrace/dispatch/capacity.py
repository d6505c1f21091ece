"""What a cluster has, what a run asks of it, and what a device-hour costs there."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
from django.conf import settings

from headrace.dispatch.models import Cluster
from headrace.dispatch.scheduler import Ask, Capacity
from headrace.environment import LOOPBACK
from headrace.experiments.models import Run
from headrace.schema_form import lookup
from headrace.teams.models import Team

HERE = 0  # the key of the cluster that settings name, where an attempt's `cluster` is null
NAME_HERE = "this server's cluster"
# Where a config says what is asked; the same paths are read from rows without loading the whole config.
ASKING = ("rollout.engines", "backend.ranks", "transport.kind")


@dataclass(frozen=True)
class Price:
    """What one device costs for an hour."""

    per_device_hour: Decimal
    currency: str


def asked(config: Mapping[str, Any]) -> Ask:
    """What a run of this config holds: a core for every engine and every trainer rank; a GPU where the transport maps its memory.

    Memory is not known before a run, so none is asked for. A config of an older schema counts what it names.
    """
    return ask_of(*(lookup(config, path) for path in ASKING))


def ask_of(engines: Any, ranks: Any, transport: Any) -> Ask:
    """`asked`, from the three values themselves."""
    devices = _count(engines) + _count(ranks)
    return Ask(cpus=float(devices), gpus=1.0 if transport == "cuda_ipc" else 0.0, devices=devices)


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 1


def cluster_here() -> Cluster:
    """The row of the cluster that settings name; one that is not stored yet where nobody has set anything."""
    row = Cluster.unscoped.filter(team=None, name=NAME_HERE).first()
    return row or Cluster(name=NAME_HERE, address=settings.RAY_ADDRESS, is_default=True)


def cluster_of(team: Team) -> Cluster:
    """Where a team's runs go: its own default cluster, else the server's."""
    return Cluster.objects.for_team(team).filter(is_default=True).order_by("pk").first() or cluster_here()


def cluster_key(team: Team) -> int:
    """The scheduler's key of `cluster_of`."""
    own = Cluster.objects.for_team(team).filter(is_default=True).order_by("pk").first()
    return HERE if own is None else own.pk


def is_this_machine(address: str) -> bool:
    return urlsplit(address).hostname in LOOPBACK


def capacities() -> dict[int, Capacity]:
    """Of every cluster, by the key that the scheduler uses."""
    known = {row.pk: of_row(row, local=False) for row in Cluster.unscoped.exclude(team=None, name=NAME_HERE)}
    return {**known, HERE: of_row(cluster_here(), local=True)}


def of_row(row: Cluster, *, local: bool) -> Capacity:
    """What the row says; what it does not say is looked up on this machine, or is what Ray last told of another one."""
    said = row.capacity if isinstance(row.capacity, dict) else {}
    found = machine() if local and is_this_machine(settings.RAY_ADDRESS) else row.found if isinstance(row.found, dict) else {}
    given = {name: said.get(name, found.get(name)) for name in ("cpus", "gpus", "memory_bytes")}
    numbers = {
        name: float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None for name, value in given.items()
    }
    return Capacity(**numbers, most_runs=settings.MAX_RUNS if local else None)


@lru_cache(maxsize=1)
def machine() -> dict[str, float]:
    """This machine's cores that the server may use, NVIDIA GPUs and memory. Looked up once a process."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cards = Path("/proc/driver/nvidia/gpus")
    gpus = len(list(cards.iterdir())) if cards.is_dir() else 0
    return {"cpus": float(cores), "gpus": float(gpus), "memory_bytes": float(psutil.virtual_memory().total)}


def price_of(run: Run) -> Price | None:
    """What a device-hour of this run costs; None: nobody has said. Called by the pages that turn device-seconds into money."""
    cluster = Cluster.unscoped.filter(attempts__run=run).order_by("-attempts__number").first() or cluster_here()
    if cluster.price_per_device_hour is None:
        return None
    return Price(cluster.price_per_device_hour, cluster.currency)
