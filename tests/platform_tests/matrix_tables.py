"""What every address is for: the action of the policy, the object it is asked of and what is sent. Read by `test_matrix`."""

from __future__ import annotations

from typing import Any

V1 = "/api/v1"
# Not of a team: what they show is the same for everybody who is signed in, or nobody's but the caller's.
APART = {
    r"/healthz/(live|ready)": "says only whether the server works",
    r"/(login|logout)/": "signing in and out",
    r"/(setup|invite)/.*": "opened by its own one-use secret; tests of invitations",
    r"/metrics": "tokens alone; `test_the_metrics_page_is_for_tokens`",
    r"/api/v1/attempts/.*": "the token of that attempt alone; `test_an_attempts_token_opens_nothing_else`",
    r"/api/v1/(openapi.json)?": "the description, behind the login",
    r"/help/.*": "words of the product",
    r"/": "leads to the runs",
    r"/admin/.*": "administrators of the server, who see every team; tests of the admin",
}

# Action of the policy by address. The longest beginning that fits an address counts; None: for everybody who is signed in.
READS: dict[str, str | None] = {
    "/runs/": "run.view",
    "/runs/new/": "run.create",
    "/runs/{run}/edit/": "run.edit",
    "/runs/{run}/resume/": "run.resume",
    "/runs/{run}/artifacts/{artifact}/download/": "artifact.view",
    "/search.json": "run.view",
    "/compare/": "run.view",
    "/sweeps/": "run.view",
    "/views/": "view.view",
    "/races/": "race.view",
    "/races/new/": "race.create",
    "/alerts/": "alert.view",
    "/alerts/rules/new/": "alert.create",
    "/alerts/channels/": "channel.edit",
    "/queue/": "cluster.view",
    "/team/": "team.view",
    "/team/invitations/": "invitation.edit",
    "/team/audit/": "audit.view",
    "/team/projects/": "project.view",
    "/team/projects/{project}/experiments/{experiment}/": "experiment.edit",
    "/account/": None,
}
# action, the object it is asked of (by default the last in the address, else the team), and what is sent
PROJECT = "/team/projects/{project}/"
EXPERIMENT = PROJECT + "experiments/{experiment}/"
RUN = "/runs/{run}/"
FILE = RUN + "artifacts/{artifact}/"
RULE = {"name": "a rule", "states": "failed", "severity": "warning", "cooldown_s": "900", "enabled": "on"}
HOOK = {"name": "a channel", "url": "https://hooks.example.org/x", "enabled": "on"}
LAUNCH = {"action": "launch", "name": "n", "preset_name": "demo", "idempotency_key": "k"}
WRITES: dict[str, list[tuple[str | None, str, dict[str, Any]]]] = {
    "/runs/new/": [("run.create", "team", LAUNCH)],
    "/runs/new/forecast.json": [("run.create", "team", LAUNCH)],
    "/runs/new/check.json": [("run.create", "team", LAUNCH)],
    RUN + "cancel/": [("run.cancel", "run", {})],
    RUN + "resume/": [("run.resume", "run", {})],
    RUN + "checkpoint/": [("run.edit", "run", {})],
    RUN + "stop/": [("run.cancel", "run", {})],
    RUN + "pause/": [("run.edit", "run", {})],
    RUN + "go-on/": [("run.edit", "run", {})],
    RUN + "budget/": [("run.edit", "run", {"steps": "50"})],
    RUN + "edit/": [("run.edit", "run", {"name": "x", "note": "", "tags": ""})],
    RUN + "delete/": [("run.delete", "run", {})],
    RUN + "priority/": [("queue.edit", "run", {"priority": "1"})],
    RUN + "probes/": [("probe.create", "run", {"prompt": "2 + 2", "prompts": "2 + 2"})],
    RUN + "probes/{probe}/cancel/": [("probe.create", "probe", {})],
    FILE + "export/": [("artifact.view", "artifact", {})],
    FILE + "verify/": [("artifact.view", "artifact", {})],
    FILE + "delete/": [("artifact.delete", "artifact", {})],
    PROJECT: [("project.edit", "project", {"save": "1", "name": "x"}), ("experiment.create", "project", {"create": "1", "new-name": "x"})],
    PROJECT + "archive/": [("project.edit", "project", {"archived": "1"})],
    EXPERIMENT: [("experiment.edit", "experiment", {"name": "x"})],
    EXPERIMENT + "archive/": [("experiment.edit", "experiment", {"archived": "1"})],
    "/team/projects/": [("project.create", "team", {"name": "another"})],
    "/team/storage/": [("retention.edit", "team", {"events": "400", "confirmed": "1"})],
    "/team/storage/runs/{run}/keep/": [("run.edit", "run", {"keep": "1"})],
    "/team/storage/runs/{run}/restore/": [("run.delete", "run", {})],
    "/team/": [("member.edit", "team", {"email": "viewer@alphaword.example", "role": "member"})],
    "/team/leave/": [("team.view", "team", {})],
    "/team/invitations/": [("invitation.edit", "team", {"role": "viewer", "days": "7", "email": ""})],
    "/team/invitations/{invitation}/revoke/": [("invitation.edit", "invitation", {})],
    "/team/tokens/{token}/revoke/": [("token.revoke", "token", {})],
    "/team/audit/verify/": [("audit.view", "team", {})],
    "/team/settings/": [("team.edit", "team", {"name": "x"})],
    "/account/": [("token.create", "team", {"name": "x", "scope": "read", "days": "7"})],
    "/account/profile/": [(None, "team", {"name": "x"})],
    "/account/password/": [(None, "team", {"old": "x", "new": "y"})],
    "/account/sessions/end-others/": [(None, "team", {})],
    "/account/sessions/{session}/end/": [(None, "team", {})],
    "/account/tokens/{token}/revoke/": [("token.revoke", "token", {})],
    "/account/tokens/{token}/rotate/": [("token.create", "team", {})],
    "/account/team/": [(None, "team", {"team": "{team}"})],
    "/runs/bulk/": [(None, "team", {"action": "tag", "tag": "t", "run": "{run}"})],  # refused run by run: its own test
    "/views/save/": [("view.create", "team", {"page": "runs", "name": "n", "query": ""})],
    "/views/{view}/rename/": [("view.edit", "view", {"name": "x"})],
    "/views/{view}/delete/": [("view.edit", "view", {})],
    "/races/new/": [("race.create", "team", {"action": "start"})],
    "/races/preview/": [("race.create", "team", {}), ("race.create", "team", {"action": "plan"})],
    "/races/{race}/pause/": [("race.edit", "race", {})],
    "/sweeps/{sweep}/cancel/": [("run.cancel", "sweep", {})],
    "/alerts/ready-made/": [("alert.create", "team", {})],
    "/alerts/rules/new/": [("alert.create", "team", {"?": "kind=state", **RULE})],
    "/alerts/rules/{rule}/": [("alert.edit", "rule", RULE)],
    "/alerts/rules/{rule}/delete/": [("alert.edit", "rule", {})],
    "/alerts/rules/{rule}/switch/": [("alert.edit", "rule", {"enabled": "1"})],
    "/alerts/channels/new/": [("channel.edit", "team", HOOK)],
    "/alerts/channels/{channel}/": [("channel.edit", "channel", HOOK)],
    "/alerts/channels/{channel}/test/": [("channel.edit", "channel", {})],
    "/alerts/channels/{channel}/delete/": [("channel.edit", "channel", {})],
    "/queue/quota/": [("quota.edit", "team", {"most_running": "3"})],
    "/queue/price/": [("cluster.edit", "cluster", {"price": "1", "currency": "EUR"})],
}
# The API: method and path, as the OpenAPI description writes them but for the names of ids.
NEW = {"name": "n", "config": {"preset": "demo", "budget": {"steps": 2}}, "idempotency_key": "k"}
SPEC = {
    "contenders": [{"preset": "trl-sync"}, {"preset": "trl-async"}],
    "seeds": [1],
    "stop": {"kind": "wall_s", "value": 60},
    "devices": 3,
}
CALLS: dict[str, tuple[str | None, str, dict[str, Any]]] = {
    "GET /runs": ("run.view", "team", {}),
    "POST /runs": ("run.create", "team", NEW),
    "GET /runs/{run}": ("run.view", "run", {}),
    "PATCH /runs/{run}": ("run.edit", "run", {"name": "x"}),
    "DELETE /runs/{run}": ("run.delete", "run", {}),
    "POST /runs/{run}/cancel": ("run.cancel", "run", {}),
    "POST /runs/{run}/resume": ("run.resume", "run", {}),
    "POST /runs/{run}/pause": ("run.edit", "run", {}),
    "POST /runs/{run}/continue": ("run.edit", "run", {}),
    "POST /runs/{run}/stop": ("run.cancel", "run", {}),
    "POST /runs/{run}/checkpoint": ("run.edit", "run", {}),
    "POST /runs/{run}/extend": ("run.edit", "run", {"steps": 50}),
    "POST /runs/{run}/priority": ("queue.edit", "run", {"priority": 1}),
    "GET /runs/{run}/snapshot": ("run.view", "run", {}),
    "GET /runs/{run}/series": ("run.view", "run", {}),
    "GET /runs/{run}/events": ("run.view", "run", {}),
    "GET /runs/{run}/samples": ("run.view", "run", {}),
    "GET /runs/{run}/logs": ("run.view", "run", {}),
    "GET /runs/{run}/artifacts": ("run.view", "run", {}),
    "GET /runs/{run}/export": ("run.view", "run", {}),
    "POST /runs/{run}/artifacts/{artifact}/export": ("artifact.view", "artifact", {}),
    "GET /runs/{run}/artifacts/{artifact}/download": ("artifact.view", "artifact", {}),
    "POST /runs/{run}/probes": ("probe.create", "run", {"prompts": ["2 + 2"]}),
    "GET /runs/{run}/probes/{probe}": ("run.view", "probe", {}),
    "POST /uploads": ("run.create", "team", NEW),
    "GET /config/schema": ("config.view", "team", {}),
    "POST /config/check": ("config.view", "team", {"preset": "demo"}),
    "GET /presets": ("config.view", "team", {}),
    "GET /me": ("team.view", "team", {}),
    "GET /projects": ("project.view", "team", {}),
    "GET /compare": ("run.view", "run", {}),
    "GET /queue": ("run.view", "team", {}),
    "POST /sweeps": ("run.create", "team", {**NEW, "seeds": [1]}),
    "GET /sweeps/{sweep}": ("run.view", "sweep", {}),
    "POST /sweeps/{sweep}/cancel": ("run.cancel", "sweep", {}),
    "GET /races": ("race.view", "team", {}),
    "POST /races": ("race.create", "team", {"name": "n", "spec": SPEC, "idempotency_key": "k"}),
    "GET /races/{race}": ("race.view", "race", {}),
    "POST /races/{race}/pause": ("race.edit", "race", {}),
    "POST /races/{race}/resume": ("race.edit", "race", {}),
    "POST /races/{race}/cancel": ("race.edit", "race", {}),
    "GET /races/{race}/report.csv": ("race.view", "race", {}),
    "GET /views": ("view.view", "team", {}),
    "POST /views": ("view.create", "team", {"page": "runs", "name": "n"}),
    "DELETE /views/{view}": ("view.edit", "view", {}),
}
# What reads need besides an id, and the state in which an object takes a write.
QUERY = "?names=reward/mean&t=1700000003&runs={run}"
SAMPLE_SEQ = 4
OVER = ("resume/", "/resume", "delete/")
QUEUED = ("/priority", "/priority/")
ALSO_READ = (
    "/team/projects/",
    PROJECT,
    "/team/storage/",
    "/team/settings/",
    "/alerts/rules/{rule}/",
    "/alerts/channels/{channel}/",
    "/account/",
)
