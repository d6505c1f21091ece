"""The one door of this app's pages and sockets to a run: the policy decides, and what it hides does not exist."""

from __future__ import annotations

from typing import Any

from django.http import Http404

from headrace.experiments.models import Run
from headrace.experiments.selectors import runs_for
from headrace.teams.policy import can


def visible_run(user: Any, public_id: str) -> Run | None:
    """The run, if this user is signed in, active and may view it; otherwise None."""
    run = runs_for(user).filter(public_id=public_id).select_related("team").first()
    return run if run is not None and can(user, "run.view", run) else None


def run_or_404(user: Any, public_id: str) -> Run:
    """As `visible_run`, for views: another team's run answers as one that never was."""
    run = visible_run(user, public_id)
    if run is None:
        raise Http404(f"no run {public_id}")
    return run
