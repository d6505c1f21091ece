"""A stored file on its way out: in pieces, as an attachment. Called by the page and by the API."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from django.http import Http404, HttpRequest, StreamingHttpResponse

from headrace import streaming
from headrace.artifacts import places
from headrace.experiments.models import Artifact

PIECE = 1 << 20


def response(request: HttpRequest, artifact: Artifact) -> StreamingHttpResponse:
    """The zip of an export, or an upload's file. A checkpoint itself is not handed out: its export is. Raises Http404."""
    if artifact.kind == Artifact.Kind.CHECKPOINT or artifact.state != Artifact.State.COMPLETE:
        raise Http404("nothing to download")
    try:
        path = places.locate(artifact)
    except places.NotHere as fault:
        raise Http404(fault.message) from None
    if not path.is_file():
        raise Http404("nothing to download")
    name = f"{artifact.run.public_id}-{_plain_name(path.name)}"
    kind = "application/zip" if path.suffix == ".zip" else "application/octet-stream"
    answer = streaming.attachment(request, _pieces(path), name=name, content_type=kind)
    answer["Content-Length"] = str(path.stat().st_size)
    return answer


def _plain_name(name: str) -> str:
    return "".join(letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in name)[:100]


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while piece := stream.read(PIECE):
            yield piece
