"""What drivers and `ship` call, with the token of one attempt: append events, ask for the mark."""

from __future__ import annotations

from typing import Any

from django.http import HttpRequest, HttpResponse
from ninja import Router

from headrace.api.auth import AttemptTokenAuth
from headrace.experiments.models import Attempt
from headrace.telemetry import codec
from headrace.telemetry.ingest import heard, ingest
from headrace.telemetry.problems import BadBody, TooLarge
from workers.contract.events import MAX_BATCH_BYTES, EventBatch, IngestReply
from workers.contract.failpoints import reached

router = Router(tags=["attempts"], auth=AttemptTokenAuth())

_BATCH_BODY = {
    "requestBody": {
        "required": True,
        "description": "Gzip is welcome: Content-Encoding: gzip.",
        "content": {"application/json": {"schema": EventBatch.model_json_schema()}},
    },
}


@router.post("/{attempt_id}/events", response=IngestReply, openapi_extra=_BATCH_BODY, summary="Append events")
def append_events(request: HttpRequest, attempt_id: str, replay: bool = False) -> HttpResponse:
    """Store a batch exactly once. `replay` is for the spool of an attempt that a newer one has superseded.

    200 the new mark and what the run's people ask; 409 `gap` with `expected`, `conflict` with `seq`, or `fenced`; 413 too large.
    """
    attempt: Attempt = request.auth  # type: ignore[attr-defined]
    fence, columns = codec.parse_batch(codec.read_body(_body(request), request.headers.get("Content-Encoding", "")))
    reply = ingest(attempt.public_id, fence, columns, replay=replay)
    reached("ingest.committed")
    return HttpResponse(reply.model_dump_json(), content_type="application/json")


@router.get("/{attempt_id}/mark", summary="How far the server has the events")
def mark(request: HttpRequest, attempt_id: str, replay: bool = False) -> dict[str, Any]:
    """Where a sender goes on: the last seq stored and the attempt's fence. With `control`, as after a batch; counts as a heartbeat.

    `replay`, as for events: a spool is read back, which says nothing about its driver.
    """
    attempt: Attempt = request.auth  # type: ignore[attr-defined]
    return {"attempt": attempt.public_id, "fence": attempt.fence, **heard(attempt, replay=replay).model_dump()}


def _body(request: HttpRequest) -> bytes:
    """The raw body, never more of it than a batch may have, whatever Content-Length says or leaves out."""
    cure = f"at most {MAX_BATCH_BYTES} bytes a batch; send fewer events"
    length = request.headers.get("Content-Length", "")
    if length.isdigit() and int(length) > MAX_BATCH_BYTES:
        raise TooLarge("the body is too large", field="body", value=int(length), cure=cure)
    try:
        return request.read(MAX_BATCH_BYTES + 1)  # one byte too many is refused by read_body
    except OSError as error:
        raise BadBody("the body broke off", field="body", cure="send it again", retryable=True) from error
