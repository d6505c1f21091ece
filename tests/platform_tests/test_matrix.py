"""Every address and operation x every role and token x own and other team, on one of every kind of object.

The addresses come from the URLconf and the OpenAPI description, the expectations from `teams/policy.py`. What is written here
is only which action of the policy an address is for; an address that nobody wrote down fails the first test.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os.path import commonpath
from pathlib import Path
from typing import Any

import pytest
from django.core.cache import cache
from django.db import transaction
from django.http import HttpResponse
from django.test import Client

from headrace.alerts.models import AlertChannel, AlertDelivery, AlertRule
from headrace.api.urls import api
from headrace.artifacts import services as artifacts
from headrace.artifacts.models import Probe
from headrace.compare.models import SavedView
from headrace.compare.races.models import Race
from headrace.dispatch.models import Cluster
from headrace.experiments.models import Artifact, Experiment, Project, Run, Sweep
from headrace.teams.models import ApiToken, Invitation, Membership, Role, SignIn, Team, User
from headrace.teams.policy import ACTIONS, OWN_ONLY, can, can_with_token
from tests.platform_tests.matrix_tables import (
    ALSO_READ,
    APART,
    CALLS,
    LAUNCH,
    NEW,
    OVER,
    PROJECT,
    QUERY,
    QUEUED,
    READS,
    RULE,
    RUN,
    SAMPLE_SEQ,
    SPEC,
    V1,
    WRITES,
)
from tests.platform_tests.security_rig import ABSENT, World, build, filled, make_over, routes

pytestmark = pytest.mark.django_db

MODELS: dict[str, Any] = {
    "run": Run,
    "project": Project,
    "experiment": Experiment,
    "sweep": Sweep,
    "race": Race,
    "view": SavedView,
    "artifact": Artifact,
    "probe": Probe,
    "rule": AlertRule,
    "channel": AlertChannel,
    "invitation": Invitation,
    "token": ApiToken,
    "cluster": Cluster,
}


@pytest.fixture(autouse=True)
def _still(settings: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing leaves the process: no message, no wake-up, no file outside this test's folder."""
    settings.RUNS_DIR = tmp_path / "runs"
    monkeypatch.setattr("headrace.alerts.deliver.send_test", lambda channel, by: AlertDelivery(state="sent", words="answered 200"))
    monkeypatch.setattr(artifacts, "_remove", lambda path: None)
    cache.clear()
    yield
    cache.clear()


@pytest.fixture
def alpha(db: None, _still: None) -> World:
    return build("alphaword")


@pytest.fixture
def beta(db: None, _still: None) -> World:
    return build("betaword")


def pages() -> list[str]:
    """The addresses outside the API and apart from what is listed above."""
    return [r for r in sorted(set(routes())) if not r.startswith(V1) and not any(re.fullmatch(p, r) for p in APART)]


def operations() -> list[str]:
    """`METHOD /path` of the OpenAPI description, ids named as in `routes`."""
    named = {"{run_id}": "{run}", "{artifact_id}": "{artifact}", "{probe_id}": "{probe}", "{form}": "csv"}
    named |= {"{race_id}": "{race}", "{sweep_id}": "{sweep}", "{view_id}": "{view}"}
    found = []
    for path, methods in api.get_openapi_schema()["paths"].items():
        short = re.sub(r"\{\w+\}", lambda slot: named.get(slot[0], slot[0]), path.removeprefix(V1))
        found += [f"{method.upper()} {short}" for method in methods if not short.startswith("/attempts/")]
    return found


def read_action(route: str) -> str | None:
    return READS[max((start for start in READS if route.startswith(start)), key=len)]


@dataclass
class Caller:
    """Somebody who asks: a browser, or a script with a token."""

    name: str
    user: User
    client: Client
    token: ApiToken | None = None
    headers: dict[str, str] | None = None

    def may(self, action: str | None, obj: Any) -> bool:
        if action is None:
            return True
        return can_with_token(self.token, action, obj) if self.token else can(self.user, action, obj)

    def ask(self, method: str, address: str, body: dict[str, Any] | None = None) -> HttpResponse:
        options: dict[str, Any] = {"headers": self.headers or {}}
        if address.startswith(V1) and method not in ("GET", "DELETE"):
            options |= {"data": json.dumps(body or {}), "content_type": "application/json"}
        elif method != "GET":
            sent = dict(body or {})
            address += f"?{sent.pop('?')}" if "?" in sent else ""
            options["data"] = sent if method == "POST" else json.dumps(sent)
        return getattr(self.client, method.lower())(address, **options)


