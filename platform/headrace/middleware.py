"""Headers that Django does not set itself."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Awaitable, Callable

from asgiref.sync import iscoroutinefunction, markcoroutinefunction
from django.http import HttpRequest, HttpResponse
from django.utils.cache import patch_vary_headers

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


class CompressedData:
    """Sends the JSON beside the pages (series, samples, timelines) compressed.

    Pages are not: they hold what a reader typed beside what nobody else may learn, and the length of a compressed page tells of both.
    """

    sync_capable = True
    async_capable = True
    AT_LEAST = 1024  # bytes; less is not worth the headers
    IN_THREAD = 65_536  # bytes; more would hold up the event loop

    def __init__(self, get_response: Callable[[HttpRequest], HttpResponse | Awaitable[HttpResponse]]) -> None:
        self.get_response = get_response
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)

    def __call__(self, request: HttpRequest) -> HttpResponse | Awaitable[HttpResponse]:
        if self.is_async:
            return self._later(request)
        response: HttpResponse = self.get_response(request)  # type: ignore[assignment]
        return self._pack(response) if self._fits(request, response) else response

    async def _later(self, request: HttpRequest) -> HttpResponse:
        response: HttpResponse = await self.get_response(request)  # type: ignore[misc]
        if not self._fits(request, response):
            return response
        return await asyncio.to_thread(self._pack, response) if len(response.content) > self.IN_THREAD else self._pack(response)

    def _fits(self, request: HttpRequest, response: HttpResponse) -> bool:
        if not request.path.endswith(".json") or response.streaming or response.headers.get("Content-Encoding"):
            return False
        if not response.headers.get("Content-Type", "").startswith("application/json") or len(response.content) < self.AT_LEAST:
            return False
        patch_vary_headers(response, ("Accept-Encoding",))
        return "gzip" in request.headers.get("Accept-Encoding", "")

    @staticmethod
    def _pack(response: HttpResponse) -> HttpResponse:
        response.content = gzip.compress(response.content, compresslevel=5, mtime=0)
        response.headers["Content-Encoding"] = "gzip"
        response.headers["Content-Length"] = str(len(response.content))
        return response
