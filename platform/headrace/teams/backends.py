"""Sign-in with a limit. It sits in the authentication backend, so that every form that signs people in has it."""

from __future__ import annotations

from typing import Any

from django.contrib.auth.backends import ModelBackend
from django.core.cache import cache
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest

from headrace.identifiers import hash_secret
from headrace.teams.models import User

WINDOW_S = 15 * 60
# Failures in a window: of one account from one address, of one address, of one account from anywhere.
PER_PAIR, PER_ADDRESS, PER_ACCOUNT = 10, 50, 100


class LimitedLogin(ModelBackend):
    """Django's own check of e-mail and password; after too many failures it says no for a while, right password or not.

    The answer is the one for a wrong password, and an unknown e-mail takes as long as a known one.
    """

    def authenticate(
        self, request: HttpRequest | None, username: str | None = None, password: str | None = None, **kwargs: Any
    ) -> User | None:
        email = (username or kwargs.get(User.USERNAME_FIELD) or "").strip().lower()
        if not email or password is None:
            return None
        address = request.META.get("REMOTE_ADDR", "") if request is not None else ""
        limits = {f"pair|{email}|{address}": PER_PAIR, f"address|{address}": PER_ADDRESS, f"account|{email}": PER_ACCOUNT}
        counters = {f"login-{hash_secret(name)}": most for name, most in limits.items()}
        if any(cache.get(key, 0) >= most for key, most in counters.items()):
            raise PermissionDenied("too many failed attempts")
        user: User | None = super().authenticate(request, username=email, password=password)
        if user is None:
            for key in counters:
                cache.add(key, 0, WINDOW_S)
                cache.incr(key)
        return user