def people(world: World, roles: tuple[str, ...] = tuple(Role.values)) -> list[Caller]:
    return [Caller(role, world.people[role], world.client(role)) for role in roles]


def scripts(world: World, *kinds: tuple[str, str]) -> list[Caller]:
    """Callers with tokens of (scope, role of their owner)."""
    found = []
    for scope, role in kinds:
        headers = world.token(scope, role)
        row = ApiToken.unscoped.latest("pk")
        found.append(Caller(f"{scope} token of {role}", row.user, Client(raise_request_exception=False), row, headers))
    return found


def words(answer: HttpResponse, *ids: str) -> str:
    """The body without the ids that were asked for, CSRF tokens and the names of faults, which differ every time."""
    body = b"".join(answer.streaming_content) if answer.streaming else answer.content
    text = body.decode(errors="replace")
    for one in ids:
        text = text.replace(one, "ID")
    return re.sub(r'(csrfmiddlewaretoken"|X-CSRFToken)[^>]*|"error_id": ?"[^"]*"', "", text)


def changed(data: dict[str, Any], ids: dict[str, str]) -> dict[str, Any]:
    return {name: filled(value, ids) if isinstance(value, str) else value for name, value in data.items()}


def nothing(found: list[Any]) -> None:
    """Fails with every line of what was found, not with the first."""
    lines = [str(row) for row in found if row]
    assert not lines, "\n" + "\n".join(lines)


# --- nothing is forgotten


def test_every_address_and_operation_is_written_down(alpha: World) -> None:
    assert sorted(operations()) == sorted(CALLS)
    missing = [route for route in pages() if route not in WRITES and not any(route.startswith(start) for start in READS)]
    assert missing == []
    assert [route for route in WRITES if route not in pages()] == []
    unknown = set(READS.values()) | {row[0] for rows in WRITES.values() for row in rows} | {r[0] for r in CALLS.values()}
    assert unknown - {None} <= set(ACTIONS)
    owner = people(alpha, (Role.OWNER,))[0]
    forgotten = []
    for route in pages():
        if route not in WRITES and owner.ask("POST", filled(route, alpha.ids)).status_code != 405:
            forgotten.append(route)
        for method in ("PUT", "PATCH", "DELETE"):
            if owner.ask(method, filled(route, alpha.ids)).status_code != 405:
                forgotten.append(f"{method} {route}")
    assert forgotten == []


# --- across teams


def strangers(world: World) -> list[Caller]:
    """A superuser of another team, and a script of the same person."""
    User.objects.filter(pk=world.owner.pk).update(is_staff=True, is_superuser=True)
    return [*people(world, (Role.OWNER,)), *scripts(world, ("write", Role.OWNER))]


def cases(caller: Caller) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """(method, route, body) of everything with an id in it that this caller could ask."""
    for key, (_, _, body) in CALLS.items():
        method, route = key.split(" ")
        if "{" in route or route == "/compare":
            yield method, V1 + route, body
    if caller.token is not None:
        return
    for route in pages():
        if "{" in route:
            if route not in WRITES or any(route.startswith(start) and start in (route, PROJECT, RUN) for start in READS):
                yield "GET", route, {}
            for _, _, body in WRITES.get(route, []):
                yield "POST", route, body


def test_another_teams_things_do_not_exist(alpha: World, beta: World) -> None:
    """Status and body as for an id that never was, also where only the last id of an address is foreign; and no row changes."""
    before, told, asked = alpha.rows(), [], 0
    for caller in strangers(beta):
        for method, route, body in cases(caller):
            slots = re.findall(r"\{(\w+)\}", route) or ["run"]
            own = {} if len(slots) == 1 else {slots[0]: beta.ids[slots[0]]}
            for mine in [{}, own] if own else [{}]:
                query = QUERY if method == "GET" else ""
                with transaction.atomic():
                    foreign = caller.ask(method, filled(route + query, {**alpha.ids, **mine}), body)
                    absent = caller.ask(method, filled(route + query, mine), body)
                    transaction.set_rollback(False)
                asked += 1
                same = foreign.status_code == absent.status_code and words(foreign, *alpha.ids.values()) == words(absent, ABSENT)
                fits = foreign.status_code in (302, 400, 403, 404) if method == "GET" else foreign.status_code in (400, 403, 404)
                if not same or not fits or alpha.word in words(foreign):
                    told.append((caller.name, method, route, sorted(mine), foreign.status_code, absent.status_code))
    nothing(told)
    assert asked > 150
    assert alpha.rows() == before


