"""What a run did: series, events, samples, log lines, files, and whole tables for other tools."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, StreamingHttpResponse
from ninja import Query, Router

from headrace.api.callers import caller_of, run_of
from headrace.api.description import file_answer
from headrace.api.schemas import ArtifactsOut, EventsOut, ExportFormat, ExportTable, LogsOut, SamplesOut, SeriesOut
from headrace.experiments import selectors as runs_selectors
from headrace.experiments.models import Attempt, Run
from headrace.experiments.problems import BadInput
from headrace.streaming import attachment
from headrace.teams import audit
from headrace.telemetry import export, selectors, series
from headrace.telemetry.derive import OUTCOMES, check_name
from workers.contract.events import MAX_BATCH_EVENTS

router = Router(tags=["history"])

_BIGINT = 2**63 - 1
_TABLE = file_answer(*(kind for _, kind in export.FORMATS.values()))


@router.get("/{run_id}/snapshot", summary="The run at a glance")
def snapshot(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Flow, both ledgers, evaluations, the newest samples and log lines: what the run's page shows first."""
    return selectors.snapshot(run_of(caller_of(request), run_id))


@router.get("/{run_id}/series", response=SeriesOut, summary="Series for charts")
def read_series(
    request: HttpRequest,
    run_id: str,
    names: str,
    x: str = "step",
    start: float | None = Query(None, alias="from", allow_inf_nan=False),
    end: float | None = Query(None, alias="to", allow_inf_nan=False),
    buckets: int = Query(500, ge=2, le=series.MAX_BUCKETS),
) -> dict[str, Any]:
    """`names`: up to 64, by comma. `x`: step or time; `from` and `to` are of that axis. At most `buckets` rows a series."""
    run = run_of(caller_of(request), run_id)
    wanted = [check_name(name, "names") for name in names.split(",") if name]
    if not wanted or len(wanted) > series.MAX_NAMES:
        raise BadInput("not 1 to 64 names", field="names", value=len(wanted), cure="series names by comma; GET /runs/{id} lists them")
    if x not in ("step", "time"):
        raise BadInput("not an axis", field="x", value=x, cure="step or time")
    attempt = selectors.current_attempt(run)
    columns = series.read(run, wanted, x="step" if x == "step" else "time", lo=start, hi=end, buckets=buckets)
    return {"series": columns, "through_seq": attempt.ingested_through if attempt else 0}


@router.get("/{run_id}/events", response=EventsOut, summary="Stored events")
def read_events(
    request: HttpRequest,
    run_id: str,
    attempt: int | None = Query(None, ge=1, le=2**31 - 1),
    after: int = Query(0, ge=0, le=_BIGINT),
    limit: int = Query(MAX_BATCH_EVENTS, ge=1, le=MAX_BATCH_EVENTS),
) -> dict[str, Any]:
    """Events of one attempt beyond `after`, oldest first; ask again with the last seq to follow a run."""
    found = _attempt(run_of(caller_of(request), run_id), attempt)
    if found is None:
        return {"attempt": None, "through_seq": 0, "events": []}
    return {"attempt": found.number, "through_seq": found.ingested_through, "events": selectors.events(found, after, limit)}


@router.get("/{run_id}/samples", response=SamplesOut, summary="Samples")
def read_samples(
    request: HttpRequest,
    run_id: str,
    step: int | None = Query(None, ge=0, le=_BIGINT),
    outcome: str = "",
    text: str = Query("", max_length=200),
    limit: int = Query(selectors.MAX_SAMPLES, ge=1, le=selectors.MAX_SAMPLES),
) -> dict[str, Any]:
    """The newest samples that fit."""
    run = run_of(caller_of(request), run_id)
    if outcome and outcome not in OUTCOMES:
        raise BadInput("not an outcome", field="outcome", value=outcome, cure=f"one of {', '.join(OUTCOMES)}")
    return {"samples": selectors.samples(run, step=step, outcome=outcome, text=text.replace("\x00", ""), limit=limit)}


@router.get("/{run_id}/logs", response=LogsOut, summary="Log lines")
def read_logs(
    request: HttpRequest,
    run_id: str,
    attempt: int | None = Query(None, ge=1, le=2**31 - 1),
    after: int | None = Query(None, ge=0, le=_BIGINT),
    limit: int = Query(selectors.MAX_LOG_LINES, ge=1, le=selectors.MAX_LOG_LINES),
) -> dict[str, Any]:
    """Oldest first; without `after` the last ones."""
    found = _attempt(run_of(caller_of(request), run_id), attempt)
    if found is None:
        return {"attempt": None, "logs": []}
    return {"attempt": found.number, "logs": selectors.logs(found, after=after, limit=limit)}


@router.get("/{run_id}/artifacts", response=ArtifactsOut, summary="Files")
def list_artifacts(request: HttpRequest, run_id: str) -> dict[str, Any]:
    """Checkpoints and exports, newest first."""
    caller = caller_of(request)
    run = run_of(caller, run_id)
    rows = [
        {
            "id": row.public_id,
            "kind": row.kind,
            "state": row.state,
            "step": row.step,
            "version": row.version,
            "bytes": row.bytes,
            "sha256": row.sha256,
            "created": row.created_at.isoformat(),
        }
        for row in runs_selectors.artifacts_of(run)[:1000]
    ]
    return {"artifacts": rows}


@router.get("/{run_id}/export", summary="A whole table as a file", openapi_extra=_TABLE)
def export_table(
    request: HttpRequest, run_id: str, what: ExportTable = "series", format: ExportFormat = "parquet", names: str = ""
) -> StreamingHttpResponse:
    """Every point, sample, log line or event of the run. `names`: these series alone, by comma."""
    caller = caller_of(request)
    run = run_of(caller, run_id)
    wanted = [check_name(name, "names") for name in names.split(",") if name]
    pieces = export.export(run, what, format, wanted)
    audit.record("run.export", user=caller.user, team=run.team, obj=run, detail={"what": what, "format": format})
    return attachment(request, pieces, name=f"{run.public_id}-{what}.{format}", content_type=export.content_type(format))


def _attempt(run: Run, number: int | None) -> Attempt | None:
    """The run's newest attempt, or the one of this number. Raises Http404."""
    if number is None:
        return selectors.current_attempt(run)
    found = selectors.attempt_numbered(run, number)
    if found is None:
        raise Http404(f"attempt {number}")
    return found
