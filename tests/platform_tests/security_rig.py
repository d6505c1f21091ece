"""Two whole teams and every address of the server: what the tests of doors, rights and bad inputs start from."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.apps import apps
from django.conf import settings
from django.test import Client
from django.urls import URLPattern, URLResolver, get_resolver
from django.utils import timezone

from headrace.alerts.models import Alert, AlertChannel, AlertDelivery, AlertRule
from headrace.alerts.sealing import seal
from headrace.artifacts.models import Export, JobState, Probe
from headrace.compare import services as views
from headrace.dispatch.models import Cluster
from headrace.experiments import projects, services, sweeps
from headrace.experiments.models import Artifact, Attempt, Project, Run
from headrace.experiments.states import RunState, lifecycle_writes
from headrace.experiments.tokens import issue_run_token
from headrace.identifiers import new_public_id
from headrace.teams import invitations
from headrace.teams.models import ApiToken, Membership, Role, SignIn, Team, User
from headrace.teams.scoping import TeamScopedManager
from headrace.teams.services import issue_api_token
from tests.platform_tests import race_rig
from tests.platform_tests.telemetry_rig import SAMPLE, STATE, metric, push
from workers.contract import loading

ABSENT = "abcdefghijkl"
# What stands in the URLconf between < and > or as a named group: the kind of object whose id belongs there, by the address before it.
KINDS = (
    ("/api/v1/attempts/", "attempt"),
    ("/team/projects/", "project"),
    ("/team/storage/runs/", "run"),
    ("/team/invitations/", "invitation"),
    ("/team/tokens/", "token"),
    ("/account/tokens/", "token"),
    ("/account/sessions/", "session"),
    ("/alerts/rules/", "rule"),
    ("/alerts/channels/", "channel"),
    ("/api/v1/sweeps/", "sweep"),
    ("/api/v1/races/", "race"),
    ("/api/v1/views/", "view"),
    ("/api/v1/runs/", "run"),
    ("/sweeps/", "sweep"),
    ("/races/", "race"),
    ("/views/", "view"),
    ("/runs/", "run"),
)
NAMED = {"artifact_id": "artifact", "probe_id": "probe", "experiment_id": "experiment", "form": "csv", "action": "pause"}


def routes(patterns: list[URLPattern | URLResolver] | None = None, prefix: str = "/") -> Iterator[str]:
    """Every address of the URLconf with {kind} where an id belongs, the admin's included. The first of a choice stands for all."""
    for item in get_resolver().url_patterns if patterns is None else patterns:
        text = str(item.pattern)
        if not hasattr(item.pattern, "_route"):  # a regular expression
            text = re.sub(r"\(\?P<(\w+)>([^)]*)\)", lambda found: f"<{found[1]}>" if "id" in found[1] else found[2].split("|")[0], text)
            text = re.sub(r"\([^)]*\)", "x", text).strip("^$").replace("\\Z", "").replace("\\", "")
        text = re.sub(r"<(?:int|float):[^>]+>", "1", text)
        if isinstance(item, URLResolver):
            yield from routes(item.url_patterns, prefix + text)
        else:
            yield re.sub(r"<(?:\w+:)?(\w+)>", lambda found, whole=prefix + text: _slot(whole, found), prefix + text)


def _slot(address: str, found: re.Match[str]) -> str:
    before = re.sub(r"<[^>]*>", ABSENT, address[: found.start()])
    name = NAMED.get(found[1])
    if name in ("csv", "pause"):
        return name
    return "{%s}" % (name or next((kind for start, kind in KINDS if before == start), found[1]))


def filled(route: str, ids: dict[str, str] | None = None) -> str:
    """The address of these ids; of nothing where none is given."""
    return re.sub(r"\{(\w+)\}", lambda found: (ids or {}).get(found[1], ABSENT), route)