# (method, address, body): ids that travel in a query or a body
CARRIED: list[tuple[str, str, dict[str, Any]]] = [
    ("GET", "/compare/?runs={run}", {}),
    ("GET", "/compare/data.json?runs={run}", {}),
    ("GET", "/compare/series.json?runs={run}&names=reward/mean", {}),
    ("GET", "/compare/series.csv?runs={run}&names=reward/mean", {}),
    ("GET", "/compare/results.csv?runs={run}", {}),
    ("GET", "/compare/?group={sweep}", {}),
    ("GET", "/compare/search.json?q=id:{run}", {}),
    ("GET", "/runs/?q=id:{run}", {}),
    ("GET", "/runs/?project={project}&experiment={experiment}", {}),
    ("GET", "/runs/table.csv?project={project}", {}),
    ("GET", "/runs/new/?clone={run}", {}),
    ("GET", "/races/new/?like={race}", {}),
    ("GET", "/search.json?q={run}", {}),
    ("GET", "/alerts/rules/new/?kind=state&run={run}", {}),
    ("GET", "/team/audit/?object={run}&q={run}", {}),
    ("POST", "/account/team/", {"team": "{team}"}),
    ("POST", "/team/", {"remove": "{user}"}),
    ("POST", "/runs/bulk/", {"action": "delete", "sure": "1", "run": "{done}"}),
    ("POST", "/runs/new/", {**LAUNCH, "clone": "{run}"}),
    ("POST", "/runs/new/", {**LAUNCH, "project": "{project}"}),
    ("POST", "/alerts/rules/new/", {"?": "kind=state", **RULE, "run": "{run}"}),
    ("POST", "/alerts/rules/new/", {"?": "kind=state", **RULE, "channels": "{channel}"}),
    ("POST", "/alerts/rules/new/", {"?": "kind=state", **RULE, "try": "1", "try_run": "{run}"}),
    ("POST", V1 + "/runs", {**NEW, "project": "{project}"}),
    ("POST", V1 + "/runs", {**NEW, "experiment": "{experiment}"}),
    ("POST", V1 + "/runs", {**NEW, "parent": "{run}"}),
    ("POST", V1 + "/uploads", {**NEW, "project": "{project}"}),
    ("POST", V1 + "/sweeps", {**NEW, "seeds": [1], "project": "{project}"}),
    ("POST", V1 + "/races", {"name": "n", "spec": SPEC, "idempotency_key": "k", "project": "{project}"}),
    ("GET", V1 + "/compare?runs={run}", {}),
    ("GET", V1 + "/runs?query=id:{run}", {}),
]


def test_ids_in_queries_and_bodies_open_nothing(alpha: World, beta: World) -> None:
    before, told = alpha.rows(), []
    caller = strangers(beta)[0]
    for method, address, body in CARRIED:
        answers = []
        for ids in (alpha.ids, {}):
            caller.client.cookies.pop("messages", None)  # what an earlier answer had to say
            with transaction.atomic():
                answer = caller.ask(method, filled(address, ids), changed(body, ids))
                answers.append((answer.status_code, re.sub(r"\b[a-z2-7]{12}\b", "ID", words(answer, *(ids.values() or [ABSENT])))))
                transaction.set_rollback(True)
        if answers[0] != answers[1] or alpha.word in answers[0][1]:
            told.append((method, address, answers[0][0], differing("", answers[0][1], answers[1][1])))
    nothing(told)
    assert alpha.rows() == before


LISTS = [
    *(
        "/search.json?q=",
        "/search.json?q=word",
        "/search.json?q=demo",
        "/compare/search.json?q=",
        "/compare/?q=preset:demo",
        "/runs/?rows=1",
    ),
    *(
        "/runs/table.csv",
        "/runs/?archived=1",
        "/runs/fields.json",
        "/team/projects/?archived=1",
        "/team/storage/?again=1",
        "/alerts/?q=word",
    ),
    *(
        "/team/audit/export.csv",
        "/queue/?rows=1",
        V1 + "/runs?limit=200",
        V1 + "/queue",
        V1 + "/projects",
        V1 + "/races",
        V1 + "/views",
        "/metrics",
    ),
    *("/api/v1/me", "/compare/?group=alphaword-group", "/runs/?q=tag:alphaword-tag"),
]


