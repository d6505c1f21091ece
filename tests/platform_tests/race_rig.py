"""A small race of a team, and a driver that trains its entries in a moment."""

from __future__ import annotations

import secrets
from datetime import timedelta
from typing import Any

from django.utils import timezone

from headrace.compare.races import plan, progress, services
from headrace.compare.races.models import Race, RaceEntry
from headrace.experiments.models import Attempt, Project, Run
from headrace.teams.models import Team, User
from tests.platform_tests.telemetry_rig import push

PROVENANCE = {"packages": {"torch": "2.13.0"}, "git_commit": "abc", "model_digest": "m", "data_digest": "d", "cpu": {"count": 2}}

# What the browser sends for such a race.
FORM = {
    "preset": ["trl-sync", "trl-async"],
    "seeds": "1 2",
    "stop_kind": "wall_s",
    "stop_value": "60",
    "devices": "3",
    "retries": "1",
    "name": "From the form",
    "key": "form-1",
    "batch.prompts": "4",
    "environment.dataset": "chain_sum",
}


def spec(**changes: Any) -> plan.RaceSpec:
    """Two contenders, two seeds, a minute, one after another."""
    contenders = [{"preset": "trl-sync", "label": "sync"}, {"preset": "trl-async", "label": "async"}]
    stop = {"kind": "wall_s", "value": 60}
    return plan.read({"contenders": contenders, "seeds": [1, 2], "stop": stop, "devices": 3, "at_once": 1, "retries": 1, **changes})


def make(team: Team, user: User, **changes: Any) -> Race:
    project, _ = Project.unscoped.get_or_create(team=team, slug="p", defaults={"name": "P"})
    key = changes.pop("key", secrets.token_hex(8))
    return services.create_race(team=team, user=user, project=project, name="Sync or async", spec=spec(**changes), key=key)


def entries(race: Race) -> list[RaceEntry]:
    return list(RaceEntry.unscoped.filter(race=race).select_related("run").order_by("place"))


def advance(minutes: float = 0) -> int:
    return progress.advance(timezone.now() + timedelta(minutes=minutes))


def train(run: Run, *, steps: int = 8, gain: float = 0.1, outcome: str = "succeeded", speed: int = 64) -> None:
    """The events of a whole run: rewards that rise by `gain` a step, `speed` samples a step, two held-out tests."""
    attempt = Attempt.unscoped.select_related("run").filter(run=run).latest("number")
    told: list[tuple[str, dict[str, Any]]] = [("started", {"config_digest": "d", "provenance": PROVENANCE, "resumed_from": None})]
    for step in range(1, steps + 1):
        reward = gain * step
        values = {"reward/mean": reward, "samples/trained": float(speed * step), "samples/tokens": 700.0 * step, "sync/pause_s": 0.002}
        if step in (1, steps):
            values["eval/reward_mean"] = reward
        told += [("metrics", {"values": values}), ("lag", {"counts": {"0": 60, "1": 40}})]
    summary = {
        "wall_s": 20.0,
        "samples_trained": speed * steps,
        "tokens_trained": 700 * steps,
        "sample_ledger": {"dispatched": speed * steps + 8, "trained": speed * steps, "dropped": {"stale": 8}},
        "time_ledger": {
            "generator/0": {"startup": 2.0, "generate": 16.0, "idle": 2.0},
            "trainer": {"startup": 2.0, "train": 9.0, "idle": 9.0},
        },
    }
    cause = {"message": "the loss was not finite"} if outcome == "failed" else None
    told.append(("finished", {"outcome": outcome, "cause": cause, "summary": summary}))
    push(attempt, told)
