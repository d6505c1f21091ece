"""What every team page shows: the tabs that its reader may open."""

from __future__ import annotations

from typing import Any

from django import template

from headrace.teams.policy import ACTIONS, RANK, role_in

register = template.Library()

TABS = (
    ("members", "/team/", "Members", "team.view"),
    ("invitations", "/team/invitations/", "Invitations", "invitation.edit"),
    ("tokens", "/team/tokens/", "API tokens", "team.view"),
    ("projects", "/team/projects/", "Projects", "project.view"),
    ("audit", "/team/audit/", "Audit", "audit.view"),
    ("storage", "/team/storage/", "Storage", "team.view"),
    ("settings", "/team/settings/", "Settings", "team.view"),
)


@register.inclusion_tag("team/nav.html", takes_context=True)
def team_nav(context: Any) -> dict[str, Any]:
    """One query: the role decides every tab."""
    team, user = context["team"], context["request"].user
    role = role_in(user, team)
    shown = [tab for tab in TABS if role is not None and RANK[role] >= RANK[ACTIONS[tab[3]]]]
    return {"tabs": shown, "tab": context.get("tab"), "team": team, "role": role.label if role else ""}