def test_lists_counts_exports_and_search_are_the_same_with_and_without_the_other_team(beta: World) -> None:
    """Every address without an id answers byte for byte the same after another team has got one of everything."""
    caller, script = people(beta, (Role.OWNER,))[0], scripts(beta, ("read", Role.OWNER))[0]
    addresses = [*(route for route in pages() if "{" not in route and route not in ("/runs/bulk/",)), *LISTS]

    def bodies() -> dict[str, str]:
        found = {}
        for address in addresses:
            asking = script if address.startswith(("/metrics", V1)) else caller
            found[address] = still(words(asking.ask("GET", address)))
        return found

    bodies()  # what asking itself leaves behind: when a token was used, that the trail was exported
    before = bodies()
    alpha = build("alphaword")
    after = bodies()
    assert [address for address in addresses if any(secret in after[address] for secret in alpha.secrets_of() - {alpha.word})] == []
    assert [
        address for address in addresses if alpha.word in after[address].replace("alphaword-group", "").replace("alphaword-tag", "")
    ] == []
    own_trail = ("/team/audit/", "/team/audit/export.csv")  # holds that this test has exported it, once more each time
    nothing([differing(address, before[address], after[address]) for address in addresses if address not in own_trail])


def differing(address: str, before: str, after: str) -> str:
    """Where two bodies part, or nothing."""
    if before == after:
        return ""
    at = len(commonpath([before, after]))
    return f"{address}: {before[max(0, at - 80) : at + 80]!r} became {after[max(0, at - 80) : at + 80]!r}"


def still(text: str) -> str:
    """Without what time alone changes: ages, the key of a form, the server's own disk."""
    text = re.sub(r'(name="idempotency_key"|name="key")[^>]*>', "", text)
    text = re.sub(
        r"heartbeat_age_seconds\{[^\n]*|\d+(\.\d+)? ?(seconds?|s|minutes?|min|GB|GiB|MB|MiB)\b|just now|less than a minute", "", text
    )
    return re.sub(r"\d\d:\d\d(:\d\d)?(\.\d+)?|\d+\.\d+", "", text)


# --- within a team


@contextmanager
def possessions(world: World, caller: Caller, own: bool) -> Iterator[dict[str, Any]]:
    """The team's objects by kind, while all that somebody made was made by the caller, or by somebody else; taken back afterwards."""
    maker = caller.user if own else next(one for one in world.people.values() if one != caller.user)
    with transaction.atomic():
        for model in (Run, Experiment, Sweep, SavedView, AlertRule, Race, Probe):
            model.unscoped.filter(team=world.team).update(created_by=maker)  # type: ignore[attr-defined]
        ApiToken.unscoped.filter(public_id=world.ids["token"]).update(user=maker)
        yield {**{kind: model.unscoped.get(public_id=world.ids[kind]) for kind, model in MODELS.items()}, "team": world.team}
        transaction.set_rollback(True)


def judged(caller: Caller, world: World, key: str, action: str | None, obj: Any, body: dict[str, Any]) -> str | None:
    """Asks once, takes it back, and says what was wrong with the answer."""
    method, route = key.split(" ")
    ids, may = dict(world.ids), caller.may(action, obj)
    with transaction.atomic():
        if route.endswith(OVER) and "/runs/{run}" in route and "artifacts" not in route:
            make_over(Run.unscoped.get(public_id=ids["run"]))
        if route.endswith(QUEUED):
            ids["run"] = ids["queued"]
        if route.endswith("restore/"):
            ids["run"] = ids["gone"]
        if "/download" in route:
            ids["artifact"] = ids["export"]  # a checkpoint itself is not handed out
        if "{session}" in route:
            ids["session"] = SignIn.objects.get(session_key=caller.client.session.session_key).public_id
        if "/account/tokens/" in route:
            ApiToken.unscoped.filter(public_id=ids["token"]).update(user=caller.user)
            may = caller.may(action, ApiToken.unscoped.get(public_id=ids["token"]))
        address = filled(route + (QUERY if method == "GET" else ""), ids).replace("samples/1/1.json", f"samples/1/{SAMPLE_SEQ}.json")
        status = caller.ask(method, address, changed(body, ids)).status_code
        transaction.set_rollback(True)
    hidden = "/team/tokens/{token}" in route and status == 404  # people see their own tokens, maintainers everybody's
    fits = status < 500 and status not in (401, 403, 404) if may else status == 403 or hidden
    return None if fits else f"{caller.name} {key} {action}: {'may' if may else 'may not'}, got {status}"


