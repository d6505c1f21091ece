"""A team that has something of every kind: what the walk over all pages looks at. `fill` runs in the web server's environment."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

from tests.e2e.samples_rig import ANSWER, sample, tell
from tests.e2e.web_rig import PASSWORD, Driver, WebServer

STEPS = 40
LONG = "grpo, staleness at most four, merged adapters every second step, bounded buffer of sixteen groups, third try after the crash"
FILL = "import json, sys, django; django.setup(); from tests.e2e import full_house; print(json.dumps(full_house.fill(sys.argv[1])))"


class Past(Driver):
    """A driver that tells ten minutes at once: `clock` is the Unix second of what it posts next."""

    clock: float | None = None

    def post(self, events: list[tuple[str, dict[str, Any]]], step: int, t: float | None = None) -> None:
        super().post(events, step, self.clock if t is None else t)


def make(server: WebServer) -> dict[str, str]:
    """Fills the server and plays the drivers. Returns public ids by what they are of, and `session`, a signed-in session's key."""
    found: dict[str, Any] = json.loads(server.ask(FILL, PASSWORD).splitlines()[-1])
    drivers = {name: Past(server, *row) for name, row in found.pop("attempts").items()}
    _live(drivers["live"])
    tell(server, drivers["samples"])
    _stopped(drivers["failed"], drivers["paused"])
    found["probe"] = server.ask(FILL.replace("full_house.fill", "full_house.probe"), found["samples"]).split('"')[1]
    return found


def _live(driver: Past) -> None:
    """Ten minutes of a run that is going: every chart has a line, every lane a span, and reward falls at the end."""
    began = driver.began = time.time() - 15 * STEPS
    driver.clock = began
    driver.started()
    for step in range(1, STEPS + 1):
        t = driver.clock = began + 15 * step
        reward = 0.9 / (1 + math.exp((12 - step) / 5)) + 0.03 * math.sin(2.1 * step)
        driver.step(step, reward=reward, depth=step % 9, completion=f"{step} and 4 make {step + 4}")
        loss = {"entropy": 1.4 - step / 60, "grad_norm": 0.4 + 0.1 * math.sin(step), "clip_share": 0.02, "policy": 0.1 / step}
        system = {"cpu_share": 0.71, "memory_used": 6.1e9 + 2e7 * step, "memory_total": 1.6e10, "disk_free": 4.1e10}
        engine = {"generator/0/running": 30.0 + step % 7, "generator/0/waiting": 2.0, "generator/0/tokens_per_s": 410.0 + step}
        driver.metrics(step, loss=loss, system=system, engine=engine, samples={"trained": 64.0 * step, "tokens": 5200.0 * step})
        if step % 5 == 0:
            score = {"version": step, "n": 64, "mean": reward - 0.04, "stderr": 0.02, "seconds": 3.5}
            driver.post([("evaluation", score)], step)
        lanes = [
            ("trainer", "train", t - 15, t - 5),
            ("trainer", "wait_buffer_empty", t - 5, t),
            ("generator/0", "generate", t - 15, t - 1),
        ]
        driver.spans(step, *lanes, ("generator/0", "sync_pause", t - 1, t))
        rows = [sample(step, 1, index, f"so {step} + 1 makes {step + 1 - index}", reward=1.0 - index) for index in range(2)]
        driver.post(rows, step)
    driver.clock = None


def _stopped(failed: Past, paused: Past) -> None:
    for driver in (failed, paused):
        driver.started()
        for step in (1, 2, 3):
            driver.step(step, reward=0.1 * step)
    failed.failed(3)
    paused.post([("state", {"status": "paused", "step": 3, "version": 3, "steps_total": 40})], 3)


def probe(run: str) -> list[str]:
    """A probe that has its answer, of the run's checkpoint."""
    from headrace.artifacts.models import JobState, Probe
    from headrace.experiments.models import Artifact

    source = Artifact.unscoped.select_related("run").get(run__public_id=run, kind="checkpoint")
    made = Probe.unscoped.create(
        team=source.run.team,
        run=source.run,
        artifact=source,
        checkpoint="step 4",
        prompts=["3 + 4 ="],
        sampling={"temperature": 0.0, "top_p": 1.0, "top_k": 0, "max_new_tokens": 64, "seed": 7},
        state=JobState.DONE,
        result=ANSWER,
    )
    return [made.public_id]


