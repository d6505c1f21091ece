"""Sign-in and sign-out go into the audit trail. Connected when the app is ready."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.core.cache import cache
from django.dispatch import receiver

from headrace.teams import audit, sessions
from headrace.teams.backends import WINDOW_S
from headrace.teams.models import User

ROWS_A_WINDOW = 20


@receiver(user_logged_in, dispatch_uid="audit_login")
def _logged_in(user: Any, request: Any = None, **_: Any) -> None:
    sessions.noted(request, user)
    audit.record("login", user=user)


@receiver(user_logged_out, dispatch_uid="audit_logout")
def _logged_out(user: Any, request: Any = None, **_: Any) -> None:
    sessions.forgotten(request)
    if user is not None:
        audit.record("logout", user=user)


@receiver(user_login_failed, dispatch_uid="audit_login_failed")
def _login_failed(credentials: dict[str, Any], **_: Any) -> None:
    """Names the account where there is one. What was typed otherwise may be a password in the wrong field: it is not kept.

    At most ROWS_A_WINDOW rows an account, and for all unknown ones together, so that guessing cannot fill the trail.
    """
    typed = str(credentials.get("username") or credentials.get("email") or "").strip()
    user = User.objects.filter(email__iexact=typed).first() if typed else None
    counter = f"audit-login-failed-{user.pk if user else 'unknown'}"
    cache.add(counter, 0, WINDOW_S)
    count = cache.incr(counter)
    if count > ROWS_A_WINDOW:
        return
    detail: dict[str, Any] = {"email": user.email} if user else {"account": "unknown"}
    if count == ROWS_A_WINDOW:
        detail["note"] = f"further failures are not written for up to {WINDOW_S // 60} minutes"
    audit.record("login.failed", actor="anonymous", detail=detail)