def test_browsers_may_do_what_the_policy_says(alpha: World) -> None:
    wrong = []
    for caller in people(alpha):
        for own in (False, True) if caller.name in (Role.VIEWER, Role.MEMBER) else (False,):
            with possessions(alpha, caller, own) as found:
                for route in pages():
                    action = read_action(route)
                    kind = (re.findall(r"\{(\w+)\}", route) or ["team"])[-1]
                    reads = route not in WRITES or route in READS or route in ALSO_READ
                    if reads and (not own or action in OWN_ONLY):
                        wrong.append(judged(caller, alpha, f"GET {route}", action, found.get(kind, alpha.team), {}))
                    for action, kind, body in WRITES.get(route, []):
                        if not own or action in OWN_ONLY:
                            wrong.append(judged(caller, alpha, f"POST {route}", action, found[kind], body))
    nothing(wrong)


def test_scripts_may_do_what_their_scope_and_their_owner_may(alpha: World) -> None:
    wrong = []
    tokens = [(scope, Role.OWNER) for scope in ApiToken.Scope.values]
    tokens += [("write", Role.VIEWER), ("write", Role.MEMBER), ("launch", Role.MEMBER)]
    for caller in [*scripts(alpha, *tokens), *people(alpha, (Role.MEMBER,))]:
        for own in (False, True) if caller.user != alpha.owner else (False,):
            with possessions(alpha, caller, own) as found:
                for key, (action, kind, body) in CALLS.items():
                    method, route = key.split(" ")
                    if not own or action in OWN_ONLY:
                        wrong.append(judged(caller, alpha, f"{method} {V1}{route}", action, found[kind], body))
    nothing(wrong)


def test_several_runs_at_once_are_refused_one_by_one(alpha: World) -> None:
    for role in Role.values:
        for own in (False, True):
            for action, needed in (("tag", "run.edit"), ("cancel", "run.cancel"), ("delete", "run.delete"), ("archive", "run.edit")):
                with transaction.atomic():
                    caller = people(alpha, (role,))[0]
                    maker = caller.user if own else next(one for one in alpha.people.values() if one != caller.user)
                    Run.unscoped.filter(team=alpha.team).update(created_by=maker)
                    run = Run.unscoped.get(public_id=alpha.ids["run" if action in ("tag", "cancel") else "done"])
                    told = {"action": action, "tag": "fresh", "run": run.public_id, "sure": "1"}
                    may, before = can(caller.user, needed, run), Run.unscoped.filter(pk=run.pk).values().get()
                    assert caller.ask("POST", "/runs/bulk/", told).status_code == 302
                    assert (Run.unscoped.filter(pk=run.pk).values().get() != before) is may, (role, own, action)
                    transaction.set_rollback(True)


def test_the_metrics_page_is_for_tokens(alpha: World, beta: World) -> None:
    for scope in ApiToken.Scope.values:
        answer = Client().get("/metrics", headers=beta.token(scope))
        assert answer.status_code == 200, scope
        assert beta.ids["run"] in answer.content.decode() and alpha.ids["run"] not in answer.content.decode()
        assert alpha.word not in answer.content.decode()
    assert people(beta, (Role.OWNER,))[0].ask("GET", "/metrics").status_code == 401
    headers = beta.token("metrics")
    Membership.unscoped.filter(user=beta.owner).delete()
    assert Client().get("/metrics", headers=headers).status_code == 401


def test_an_attempts_token_opens_nothing_else(alpha: World, beta: World) -> None:
    headers = {"Authorization": f"Bearer {beta.attempt_token}"}
    client = Client()
    assert client.get(f"{V1}/attempts/{beta.ids['attempt']}/mark", headers=headers).status_code == 200
    through = []
    for key in (*CALLS, "GET /attempts/{attempt}/mark", "POST /attempts/{attempt}/events"):
        method, route = key.split(" ")
        answer = getattr(client, method.lower())(filled(V1 + route, alpha.ids), content_type="application/json", headers=headers)
        if answer.status_code != 401:
            through.append((key, answer.status_code))
    statuses = {route: client.get(filled(route, beta.ids), headers=headers).status_code for route in pages()}
    through += [(route, status) for route, status in statuses.items() if status not in (302, 401, 405)]
    assert through == []


def test_a_team_is_taken_from_its_member_at_once(alpha: World) -> None:
    """The same browser and the same token, before and after."""
    browser, script = people(alpha, (Role.MEMBER,))[0], scripts(alpha, ("read", Role.MEMBER))[0]
    page, call = f"/runs/{alpha.ids['run']}/", f"{V1}/runs/{alpha.ids['run']}"
    assert (browser.ask("GET", page).status_code, script.ask("GET", call).status_code) == (200, 200)
    Team.objects.get(pk=alpha.team.pk).memberships.filter(user=browser.user).delete()
    assert (browser.ask("GET", page).status_code, script.ask("GET", call).status_code) == (404, 401)
