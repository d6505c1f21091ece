"""The one door of this app's pages and sockets to a run: the policy decides, and what it hides does not exist."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth import HASH_SESSION_KEY, SESSION_KEY
from django.http import Http404
from django.utils.crypto import constant_time_compare

from headrace.experiments.models import Run
from headrace.experiments.selectors import runs_for
from headrace.teams.policy import can


def session_holds(session_key: str, user: Any) -> bool:
    """Whether this session still exists, is this user's, and was opened with the password the user has now."""
    held = import_module(settings.SESSION_ENGINE).SessionStore(session_key).load()
    fits = constant_time_compare(held.get(HASH_SESSION_KEY, ""), user.get_session_auth_hash())
    return fits and str(held.get(SESSION_KEY)) == str(user.pk)


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
