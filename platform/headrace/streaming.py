"""Long answers in pieces: a plain generator becomes a response that holds one piece at a time, whichever way the server runs."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from asgiref.sync import sync_to_async
from django.core.handlers.asgi import ASGIRequest
from django.http import HttpRequest, StreamingHttpResponse

_END = object()


def attachment(request: HttpRequest, pieces: Iterator[bytes], *, name: str, content_type: str) -> StreamingHttpResponse:
    """A file that the browser saves and never shows. `name` holds ASCII letters, digits, dots, dashes and underscores only.

    Raises whatever the generator raises before its first piece, so that a refusal is still an error answer.
    """
    first = next(pieces, b"")
    whole = _chained(first, pieces)
    response = StreamingHttpResponse(_in_thread(whole) if isinstance(request, ASGIRequest) else whole, content_type=content_type)
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    response["X-Content-Type-Options"] = "nosniff"
    response["Content-Security-Policy"] = "sandbox; default-src 'none'"
    return response


def _chained(first: bytes, rest: Iterator[bytes]) -> Iterator[bytes]:
    if first:
        yield first
    yield from rest


async def _in_thread(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Given a plain iterator, Django would read all of it into memory under ASGI before it sends a byte."""
    while (piece := await sync_to_async(next)(pieces, _END)) is not _END:
        yield piece  # type: ignore[misc]
