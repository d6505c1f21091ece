"""Browser sessions of a person: named where they began, ended one by one or all together. Ending one takes effect with its next request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.contrib.auth import SESSION_KEY
from django.contrib.sessions.models import Session
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from headrace.teams import audit
from headrace.teams.models import SignIn, User

MOST_SHOWN = 50


@dataclass(frozen=True)
class Shown:
    """A session as its owner sees it."""

    public_id: str
    device: str
    address: str
    created_at: datetime
    is_this: bool


def noted(request: HttpRequest | None, user: User) -> None:
    """Called at every sign-in and when a session's key changed: the session gets its row, rows without a session go."""
    session = getattr(request, "session", None)
    if request is None or session is None:
        return
    if not session.session_key:
        session.create()
    mine = SignIn.objects.filter(user=user)
    mine.exclude(session_key__in=_live_keys([row.session_key for row in mine])).delete()
    told = {"address": request.META.get("REMOTE_ADDR", "")[:45], "agent": request.META.get("HTTP_USER_AGENT", "")[:300]}
    SignIn.objects.update_or_create(session_key=session.session_key, defaults={"user": user, **told})


def forgotten(request: HttpRequest | None) -> None:
    """Called at sign-out, before the session is gone."""
    key = getattr(getattr(request, "session", None), "session_key", None)
    if key:
        SignIn.objects.filter(session_key=key).delete()


def sessions_of(user: User, current_key: str | None) -> list[Shown]:
    """The person's live sessions, this browser's first, then newest first."""
    rows = list(SignIn.objects.filter(user=user).order_by("-created_at")[:MOST_SHOWN])
    live = _live_keys([row.session_key for row in rows])
    shown = [
        Shown(row.public_id, device(row.agent), row.address, row.created_at, row.session_key == current_key)
        for row in rows
        if row.session_key in live
    ]
    return sorted(shown, key=lambda row: not row.is_this)


def end_session(user: User, public_id: str) -> bool:
    """Ends one of the person's own sessions. False: there is none of this name."""
    row = SignIn.objects.filter(user=user, public_id=public_id).first()
    if row is None:
        return False
    Session.objects.filter(session_key=row.session_key).delete()
    row.delete()
    audit.record("session.end", user=user, obj=user, detail={"device": device(row.agent)})
    return True


@transaction.atomic
def end_others(user: User, current_key: str | None) -> int:
    """Ends every session of the person but this one, known by a row or not. Returns how many."""
    keys = [
        session.session_key
        for session in Session.objects.filter(expire_date__gt=timezone.now()).exclude(session_key=current_key or "").iterator()
        if str(session.get_decoded().get(SESSION_KEY, "")) == str(user.pk)
    ]
    for start in range(0, len(keys), 500):
        Session.objects.filter(session_key__in=keys[start : start + 500]).delete()
    SignIn.objects.filter(user=user).exclude(session_key=current_key or "").delete()
    audit.record("session.end_others", user=user, obj=user, detail={"sessions": len(keys)})
    return len(keys)


def device(agent: str) -> str:
    """Browser and system in words, from what the browser says of itself. The text is whatever a client sent: shown, never trusted."""
    browsers: dict[str, Any] = {
        "Edg/": "Edge",
        "OPR/": "Opera",
        "Firefox/": "Firefox",
        "Chrome/": "Chrome",
        "Safari/": "Safari",
        "curl/": "curl",
    }
    systems = {"Android": "Android", "iPhone": "iPhone", "iPad": "iPad", "Windows": "Windows", "Mac OS X": "macOS", "Linux": "Linux"}
    browser = next((name for mark, name in browsers.items() if mark in agent), "")
    system = next((name for mark, name in systems.items() if mark in agent), "")
    return " on ".join(filter(None, (browser, system))) or agent[:40] or "unknown device"


def _live_keys(keys: list[str]) -> set[str]:
    return set(Session.objects.filter(session_key__in=keys, expire_date__gt=timezone.now()).values_list("session_key", flat=True))
