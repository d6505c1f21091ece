"""A run's weights: adapters to take away, and a checkpoint asked a prompt."""

from __future__ import annotations

from typing import Any

from django.http import Http404, HttpRequest, StreamingHttpResponse
from ninja import Router, Status

from headrace.api.callers import caller_of, run_of
from headrace.api.description import file_answer
from headrace.api.schemas import ExportOut, ProbeIn, ProbeOut
from headrace.artifacts import downloads, places, selectors, services
from headrace.artifacts.models import Export, JobState, Probe
from headrace.experiments.models import Artifact, Run
from headrace.experiments.problems import BadInput
from headrace.teams.services import NotAllowed

router = Router(tags=["files"])

_FILE = file_answer("application/octet-stream", "application/zip")


@router.post("/{run_id}/artifacts/{artifact_id}/export", response=ExportOut, summary="Make an adapter ready")
def export_adapter(request: HttpRequest, run_id: str, artifact_id: str) -> dict[str, Any]:
    """In the layout of PEFT with a model card, as a zip. Ask again until it is done; what is done is kept."""
    caller = caller_of(request)
    artifact = _artifact(run_of(caller, run_id), artifact_id)
    export = services.ask_export(artifact, caller.user)
    return _export(Export.objects.for_team(artifact.team_id).select_related("result").get(pk=export.pk))


@router.get("/{run_id}/artifacts/{artifact_id}/download", summary="Download a file", openapi_extra=_FILE)
def download(request: HttpRequest, run_id: str, artifact_id: str) -> StreamingHttpResponse:
    """The zip of an export, or an upload's file."""
    return downloads.response(request, _artifact(run_of(caller_of(request), run_id), artifact_id))


@router.post("/{run_id}/probes", response={201: ProbeOut}, summary="Ask the weights")
def ask(request: HttpRequest, run_id: str, payload: ProbeIn) -> Status[dict[str, Any]]:
    """The base model and a checkpoint answer the same prompts; read the probe until it is done."""
    caller = caller_of(request)
    run = run_of(caller, run_id)
    if not caller.may("probe.create", run.team):
        raise NotAllowed("you may not ask this run's weights", field="run", value=run_id, cure="use a token that may write")
    checkpoint = None
    if payload.checkpoint is not None:
        checkpoint = selectors.artifact_of(run, payload.checkpoint)
        if checkpoint is None:
            raise BadInput("no such checkpoint", field="checkpoint", value=payload.checkpoint, cure="one of GET /runs/{id}/artifacts")
    made = services.ask_probe(run, caller.user, prompts=payload.prompts, sampling=dict(payload.sampling), artifact=checkpoint)
    return Status(201, _probe(made))


@router.get("/{run_id}/probes/{probe_id}", response=ProbeOut, summary="One probe")
def get_probe(request: HttpRequest, run_id: str, probe_id: str) -> dict[str, Any]:
    """With its answers, once it is done."""
    found = selectors.probe_of(run_of(caller_of(request), run_id), probe_id)
    if found is None:
        raise Http404(probe_id)
    return _probe(found)


def _artifact(run: Run, public_id: str) -> Artifact:
    found = selectors.artifact_of(run, public_id)
    if found is None:
        raise Http404(public_id)
    return found


def _export(export: Export) -> dict[str, Any]:
    ready = export.state == JobState.DONE and export.result is not None and places.is_here(export.result)
    return {
        "state": export.state,
        "download": export.result.public_id if ready and export.result else None,
        "problem": export.problem,
        "card": export.card,
    }


def _probe(probe: Probe) -> dict[str, Any]:
    return selectors.probe_row(probe, whole=True)
