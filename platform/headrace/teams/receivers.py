"""Sign-in and sign-out go into the audit trail. Connected when the app is ready."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.signals import user_logged_in, user_logged_out, user_login_failed
from django.dispatch import receiver

from headrace.teams import audit


@receiver(user_logged_in, dispatch_uid="audit_login")
def _logged_in(user: Any, **_: Any) -> None:
    audit.record("login", user=user)


@receiver(user_logged_out, dispatch_uid="audit_logout")
def _logged_out(user: Any, **_: Any) -> None:
    if user is not None:
        audit.record("logout", user=user)


@receiver(user_login_failed, dispatch_uid="audit_login_failed")
def _login_failed(credentials: dict[str, Any], **_: Any) -> None:
    name = str(credentials.get("username") or credentials.get("email") or "")
    audit.record("login.failed", actor="anonymous", detail={"email": name[:254]})
