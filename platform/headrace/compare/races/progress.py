"""What a race does next: a pure decision, and the step that carries it out.

`advance` is called by the reconciler every pass. All it knows is in the database, so it may stop anywhere and go on in another process:
a run is started in the transaction that notes it in its entry, under a key made of race, entry and try.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from django.db import DatabaseError, transaction
from django.db.models import Case, When

from headrace.compare.races import plan
from headrace.compare.races.models import Race, RaceEntry
from headrace.compare.races.resources import fitting
from headrace.experiments import services as runs
from headrace.experiments.models import Config, Run
from headrace.experiments.states import RunState
from headrace.teams import audit
from headrace.teams.policy import can
from workers.contract.errors import HeadraceError

log = logging.getLogger(__name__)

MOST_RACES = 50  # looked at in one pass, the oldest first
MOST_STARTS = 4  # of one race in one pass: a pass stays short
LATER = timedelta(seconds=30)
AGAIN = frozenset({RunState.FAILED, RunState.LOST})
ACTOR = "race"


@dataclass(frozen=True)
class Slot:
    """An entry as the decision sees it. state: of its run; empty: it has none."""

    place: int
    state: str = ""
    retries_left: int = 0

    @property
    def active(self) -> bool:
        return bool(self.state) and self.state not in RunState.over()

    def wants_run(self) -> bool:
        return not self.state or (self.state in AGAIN and self.retries_left > 0)


@dataclass(frozen=True)
class Step:
    """start: places in order; cancel: places whose runs are to stop; close: nothing is left to do."""

    start: list[int] = field(default_factory=list)
    cancel: list[int] = field(default_factory=list)
    close: bool = False

    def __bool__(self) -> bool:
        return bool(self.start or self.cancel or self.close)


def decide(asked: str, slots: Sequence[Slot], at_once: int) -> Step:
    """The next step. Never more than `at_once` under way; entries are begun in their order, failed ones again before new ones."""
    active = [slot for slot in slots if slot.active]
    if asked == Race.Asked.CANCEL:
        return Step(cancel=[slot.place for slot in active if slot.state != RunState.STOPPING], close=not active)
    waiting = sorted((slot for slot in slots if slot.wants_run()), key=lambda slot: (not slot.state, slot.place))
    if not waiting and not active:
        return Step(close=True)
    if asked == Race.Asked.PAUSE:
        return Step()
    room = max(0, at_once - len(active))
    return Step(start=[slot.place for slot in waiting[:room]])


def advance(now: datetime) -> int:
    """One pass over the open races. Returns how many runs were started. One race's trouble is that race's alone."""
    held_last = Case(When(asked=Race.Asked.PAUSE, then=1), default=0)  # held races must not keep those behind them from their turn
    open_races = Race.unscoped.filter(closed_at=None).exclude(try_again_at__gt=now).order_by(held_last, "pk").values_list("pk", flat=True)
    started = 0
    for pk in list(open_races[:MOST_RACES]):
        try:
            started += _advance_one(pk, now)
        except DatabaseError:
            raise  # no race's own trouble: the reconciler begins its next pass with a new connection
        except Exception:
            log.exception("race %s could not go on; it is tried again in %d s", pk, LATER.total_seconds())
            Race.unscoped.filter(pk=pk).update(try_again_at=now + LATER)
    return started


def slots_of(entries: Sequence[RaceEntry]) -> list[Slot]:
    return [Slot(entry.place, entry.run.state if entry.run else "", entry.retries_left) for entry in entries]


def _advance_one(pk: int, now: datetime) -> int:
    """Reads first and locks only where something is to be done: a race that waits for its runs writes nothing."""
    race = Race.unscoped.select_related("team", "created_by", "project").get(pk=pk)
    if not _next(race):
        return 0
    with transaction.atomic():
        race = Race.unscoped.select_for_update(of=("self",)).select_related("team", "created_by", "project").get(pk=pk)
        if race.closed_at is not None:
            return 0
        step = _next(race)
        by_place = {entry.place: entry for entry in _entries(race)}
        for place in step.cancel:
            run = by_place[place].run
            if run is not None:
                runs.cancel_run(run, None)
        if step.close:
            race.closed_at, race.problem = now, None
            race.save(update_fields=["closed_at", "problem"])
            audit.record("race.close", actor=ACTOR, team=race.team, obj=race)
            return 0
        return _start(race, [by_place[place] for place in step.start[:MOST_STARTS]], now)


def _next(race: Race) -> Step:
    spec = plan.read(race.spec)
    return decide(race.asked, slots_of(_entries(race)), fitting(race.team, spec))


def _entries(race: Race) -> list[RaceEntry]:
    return list(RaceEntry.unscoped.filter(race=race).select_related("run").order_by("place"))


def _start(race: Race, entries: Sequence[RaceEntry], now: datetime) -> int:
    """A finished run of the same config is taken where the race allows it, else a new one is queued. A refusal is noted on the race."""
    if race.created_by is not None and not can(race.created_by, "run.create", race.team):
        return _halt(race, {"message": "its maker may no longer start runs in this team", "cure": "a maintainer makes the race anew"})
    spec = plan.read(race.spec)
    started = 0
    for entry in entries:
        found = finished_run(race.team_id, entry.config_id) if spec.reuse and not entry.run_id else None
        if found is not None:
            entry.run, entry.reused = found, True
            entry.save(update_fields=["run", "reused"])
            continue
        try:
            with transaction.atomic():
                _launch(race, spec, entry)
        except HeadraceError as refusal:
            log.warning("race %s: entry %s was refused: %s", race.public_id, entry.place, refusal)
            race.problem, race.try_again_at = refusal.as_dict(), now + LATER
            race.save(update_fields=["problem", "try_again_at"])
            return started
        started += 1
    if race.problem is not None:
        race.problem = None
        race.save(update_fields=["problem"])
    return started


def _launch(race: Race, spec: plan.RaceSpec, entry: RaceEntry) -> None:
    contender = spec.contenders[entry.contender]
    again = entry.run_id is not None
    entry.launched += 1
    entry.retries_left -= 1 if again else 0
    entry.reused = False
    entry.run = runs.start_run(
        team=race.team,
        user=race.created_by,
        config=Config.unscoped.get(pk=entry.config_id),
        project=race.project,
        name=f"{race.name[:120]}: {contender.label}, seed {entry.seed}",
        idempotency_key=f"race-{race.public_id}-{entry.place}-{entry.launched}",
        group=race.public_id,
    )
    entry.save(update_fields=["run", "launched", "retries_left", "reused"])


def _halt(race: Race, problem: dict[str, str]) -> int:
    race.asked, race.problem = Race.Asked.PAUSE, problem
    race.save(update_fields=["asked", "problem"])
    return 0


def finished_run(team_id: int, config_id: int) -> Run | None:
    """The newest run of exactly this config that ended well at its first attempt on a cluster of ours; None: there is none."""
    found = Run.unscoped.filter(team_id=team_id, config_id=config_id, state=RunState.SUCCEEDED, deleted_at=None)
    return found.exclude(source=Run.Source.UPLOAD).exclude(attempts__number__gt=1).order_by("-created_at").first()
