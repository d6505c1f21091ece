"""Headers that Django does not set itself."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse

HEADERS = {
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
    "Cross-Origin-Resource-Policy": "same-origin",
    "X-Permitted-Cross-Domain-Policies": "none",
}


class SecurityHeaders:
    """Adds HEADERS to every response, and forbids storing pages of a signed-in user."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if self.is_async:
            return self._later(request)
        return self._finish(request, self.get_response(request))  # type: ignore[arg-type]

    async def _later(self, request: HttpRequest) -> HttpResponse:
        return self._finish(request, await self.get_response(request))  # type: ignore[misc]

    @staticmethod
    def _finish(request: HttpRequest, response: HttpResponse) -> HttpResponse:
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        # `_cached_user` is set once a view or middleware looked at the session: such pages hold personal data.
        if getattr(request, "_cached_user", None) is not None:
            response.headers.setdefault("Cache-Control", "private, no-store")
        return response