def fill(password: str) -> dict[str, Any]:
    """All rows but events of the runs that are driven from outside."""
    from django.test import Client

    from headrace.experiments import services, sweeps
    from headrace.experiments.models import Experiment, Project
    from headrace.experiments.tokens import issue_run_token
    from headrace.teams.models import Membership, Role, Team, User
    from workers.contract import loading

    team = Team.objects.create(name="Reasoning", slug="reasoning")
    owner = User.objects.create_superuser("ada@example.org", password, name="Ada Lovelace")
    other = User.objects.create_user("bo@example.org", password, name="Bo")
    for user, role in ((owner, Role.OWNER), (other, Role.MEMBER)):
        Membership.objects.create(team=team, user=user, role=role)
    Membership.objects.create(team=Team.objects.create(name="Another team", slug="another"), user=owner, role=Role.OWNER)
    project = Project.unscoped.create(team=team, name="Arithmetic", slug="arithmetic", note="How far small models get.")
    experiment = Experiment.unscoped.create(team=team, project=project, name="How stale may it be", created_by=owner)
    found: dict[str, Any] = {"attempts": {}, "project": project.public_id, "experiment": experiment.public_id}

    def run(name: str, title: str, *sets: str, preset: str = "demo", **more: Any) -> Any:
        config = services.create_config(team, loading.resolve({}, preset, list(sets)), user=owner)
        made = services.start_run(team=team, user=owner, config=config, project=project, name=title, idempotency_key=name, **more)
        attempt = made.attempts.get()
        found[name] = made.public_id
        found["attempts"][name] = [made.public_id, attempt.public_id, issue_run_token(attempt)]
        return made

    _alerts(team, owner)
    live = run("live", "lag 4, live", "budget.steps=60", tags=["lag", "baseline"], note="Compare with lag 0.", experiment=experiment)
    run("samples", "lag 2, with samples", "seed=3", tags=["lag"], experiment=experiment)
    run("failed", "too hot", "optimizer.learning_rate=0.5", tags=["lag"])
    run("paused", LONG, "seed=8")
    run("queued", "waits for a place", "seed=9", preset="pipelinerl")
    _trained(run, experiment)
    plan = sweeps.read_plan({"sweep.seeds": "1-2", "sweep.path.1": "buffer.depth", "sweep.values.1": "8, 16"})
    swept = sweeps.start_sweep(
        team=team, user=owner, config=loading.resolve({}, "demo", []), plan=plan, project=project, name="depths", idempotency_key="sweep"
    )
    found["sweep"] = swept.public_id
    found |= _race(team, owner) | _links(team, owner, [live.public_id, found["done1"]])
    client = Client()
    client.force_login(owner)
    return found | {"session": client.session.session_key}


def _trained(run: Any, experiment: Any) -> None:
    from tests.platform_tests import race_rig

    for seed, gain in ((1, 0.04), (2, 0.05), (4, 0.02)):
        race_rig.train(
            run(f"done{seed}", f"lag {seed}, done", f"seed={seed}", f"staleness.max_lag={seed}", experiment=experiment), steps=16, gain=gain
        )


def _alerts(team: Any, owner: Any) -> None:
    from headrace.alerts import kinds, services

    services.save_channel(team, owner, kind="webhook", name="Pager", given={"url": os.environ["HEADRACE_TEST_HOOK"]})
    services.add_ready_made(team, owner, [offered.key for offered in kinds.READY_MADE])


def _race(team: Any, owner: Any) -> dict[str, str]:
    from tests.platform_tests import race_rig

    race = race_rig.make(team, owner, at_once=None)
    for _ in range(4):
        race_rig.advance()
        for entry in race_rig.entries(race):
            if entry.run is not None and entry.run.state == "queued":
                race_rig.train(entry.run, gain=0.03 + 0.03 * entry.contender + 0.002 * entry.seed)
    race_rig.advance()
    waiting = race_rig.make(team, owner, seeds=[5], reuse=False)
    return {"race": race.public_id, "waiting_race": waiting.public_id}


def _links(team: Any, owner: Any, runs: list[str]) -> dict[str, str]:
    from headrace.alerts.models import AlertChannel, AlertRule
    from headrace.compare import services as views
    from headrace.teams import invitations
    from headrace.teams import services as teams

    views.save_view(team, owner, page="runs", name="What runs now", query="q=state:running")
    views.save_view(team, owner, page="compare", name="Lag, against done", query="runs=" + ",".join(runs))
    _, secret = invitations.invite(by=owner, team=team, email="cy@example.org")
    teams.issue_api_token(user=owner, team=team, name="laptop", scope="write")
    rule, channel = AlertRule.objects.for_team(team).first(), AlertChannel.objects.for_team(team).get()
    assert rule is not None
    return {"invite": secret, "rule": rule.public_id, "channel": channel.public_id}
