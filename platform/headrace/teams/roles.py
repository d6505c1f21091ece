"""What each role may do, in words, read from the policy's table: the page can say nothing else than what `can` answers."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.teams.models import Role
from headrace.teams.policy import ACTIONS, OWN_ONLY, RANK

SUMMARIES = {
    Role.VIEWER: "Watches: sees every run, comparison and sample of the team.",
    Role.MEMBER: "Works: starts runs, and steers and edits what they started.",
    Role.MAINTAINER: "Keeps order: steers and edits everybody's runs, projects and alerts, and revokes tokens.",
    Role.OWNER: "Decides: who is in the team, what is kept how long, quotas, clusters, and reads the audit trail.",
}
NOUNS = {
    "team": "the team",
    "member": "members and their roles",
    "invitation": "invitations",
    "token": "API tokens",
    "project": "projects",
    "experiment": "experiments",
    "config": "configs",
    "run": "runs",
    "artifact": "files of runs",
    "cluster": "clusters",
    "view": "saved views",
    "race": "races of presets",
    "alert": "alerts",
    "channel": "alert channels",
    "metrics": "server metrics",
    "queue": "the queue's order",
    "quota": "quotas",
    "retention": "how long traces are kept",
    "audit": "the audit trail",
    "probe": "probes of a model",
}
VERBS = {
    "view": "See",
    "create": "Make",
    "edit": "Change",
    "delete": "Delete",
    "cancel": "Cancel and stop",
    "resume": "Resume",
    "revoke": "Revoke",
}
ORDER = ("view", "create", "cancel", "resume", "edit", "revoke", "delete")


@dataclass(frozen=True)
class Row:
    """One action: for each role, from viewer to owner, "yes", "own" (what they made themselves) or "no"."""

    words: str
    cells: tuple[str, ...]


@dataclass(frozen=True)
class RoleTable:
    """Summaries by role, and every action of the policy."""

    roles: tuple[tuple[str, str], ...]
    rows: tuple[Row, ...]


def words(action: str) -> str:
    """An action as a person says it: `run.cancel` is "Cancel and stop runs"."""
    noun, _, verb = action.partition(".")
    return f"{VERBS.get(verb, verb.capitalize())} {NOUNS.get(noun, noun)}"


def table() -> RoleTable:
    """The whole policy, the least demanding actions first."""
    actions = sorted(ACTIONS, key=lambda action: (RANK[ACTIONS[action]], _place(action), action))
    rows = tuple(Row(words(action), tuple(_cell(role, action) for role in Role)) for action in actions)
    return RoleTable(tuple((role.label, SUMMARIES[role]) for role in Role), rows)


def _place(action: str) -> int:
    verb = action.partition(".")[2]
    return ORDER.index(verb) if verb in ORDER else len(ORDER)


def _cell(role: Role, action: str) -> str:
    if RANK[role] >= RANK[ACTIONS[action]]:
        return "yes"
    return "own" if action in OWN_ONLY and RANK[role] >= RANK[OWN_ONLY[action]] else "no"
