"""What the run page shows before its modules have loaded: the parts that they fill take up their room at once, so that nothing jumps."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from django import template
from django.utils import timezone

from headrace.experiments.models import Attempt, Run
from headrace.experiments.states import RunState

register = template.Library()

QUIET_AFTER = timedelta(seconds=15)  # as QUIET_S in js/run/head.js


@register.simple_tag
def first_sight(run: Run) -> dict[str, Any]:
    """Called by runs/detail.html: {started, quiet, waits, queued, cause, facts}.

    `cause`: why a run failed or is lost, None for others; `facts` are its named parts.
    """
    attempt = Attempt.unscoped.filter(run=run).order_by("-number").only("started_at", "heartbeat_at", "exit_cause").first()
    heard = attempt.heartbeat_at if attempt else None
    said = run.outcome_cause or (attempt.exit_cause if attempt else None) or {}
    cause = said if isinstance(said, dict) else {"message": str(said)}
    named = (("Field", cause.get("field")), ("Value", cause.get("value")), ("Kind", cause.get("type")))
    return {
        "started": attempt is not None and attempt.started_at is not None,
        "quiet": run.state in (RunState.RUNNING, RunState.STOPPING) and heard is not None and timezone.now() - heard > QUIET_AFTER,
        "waits": run.state in (RunState.QUEUED, RunState.LAUNCHING),
        "queued": run.state == RunState.QUEUED,
        "cause": cause if run.state in (RunState.FAILED, RunState.LOST) else None,
        "facts": [(name, value) for name, value in named if value not in (None, "")],
    }
