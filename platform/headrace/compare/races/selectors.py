"""All reads of races. What a user may not see does not exist."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import QuerySet

from headrace.compare.races import fairness, plan, resources
from headrace.compare.races.facts import facts_of
from headrace.compare.races.models import Race, RaceEntry
from headrace.compare.races.results import Finished, results, with_cost
from headrace.experiments import forms
from headrace.experiments.models import Config, Run
from headrace.experiments.states import RunState
from headrace.schema_form import fields_of
from headrace.teams.models import Team
from headrace.telemetry.models import Series
from workers.contract import presets
from workers.contract.config import RunConfig

PAGE = 30
WAITING, SKIPPED = "waiting", "skipped"


@dataclass(frozen=True)
class Whole:
    """A race with what its pages need: its spec and its entries with their runs, in the order of the start."""

    race: Race
    spec: plan.RaceSpec
    entries: list[RaceEntry]

    @property
    def labels(self) -> list[str]:
        return [contender.label for contender in self.spec.contenders]


def races_for(user: Any, team: Team | None = None) -> QuerySet[Race]:
    """Races the user may see, newest first; of one team if given."""
    races = Race.objects.for_user(user)
    if team is not None:
        races = races.filter(team=team)
    return races.select_related("team", "project", "created_by").order_by("-created_at", "-pk")


def race_for(user: Any, public_id: str) -> Whole:
    """One race with its entries. Raises Race.DoesNotExist."""
    race = races_for(user).get(public_id=public_id)
    entries = RaceEntry.objects.for_team(race.team_id).filter(race=race).select_related("run", "config").order_by("place")
    return Whole(race, plan.read(race.spec), [_without_deleted(entry) for entry in entries])


def _without_deleted(entry: RaceEntry) -> RaceEntry:
    """A run that was deleted is neither shown nor counted; its entry stands as one that was left out."""
    if entry.run is not None and entry.run.deleted_at is not None:
        entry.run = None
    return entry


def state_of(race: Race, states: Counter[str]) -> str:
    """The race's own state, from what is asked and the states of its runs ("" for an entry without one)."""
    active = sum(count for state, count in states.items() if state and state not in RunState.over())
    if race.asked == Race.Asked.CANCEL:
        return "stopping" if active or race.closed_at is None else "cancelled"
    if race.closed_at is not None:
        return "succeeded" if states[RunState.SUCCEEDED] else "failed"
    if race.asked == Race.Asked.PAUSE:
        return "paused"
    return "running" if active or states[RunState.SUCCEEDED] else "queued"


def listed(races: Sequence[Race]) -> list[dict[str, Any]]:
    """Rows of the list, with a fixed number of queries."""
    if not races:
        return []
    counts: dict[int, Counter[str]] = {race.pk: Counter() for race in races}
    rows = RaceEntry.objects.for_team(races[0].team_id).filter(race__in=races).values_list("race_id", "run__state")
    for race_id, state in rows:
        counts[race_id][state or ""] += 1
    return [_listed(race, counts[race.pk]) for race in races]


def _listed(race: Race, states: Counter[str]) -> dict[str, Any]:
    spec = race.spec
    over = sum(count for state, count in states.items() if state in RunState.over())
    stop = plan.STOP_WORDS.get(spec["stop"]["kind"], ("", ""))
    return {
        "id": race.public_id,
        "name": race.name,
        "state": state_of(race, states),
        "contenders": [contender["label"] for contender in spec["contenders"]],
        "seeds": len(spec["seeds"]),
        "stop": f"{spec['stop']['value']:g} {stop[1]}",
        "over": over,
        "total": sum(states.values()),
        "created": race.created_at,
        "by": race.created_by.get_short_name() if race.created_by else "",
    }


def live(whole: Whole) -> dict[str, Any]:
    """What the page refreshes: the race's state and the grid of entries."""
    race, runs = whole.race, [entry.run for entry in whole.entries if entry.run is not None]
    latest = _latest(race.team_id, runs)
    states = Counter(entry.run.state if entry.run else "" for entry in whole.entries)
    cells = [_cell(whole, entry, latest.get(entry.run_id or 0, {})) for entry in whole.entries]
    return {
        "id": race.public_id,
        "state": state_of(race, states),
        "asked": race.asked,
        "problem": race.problem,
        "closed": race.closed_at.isoformat() if race.closed_at else None,
        "over": sum(count for state, count in states.items() if state in RunState.over()),
        "finished": states[RunState.SUCCEEDED],
        "total": len(whole.entries),
        "entries": cells,
    }


