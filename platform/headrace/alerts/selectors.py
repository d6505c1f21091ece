"""All reads of this app. What a user may not see does not exist: DoesNotExist, as for an id that never was."""

from __future__ import annotations

from typing import Any

from django.db.models import Count, Max, Q, QuerySet

from headrace.alerts.kinds import KINDS, describe
from headrace.alerts.models import Alert, AlertChannel, AlertRule
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput
from headrace.experiments.selectors import runs_for
from headrace.teams.models import Team

PAGE = 50
MOST_OF_RUN = 500
RUNS_OFFERED = 100


def rules_for(user: Any, team: Team) -> list[AlertRule]:
    """The team's rules, each with `words`, `fired` (times) and `last_fired`."""
    rows = AlertRule.objects.for_user(user).filter(team=team).select_related("run", "created_by").prefetch_related("channels")
    found = list(rows.annotate(fired=Count("alerts"), last_fired=Max("alerts__opened_at")).order_by("name", "pk"))
    for rule in found:
        rule.words = words_of(rule)  # type: ignore[attr-defined]
    return found


def words_of(rule: AlertRule) -> str:
    """When it fires, in a sentence."""
    try:
        return describe(rule.kind, rule.options)
    except BadInput as error:
        return f"cannot be read ({error.field}: {error.message}): edit it"


def rule_for(user: Any, public_id: str) -> AlertRule:
    """One rule. Raises AlertRule.DoesNotExist."""
    return AlertRule.objects.for_user(user).select_related("team", "run").prefetch_related("channels").get(public_id=public_id)


def channels_for(user: Any, team: Team) -> QuerySet[AlertChannel]:
    return AlertChannel.objects.for_user(user).filter(team=team).annotate(used=Count("rules")).order_by("name", "pk")


def channel_for(user: Any, public_id: str) -> AlertChannel:
    """One channel. Raises AlertChannel.DoesNotExist."""
    return AlertChannel.objects.for_user(user).select_related("team").get(public_id=public_id)


def history_for(user: Any, team: Team, *, page: int = 1, text: str = "", only_open: bool = False) -> tuple[list[Alert], bool]:
    """A page of what fired, newest first, and whether there is more."""
    rows = Alert.objects.for_user(user).filter(team=team, run__deleted_at=None)
    if only_open:
        rows = rows.filter(resolved_at=None)
    if text:
        rows = rows.filter(Q(title__icontains=text) | Q(rule_name__icontains=text) | Q(run__name__icontains=text))
    first = (page - 1) * PAGE
    found = list(rows.select_related("run").prefetch_related("deliveries").order_by("-opened_at", "-pk")[first : first + PAGE + 1])
    return found[:PAGE], len(found) > PAGE


def alerts_of(run: Run) -> list[dict[str, Any]]:
    """What fired for a run the caller may see, oldest first: the marks of its time bar and its banner."""
    rows = Alert.objects.for_team(run.team_id).filter(run=run).order_by("-opened_at", "-pk")[:MOST_OF_RUN]
    return [
        {
            "id": row.public_id,
            "t": row.t,
            "step": row.step,
            "title": row.title,
            "detail": row.detail,
            "rule": row.rule_name,
            "kind": row.kind,
            "severity": row.severity,
            "open": row.resolved_at is None,
            "held_run": row.held_run,
            "opened": row.opened_at.isoformat(),
            "resolved": row.resolved_at.isoformat() if row.resolved_at else None,
        }
        for row in reversed(rows)
    ]


def runs_offered(user: Any, team: Team) -> list[Run]:
    """The newest runs, to choose a scope or a dry run from."""
    return list(runs_for(user, team)[:RUNS_OFFERED])


def kinds() -> list[dict[str, str]]:
    return [{"kind": kind, "title": title, "words": words} for kind, (_, title, words) in KINDS.items()]
