"""What the user menu of every page shows."""

from typing import Any

from django import template

from headrace.teams import selectors
from headrace.teams.policy import can
from headrace.teams.views import current_team

register = template.Library()


@register.simple_tag(takes_context=True)
def account_menu(context: Any) -> dict[str, Any]:
    """The signed-in person's teams, the one in view, and whether runs may be started in it."""
    request = context["request"]
    team = current_team(request)
    can_create = team is not None and can(request.user, "run.create", team)
    return {"team": team, "teams": list(selectors.teams_of(request.user)), "can_create": can_create}
