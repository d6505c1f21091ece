"""All writes that people cause: making a race, holding it, going on, cancelling, running a failed entry again."""

from __future__ import annotations

from typing import Any

from django.db import IntegrityError, transaction

from headrace.compare.races import plan, resources
from headrace.compare.races.models import Race, RaceEntry
from headrace.compare.races.progress import AGAIN
from headrace.experiments.models import Project
from headrace.experiments.problems import BadInput, WrongState
from headrace.experiments.services import create_config
from headrace.experiments.states import RunState
from headrace.experiments.text import clean_line
from headrace.teams import audit
from headrace.teams.models import Team, User
from headrace.teams.services import require


def create_race(*, team: Team, user: User, project: Project, name: str, spec: plan.RaceSpec, key: str) -> Race:
    """Store a race with a config for every entry; the reconciler starts them. The same key gives the race it made before.

    Raises NotAllowed, BadInput, and ConfigError whose problems name every fault of the spec.
    """
    require(user, "race.create", team)
    name, key = clean_line(name, field="name"), clean_line(key, field="key")
    if project.team != team:
        raise BadInput("is not in this team", field="project", value=project.public_id, cure="choose one of this team's")
    before = Race.objects.for_team(team).filter(key=key).first()
    if before is not None:
        return before
    money = resources.money(team)
    entries = plan.entries(spec, money.per_hour if money else None)
    try:
        with transaction.atomic():
            race = Race.unscoped.create(team=team, project=project, name=name, spec=spec.model_dump(mode="json"), key=key, created_by=user)
            rows = [
                RaceEntry(
                    race=race,
                    place=entry.place,
                    contender=entry.contender,
                    seed=entry.seed,
                    config=create_config(team, entry.config, user=user),
                    retries_left=spec.retries,
                )
                for entry in entries
            ]
            RaceEntry.unscoped.bulk_create(rows)
            audit.record("race.create", user=user, team=team, obj=race, detail={"entries": len(rows), "stop": spec.stop.kind})
    except IntegrityError:  # the form was sent twice at once; the other was first
        return Race.objects.for_team(team).get(key=key)
    return race


def pause_race(race: Race, user: User) -> Race:
    """Start nothing more; what runs goes on to its end."""
    return _ask(race, user, Race.Asked.PAUSE, "race.pause")


def resume_race(race: Race, user: User) -> Race:
    """Go on after a pause."""
    return _ask(race, user, Race.Asked.GO, "race.resume")


def cancel_race(race: Race, user: User) -> Race:
    """Stop its runs and start nothing more; what has finished stays and counts."""
    return _ask(race, user, Race.Asked.CANCEL, "race.cancel")


def run_again(race: Race, user: User, place: int) -> RaceEntry:
    """One more try for an entry whose run failed, was lost or was cancelled; a race that had ended goes on."""
    require(user, "race.edit", race)
    with transaction.atomic():
        locked = Race.unscoped.select_for_update(of=("self",)).get(pk=race.pk)
        entry = RaceEntry.objects.for_team(race.team).filter(race=locked, place=place).select_related("run").first()
        if entry is None:
            raise BadInput("no such entry", field="entry", value=place, cure="choose one of this race")
        state = entry.run.state if entry.run else ""
        if state and state not in AGAIN | {RunState.CANCELLED}:
            raise WrongState(f"its run is {state}", field="entry", value=place, cure="only what failed or was cancelled is run again")
        if state == RunState.CANCELLED:
            entry.run = None
        elif entry.retries_left == 0 and state:
            entry.retries_left = 1
        entry.save(update_fields=["run", "retries_left"])
        locked.asked, locked.closed_at, locked.problem, locked.try_again_at = Race.Asked.GO, None, None, None
        locked.save(update_fields=["asked", "closed_at", "problem", "try_again_at"])
        audit.record("race.again", user=user, team=race.team, obj=race, detail={"entry": place})
    race.refresh_from_db()
    return entry


def _ask(race: Race, user: User, what: str, action: str) -> Race:
    require(user, "race.edit", race)
    with transaction.atomic():
        locked = Race.unscoped.select_for_update(of=("self",)).get(pk=race.pk)
        if locked.closed_at is not None:
            raise WrongState("the race has ended", field="race", value=race.public_id, cure="make a new one, or run an entry again")
        if locked.asked == Race.Asked.CANCEL and what != Race.Asked.CANCEL:
            raise WrongState("the race is being cancelled", field="race", value=race.public_id, cure="wait until its runs have stopped")
        if locked.asked != what:
            changed: dict[str, Any] = {"asked": what, "problem": None, "try_again_at": None}
            for field, value in changed.items():
                setattr(locked, field, value)
            locked.save(update_fields=list(changed))
            audit.record(action, user=user, team=race.team, obj=race)
    race.refresh_from_db()
    return race