@dataclass
class World:
    """A team with one of everything. Every name in it holds `word`, so that a body that tells of it is seen."""

    team: Team
    word: str
    people: dict[str, User]
    ids: dict[str, str] = field(default_factory=dict)
    attempt_token: str = ""

    @property
    def owner(self) -> User:
        return self.people[Role.OWNER]

    def client(self, role: str) -> Client:
        """A browser of the member with this role."""
        client = Client(raise_request_exception=False)
        client.force_login(self.people[role])
        return client

    def token(self, scope: str, role: str = Role.OWNER) -> dict[str, str]:
        """Headers with a token of this scope, of the member with this role."""
        secret = f"hra_{secrets.token_urlsafe(24)}"
        _token_row(self, self.people[role], secret, scope)
        return {"Authorization": f"Bearer {secret}"}

    def secrets_of(self) -> set[str]:
        """What no stranger may read: the ids and the word in every name."""
        return {self.word, *self.ids.values()}

    def rows(self) -> dict[str, list[str]]:
        """Every row of the team, by model: equal before and after what changes nothing."""
        found = {}
        for model in apps.get_models():
            scoped = model.__dict__.get("objects") or getattr(model, "objects", None)
            if isinstance(scoped, TeamScopedManager):
                found[model.__name__] = sorted(str(row) for row in scoped.for_team(self.team).values())
        return found


def _token_row(world: World, user: User, secret: str, scope: str) -> ApiToken:
    from headrace.identifiers import hash_secret

    expires = timezone.now() + timedelta(days=1)
    fields = {"name": f"{world.word} token", "token_hash": hash_secret(secret), "hint": secret[:8], "scope": scope, "expires_at": expires}
    return ApiToken.objects.create(team=world.team, user=user, **fields)


def build(word: str) -> World:
    """A team and one of everything in it, through the services where they are what makes it."""
    team = Team.objects.create(name=f"{word} team", slug=f"{word}-team")
    people = {}
    for role in Role.values:
        people[role] = User.objects.create_user(f"{role}@{word}.example", name=f"{word} {role}")
        Membership.objects.create(team=team, user=people[role], role=role)
    world = World(team, word, people)
    world.ids |= {"team": team.public_id, "user": people[Role.OWNER].public_id}
    _runs(world)
    _several(world)
    _around(world)
    return world


def _runs(world: World) -> None:
    team, owner, word = world.team, world.owner, world.word
    project = projects.create_project(team=team, user=owner, name=f"{word} project", note=f"{word} note")
    experiment = projects.create_experiment(project=project, user=owner, name=f"{word} experiment", note="")
    config = services.create_config(team, {"preset": "demo", "budget": {"steps": 9}}, user=owner)
    made = {}
    for name in ("run", "queued", "done", "gone"):
        made[name] = services.start_run(
            team=team,
            user=owner,
            config=config,
            project=project,
            experiment=experiment,
            name=f"{word} {name}",
            idempotency_key=f"{word}-{name}",
            note=f"{word} note",
            tags=[f"{word}-tag"],
            group=f"{word}-group",
        )
        world.ids[name] = made[name].public_id
    attempt = Attempt.unscoped.get(run=made["run"])
    _checkpoint(world, attempt)
    world.attempt_token = issue_run_token(attempt)
    told: list[tuple[str, dict[str, Any]]] = [
        ("started", {"resumed_from": None, "lanes": ["trainer"]}),
        metric(0.5),
        metric(0.25, f"own/{word}"),
        ("sample", {**SAMPLE, "prompt": f"{word} prompt", "completion": f"{word} completion"}),
        ("log", {"level": "info", "message": f"{word} line", "source": "driver"}),
        ("state", STATE),
    ]
    push(attempt, told)
    push(Attempt.unscoped.get(run=made["done"]), [*told, ("finished", {"outcome": "succeeded", "cause": None, "summary": {}})])
    push(Attempt.unscoped.get(run=made["gone"]), [told[0], ("finished", {"outcome": "failed", "cause": None, "summary": {}})])
    Run.unscoped.filter(pk=made["gone"].pk).update(deleted_at=timezone.now())
    world.ids |= {
        "attempt": attempt.public_id,
        "config": config.public_id,
        "project": project.public_id,
        "experiment": experiment.public_id,
    }


