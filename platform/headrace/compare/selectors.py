"""Reads of saved views and of the runs that are compared."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from headrace.compare import query, where
from headrace.compare.models import SavedView
from headrace.experiments.models import Run
from headrace.experiments.selectors import runs_for
from headrace.teams.models import Team

MOST_RUNS = 32


def views_for(user: Any, team: Team | None = None, page: str = "") -> QuerySet[SavedView]:
    """Saved views the user may see, by name."""
    views = SavedView.objects.for_user(user).select_related("team", "created_by")
    if team is not None:
        views = views.filter(team=team)
    return (views.filter(page=page) if page else views).order_by("name", "pk")


def view_for(user: Any, public_id: str) -> SavedView:
    """One saved view. Raises SavedView.DoesNotExist."""
    return views_for(user).get(public_id=public_id)


def runs_by_id(user: Any, team: Team, ids: list[str], most: int) -> list[Run]:
    """The team's runs of these ids, in the order given; what is not there, or not for this user, is left out."""
    wanted = list(dict.fromkeys(ids))[:most]
    found = {run.public_id: run for run in runs_for(user, team).select_related("experiment", "team").filter(public_id__in=wanted)}
    return [found[public_id] for public_id in wanted if public_id in found]


def runs_by_query(user: Any, team: Team, text: str) -> list[Run]:
    """The first MOST_RUNS runs that fit, and one more where there are more. Raises QueryError."""
    runs = runs_for(user, team).select_related("experiment", "team")
    found, mentioned = where.apply(runs, query.parse(text), team=team, user=user)
    if "archived" not in mentioned:
        found = found.filter(archived_at=None)
    return list(found[: MOST_RUNS + 1])
