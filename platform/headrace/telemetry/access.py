"""The one door of this app's pages and sockets to a run: the policy decides, and what it hides does not exist."""

from __future__ import annotations

from typing import Any

from django.http import Http404

from headrace.experiments.models import Run


def visible_run(user: Any, public_id: str) -> Run | None:
    """The run, if this user is signed in, active and a member of its team; otherwise None."""
    return Run.objects.for_user(user).filter(public_id=public_id, deleted_at=None).select_related("config", "project", "team").first()


def run_or_404(user: Any, public_id: str) -> Run:
    """As `visible_run`, for views: another team's run answers as one that never was."""
    run = visible_run(user, public_id)
    if run is None:
        raise Http404(f"no run {public_id}")
    return run