def _latest(team_id: int, runs: Sequence[Run]) -> dict[int, dict[str, Any]]:
    """{run key: {reward, step, heard}}: the newest points, in one query."""
    found: dict[int, dict[str, Any]] = {}
    names = {"reward/mean": "reward", "eval/reward_mean": "heldout", "samples/trained": "samples"}
    rows = Series.objects.for_team(team_id).filter(attempt__run__in=runs, name__in=names).select_related("attempt")
    for row in rows.order_by("attempt__number"):
        mine = found.setdefault(row.attempt.run_id, {})
        mine[names[row.name]] = row.last_value
        mine["step"] = max(row.last_step or 0, mine.get("step", 0))
        started = row.attempt.started_at
        if started is not None and row.last_t is not None:
            mine["elapsed_s"] = max(0.0, row.last_t - started.timestamp(), mine.get("elapsed_s", 0.0))
    return found


def _cell(whole: Whole, entry: RaceEntry, latest: dict[str, Any]) -> dict[str, Any]:
    run = entry.run
    ended = whole.race.closed_at is not None or whole.race.asked == Race.Asked.CANCEL
    cause = (run.outcome_cause or {}).get("message", "") if run else ""
    stop = whole.spec.stop
    budget = entry.config.data.get("budget", {})
    done = {"samples": latest.get("samples"), "tokens": None}.get(stop.kind, latest.get("elapsed_s"))
    whole_s = budget.get("samples") if stop.kind == "samples" else budget.get("wall_s")
    share = min(1.0, done / whole_s) if done and whole_s else None
    return {
        "place": entry.place,
        "contender": entry.contender,
        "seed": entry.seed,
        "state": run.state if run else (SKIPPED if ended else WAITING),
        "run": run.public_id if run else None,
        "reused": entry.reused,
        "launched": entry.launched,
        "retries_left": entry.retries_left,
        "cause": str(cause)[:300],
        "share": 1.0 if run and run.state == RunState.SUCCEEDED else share,
        **{key: latest.get(key) for key in ("reward", "heldout", "step")},
    }


def result(whole: Whole) -> dict[str, Any]:
    """Figures, verdicts and curves over the entries that ended well, and what became of the others."""
    money = resources.money(whole.race.team)
    done = [entry for entry in whole.entries if entry.run is not None and entry.run.state == RunState.SUCCEEDED]
    facts = facts_of([entry.run for entry in done if entry.run is not None])
    finished = []
    for entry in done:
        told = facts[entry.run_id or 0]
        told = with_cost(told, money.per_hour) if money else told
        finished.append(Finished(whole.labels[entry.contender], entry.seed, told))
    price, currency = (money.per_hour, money.currency) if money else (None, "")
    found = results(whole.labels, finished, price=price, currency=currency)
    left_out = [
        {"label": whole.labels[entry.contender], "seed": entry.seed, "state": entry.run.state}
        for entry in whole.entries
        if entry.run is not None and entry.run.state in RunState.over() - {RunState.SUCCEEDED}
    ]
    told_by = {(one.label, one.seed): one.facts.provenance for one in finished if one.facts.provenance}
    found["left_out"] = left_out
    found["labels"] = whole.labels
    found["total"] = len(whole.entries)
    found["provenance"] = [vars(check) for check in fairness.provenance_checks(told_by)]
    return found


def checklist(spec: plan.RaceSpec, configs: Sequence[RunConfig], at_once: int) -> fairness.Fairness:
    """The fairness checklist of a spec whose configs (one a contender) are known."""
    known = {path: item.title for path, item in fields_of(forms.schema()).items()}
    described = [presets.described(one.preset) if plan.known(one.preset) else {"approximates": []} for one in spec.contenders]
    return fairness.judge(spec, configs, at_once=at_once, presets=described, titles=lambda path: known.get(path) or in_words(path, known))


def checklist_of(whole: Whole) -> fairness.Fairness:
    """The checklist of a race that was made: of the configs as they are stored."""
    first: dict[int, RunConfig] = {}
    for entry in whole.entries:
        if entry.contender not in first:
            first[entry.contender] = RunConfig.model_validate(entry.config.data)
    configs = [first[number] for number in range(len(whole.spec.contenders))]
    return checklist(whole.spec, configs, resources.fitting(whole.race.team, whole.spec))


def in_words(path: str, known: dict[str, str]) -> str:
    """The inside of a setting that is listed as one: its own title and the rest of the path."""
    above = path
    while above and above not in known:
        above = above.rpartition(".")[0]
    rest = path[len(above) :].lstrip(".")
    return f"{known[above]}: {rest}" if above else path


def reusable(team: Team, digests: Sequence[str]) -> set[str]:
    """Those of these configs that have a finished run which a race would take instead of a new one. Called by the form's preview."""
    configs = Config.objects.for_team(team).filter(digest__in=list(digests))
    found = Run.objects.for_team(team).filter(config__in=configs, state=RunState.SUCCEEDED, deleted_at=None)
    found = found.exclude(source=Run.Source.UPLOAD).exclude(attempts__number__gt=1)
    return set(found.values_list("config__digest", flat=True))
