"""A run's files and probes: pages, downloads, buttons, and the JSON of probes. One team's runs only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_POST, require_safe

from headrace.artifacts import downloads, selectors, services
from headrace.experiments.forms import sentence
from headrace.experiments.models import Artifact, Run
from headrace.experiments.problems import QuotaReached, WrongState
from headrace.schema_form import lookup
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.telemetry.access import run_or_404
from headrace.telemetry.export import FORMATS, WORDS
from headrace.telemetry.queries import integer
from headrace.telemetry.views import json_of_run
from workers.contract.errors import HeadraceError


@require_safe
def files_page(request: HttpRequest, public_id: str) -> HttpResponse:
    """Checkpoints and probes on a page of their own; ?rows=1 answers with the list alone, which is what the run page's tab shows."""
    run = run_or_404(request.user, public_id)
    context = {
        "section": "runs",
        "run": run,
        "checkpoints": selectors.checkpoints(run),
        "others": selectors.others(run),
        "tables": WORDS.items(),
        "formats": FORMATS,
        "what": "adapter" if lookup(run.config.data, "lora.kind") == "adapter_only" else "model",
        "can_delete": can(request.user, "artifact.delete", run),
        "can_create": can(request.user, "run.create", run.team),
        "page_data": {"run": run.public_id},
    }
    return render(request, "runs/panels/files_rows.html" if request.GET.get("rows") else "runs/artifacts.html", context)


@require_safe
def download(request: HttpRequest, public_id: str, artifact_id: str) -> HttpResponse:
    """The zip of an export, or an upload's file."""
    return downloads.response(request, _artifact(request, public_id, artifact_id))


@require_POST
def export(request: HttpRequest, public_id: str, artifact_id: str) -> HttpResponse:
    """Makes the adapter ready to take away."""
    done = "The adapter is being made ready. Its download appears beside its checkpoint."
    return _press(request, public_id, artifact_id, services.ask_export, done)


@require_POST
def verify(request: HttpRequest, public_id: str, artifact_id: str) -> HttpResponse:
    """Hashes an artifact again."""
    return _press(
        request,
        public_id,
        artifact_id,
        services.check_artifact,
        lambda found: f"All {found['files']} files agree with what was recorded ({found['bytes']:,} bytes).",
    )


@require_POST
def delete(request: HttpRequest, public_id: str, artifact_id: str) -> HttpResponse:
    """Removes a checkpoint from the disk."""
    return _press(request, public_id, artifact_id, services.delete_artifact, "The checkpoint is deleted.")


@json_of_run
def probes(request: HttpRequest, run: Run) -> dict[str, Any]:
    """The newest probes, and what a new one may hold."""
    rows = selectors.probes(run, integer(request, "limit", 20, 1, services.KEPT_PROBES))
    usable = selectors.usable(run)
    return {
        "probes": [selectors.probe_row(probe) for probe in rows],
        "checkpoints": [
            {"id": item.public_id, "name": services.name_of(item), "step": item.step, "version": item.version} for item in usable
        ],
        "may": can(request.user, "probe.create", run),
        "model": services.model_of(run),
        "sampling": services.usual_sampling(run),
    }


@json_of_run
def probe(request: HttpRequest, run: Run, probe_id: str) -> dict[str, Any]:
    """One probe with its answers."""
    found = selectors.probe_of(run, probe_id)
    if found is None:
        raise Http404("no such probe")
    return selectors.probe_row(found, whole=True)


@require_POST
def ask(request: HttpRequest, public_id: str) -> HttpResponse:
    """prompt (up to four), checkpoint, and the sampling's fields. Answers 201 with the probe, or the fault and its field."""
    run = run_or_404(request.user, public_id)
    user: Any = request.user
    wanted = request.POST.get("checkpoint", "")
    artifact = selectors.artifact_of(run, wanted) if wanted else None
    if wanted and artifact is None:
        return _fault(HeadraceError("no such checkpoint", field="artifact", value=wanted[:40], cure="choose one from the list"), 422)
    sampling = {name: request.POST.get(name, "") for name in services.SAMPLING}
    try:
        made = services.ask_probe(run, user, prompts=request.POST.getlist("prompt"), sampling=sampling, artifact=artifact)
    except NotAllowed as fault:
        return _fault(fault, 403)
    except (QuotaReached, WrongState) as fault:
        return _fault(fault, 409)
    except HeadraceError as fault:
        return _fault(fault, 422)
    return JsonResponse(selectors.probe_row(made), status=201)


@require_POST
def cancel(request: HttpRequest, public_id: str, probe_id: str) -> HttpResponse:
    """Takes a probe back."""
    run = run_or_404(request.user, public_id)
    found = selectors.probe_of(run, probe_id)
    if found is None:
        raise Http404("no such probe")
    user: Any = request.user
    try:
        services.cancel_probe(found, user)
    except NotAllowed as fault:
        return _fault(fault, 403)
    except HeadraceError as fault:
        return _fault(fault, 409)
    return JsonResponse({"id": found.public_id})


def _artifact(request: HttpRequest, public_id: str, artifact_id: str) -> Artifact:
    run = run_or_404(request.user, public_id)
    found = selectors.artifact_of(run, artifact_id)
    if found is None:
        raise Http404(f"no artifact {artifact_id}")
    return found


def _press(
    request: HttpRequest, public_id: str, artifact_id: str, action: Callable[[Artifact, Any], Any], done: str | Callable[[Any], str]
) -> HttpResponse:
    """One button: the action, then back to where it was pressed, with its success or refusal in words."""
    artifact = _artifact(request, public_id, artifact_id)
    try:
        found = action(artifact, request.user)
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    except HeadraceError as fault:
        messages.error(request, sentence(fault.message, fault.cure))
    else:
        messages.success(request, done if isinstance(done, str) else done(found))
    page = f"/runs/{artifact.run.public_id}/"
    return redirect(f"{page}artifacts/" if request.POST.get("from") == "page" else f"{page}?tab=files")


def _fault(fault: HeadraceError, status: int) -> JsonResponse:
    return JsonResponse(fault.as_dict(), status=status)
