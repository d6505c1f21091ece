"""Which queued runs are launched now: a pure function of what waits, what runs, what there is, and what each team may have.

The order: between teams, the one with the fewest devices, then the one whose last launch is longest ago, so that no team's backlog
keeps another one out. Within a team, the highest priority, which grows with waiting, so that nothing waits for ever. A run that does
not fit lets smaller ones by; once it has waited for PATIENCE_S it holds its place, and what comes after it waits as well. A run that
is held back by its team's quota holds up nobody. The same input always gives the same answer.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

# A run gains a point of priority for so many seconds of waiting: ten points, "high", in an hour.
AGEING_S = 360.0
PATIENCE_S = 600.0
RESOURCES = ("cpus", "gpus", "memory_bytes")
_WORDS = {"cpus": "CPU", "gpus": "GPU", "memory_bytes": "bytes of memory"}


@dataclass(frozen=True)
class Ask:
    """What a run holds while it runs. `devices` is what the team pays for: engines and trainer ranks."""

    cpus: float = 0.0
    gpus: float = 0.0
    memory_bytes: float = 0.0
    devices: int = 1

    def within(self, capacity: Capacity) -> Ask:
        """The same, at most the whole cluster: a run made for a larger one takes it all and shares it out among its parts."""
        held = {name: getattr(self, name) for name in RESOURCES}
        limits = {name: getattr(capacity, name) for name in RESOURCES}
        return replace(self, **{name: min(held[name], limit) for name, limit in limits.items() if limit is not None})


@dataclass(frozen=True)
class Capacity:
    """What a cluster has; None: not known, and no bound. `most_runs`: at most so many runs at once, whatever they ask."""

    cpus: float | None = None
    gpus: float | None = None
    memory_bytes: float | None = None
    most_runs: int | None = None


@dataclass(frozen=True)
class Quota:
    """What a team may have under way. None: no bound. `hours_left`: device-hours of this month."""

    most_running: int | None = None
    hours_left: float | None = None
    hours: float | None = None


@dataclass(frozen=True)
class Waiting:
    """A queued run. `key` orders what is equal otherwise; `waited_s` counts from its entry into the queue."""

    key: int
    team: int
    priority: int
    waited_s: float
    ask: Ask
    cluster: int = 0


@dataclass(frozen=True)
class Running:
    """A run that holds resources: launching, running, paused or stopping."""

    team: int
    ask: Ask
    cluster: int = 0


@dataclass(frozen=True)
class Decision:
    """What becomes of one queued run now. `position` counts from 1 in the order of launches to come; `why` is "" for a launch."""

    key: int
    launch: bool
    position: int
    why: str = ""
    held_by_quota: bool = False


@dataclass
class _Books:
    """What is used while the decisions are made."""

    used: dict[int, dict[str, float]] = field(default_factory=dict)
    runs: dict[int, int] = field(default_factory=dict)
    running: dict[int, int] = field(default_factory=dict)
    share: dict[int, float] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)  # clusters that a run which has waited long enough keeps for itself

    def take(self, team: int, cluster: int, ask: Ask) -> None:
        books = self.used.setdefault(cluster, dict.fromkeys(RESOURCES, 0.0))
        for name in RESOURCES:
            books[name] += getattr(ask, name)
        self.runs[cluster] = self.runs.get(cluster, 0) + 1
        self.running[team] = self.running.get(team, 0) + 1


def schedule(
    waiting: Iterable[Waiting],
    running: Iterable[Running],
    capacities: Mapping[int, Capacity],
    quotas: Mapping[int, Quota],
    launched_ago_s: Mapping[int, float] | None = None,
) -> list[Decision]:
    """A decision for every queued run, in the order in which they will be launched.

    `capacities` by cluster, `quotas` by team; what is absent has no bound. `launched_ago_s`: seconds since each team's last launch.
    """
    books = _Books()
    for one in running:
        books.take(one.team, one.cluster, one.ask.within(capacities.get(one.cluster, Capacity())))
        books.share[one.team] = books.share.get(one.team, 0.0) + one.ask.devices
    queues = _queues(waiting)
    recency = {team: -(launched_ago_s or {}).get(team, float("inf")) for team in queues}
    turn = 0.0
    decisions: list[Decision] = []
    while queues:
        team = min(queues, key=lambda name: (books.share.get(name, 0.0), recency[name], -queues[name][0].waited_s, queues[name][0].key))
        item = queues[team].pop(0)
        if not queues[team]:
            del queues[team]
        decision = _decide(item, len(decisions) + 1, books, capacities.get(item.cluster, Capacity()), quotas.get(team, Quota()))
        decisions.append(decision)
        if not decision.held_by_quota:
            # Launched or next in line: its team has had its turn, and the others come first now
            turn += 1.0
            books.share[team] = books.share.get(team, 0.0) + item.ask.devices
            recency[team] = turn
    return decisions


def standing(item: Waiting) -> float:
    """The priority with what waiting has added."""
    return item.priority + item.waited_s / AGEING_S


def _queues(waiting: Iterable[Waiting]) -> dict[int, list[Waiting]]:
    queues: dict[int, list[Waiting]] = {}
    for item in sorted(waiting, key=lambda item: (-standing(item), item.key)):
        queues.setdefault(item.team, []).append(item)
    return queues


def _decide(item: Waiting, position: int, books: _Books, capacity: Capacity, quota: Quota) -> Decision:
    held = _over_quota(item, books, quota)
    if held:
        return Decision(item.key, False, position, held, held_by_quota=True)
    if item.cluster in books.held:
        return Decision(item.key, False, position, "waiting behind a run that has waited longer and needs more")
    short = _short_of(item.ask.within(capacity), books, item.cluster, capacity)
    if short:
        if item.waited_s >= PATIENCE_S:
            books.held.add(item.cluster)
        return Decision(item.key, False, position, short)
    books.take(item.team, item.cluster, item.ask.within(capacity))
    return Decision(item.key, True, position)


def _over_quota(item: Waiting, books: _Books, quota: Quota) -> str:
    if quota.hours_left is not None and quota.hours_left <= 0:
        return f"the team's {quota.hours or 0:g} device-hours of this month are used up"
    if quota.most_running is not None and books.running.get(item.team, 0) >= quota.most_running:
        return f"the team's quota: {quota.most_running} running at once"
    return ""


def _short_of(ask: Ask, books: _Books, cluster: int, capacity: Capacity) -> str:
    """What the run waits for, in words; "" if it fits."""
    if capacity.most_runs is not None and books.runs.get(cluster, 0) >= capacity.most_runs:
        return f"waiting for a place: at most {_number(capacity.most_runs, 'run')} at once here"
    used = books.used.get(cluster, {})
    for name in RESOURCES:
        wanted, there = getattr(ask, name), getattr(capacity, name)
        if there is None or not wanted:
            continue
        free = max(0.0, there - used.get(name, 0.0))
        if wanted > free + 1e-9:
            return f"waiting for {_number(wanted, _WORDS[name])}: {free:g} of {there:g} free"
    return ""


def _number(value: float, word: str) -> str:
    return f"{value:g} {word}" + ("s" if value != 1 and not word.endswith("y") else "")


def launches(decisions: Sequence[Decision]) -> list[int]:
    """The keys of the runs that may start now, in order."""
    return [decision.key for decision in decisions if decision.launch]