def _checkpoint(world: World, attempt: Attempt) -> None:
    folder = Path(settings.RUNS_DIR) / attempt.run.public_id / "attempt-1"
    (folder / "checkpoints" / "step-2").mkdir(parents=True, exist_ok=True)
    (folder / "export.zip").write_bytes(b"PK")
    Attempt.unscoped.filter(pk=attempt.pk).update(out_dir=str(folder))
    attempt.refresh_from_db()
    common: dict[str, Any] = {"team": world.team, "run": attempt.run, "attempt": attempt, "step": 2, "version": 2, "bytes": 2}
    artifact = Artifact.objects.create(kind="checkpoint", path="checkpoints/step-2", **common)
    result = Artifact.objects.create(kind="export", path="export.zip", **common)
    Export.objects.create(team=world.team, artifact=artifact, result=result, state=JobState.DONE, card=f"{world.word} card")
    probe = Probe.objects.create(
        team=world.team, run=attempt.run, artifact=artifact, prompts=[f"{world.word} prompt"], created_by=world.owner
    )
    world.ids |= {"artifact": artifact.public_id, "export": result.public_id, "probe": probe.public_id}


def _several(world: World) -> None:
    team, owner, word = world.team, world.owner, world.word
    project = Project.unscoped.get(public_id=world.ids["project"])
    sweep = sweeps.start_sweep(
        team=team,
        user=owner,
        config=loading.resolve({"budget": {"steps": 2}}, "demo", []),
        plan=sweeps.Plan(seeds=[1, 2], axes=[]),
        project=project,
        name=f"{word} sweep",
        idempotency_key=f"{word}-sweep",
        source=Run.Source.WEB,
    )
    race = race_rig.make(team, owner, key=f"{word}-race")
    race.name = f"{word} race"
    race.save(update_fields=["name"])
    view = views.save_view(team, owner, page="runs", name=f"{word} view", query=f"q={word}")
    compared = views.save_view(team, owner, page="compare", name=f"{word} comparison", query=f"runs={world.ids['run']}")
    world.ids |= {"sweep": sweep.public_id, "race": race.public_id, "view": view.public_id, "comparison": compared.public_id}


def _around(world: World) -> None:
    team, owner, word = world.team, world.owner, world.word
    sealed = seal({"url": f"https://{word}.example/hook", "secret": "s"})
    channel = AlertChannel.objects.create(team=team, name=f"{word} channel", kind="webhook", sealed=sealed, hint=f"{word}.example")
    rule = AlertRule.objects.create(team=team, name=f"{word} rule", kind="state", options={"states": ["failed"]}, created_by=owner)
    rule.channels.set([channel])
    run = Run.unscoped.get(public_id=world.ids["run"])
    fired = {"rule_name": rule.name, "kind": "state", "severity": "warning", "title": f"{word} alert", "t": 1_700_000_010.0}
    alert = Alert.objects.create(team=team, rule=rule, run=run, **fired)
    AlertDelivery.objects.create(team=team, alert=alert, channel=channel, channel_name=channel.name, purpose="fired", state="sent")
    invitation, _ = invitations.invite(by=owner, team=team, email=f"guest@{word}.example")
    token, _ = issue_api_token(user=owner, team=team, name=f"{word} key", scope="read")
    browser = Client()
    browser.force_login(owner)
    SignIn.objects.filter(session_key=browser.session.session_key).update(agent=f"{word} browser")
    session = SignIn.objects.get(session_key=browser.session.session_key)
    cluster = Cluster.objects.create(team=team, name=f"{word} cluster", address="http://127.0.0.1:1", is_default=True)
    world.ids |= {"channel": channel.public_id, "rule": rule.public_id, "alert": alert.public_id, "invitation": invitation.public_id}
    world.ids |= {"token": token.public_id, "session": session.public_id, "cluster": cluster.public_id}


def make_over(run: Run, state: str = RunState.FAILED) -> None:
    """The run and its attempts, as if they had ended: for what only a run that is over allows."""
    with lifecycle_writes():
        Attempt.unscoped.filter(run=run).update(state="failed")
        Run.unscoped.filter(pk=run.pk).update(state=state)


def fresh_key() -> str:
    return new_public_id()
