"""Pages of runs: one run, its buttons. Thin: selectors read, services write, the policy decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST, require_safe

from headrace import figures
from headrace.experiments import foresight_words, forms, guide, listing, services
from headrace.experiments.editions import edition
from headrace.experiments.forms import EditForm
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.experiments.states import RunState
from headrace.schema_form import lookup
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.telemetry import selectors as telemetry
from headrace.telemetry.access import run_or_404
from headrace.telemetry.export import FORMATS, WORDS
from workers.contract.config import RunConfig
from workers.contract.errors import HeadraceError

# The run page's tabs, as the permalink `?tab=` names them.
TABS = (
    ("overview", "Overview"),
    ("charts", "Charts"),
    ("timeline", "Timeline"),
    ("samples", "Samples"),
    ("logs", "Logs"),
    ("files", "Files"),
    ("config", "Config"),
    ("history", "History"),
)

# Fetched side by side with the page instead of one after the other.
MODULES = tuple(
    f"js/{name}.js"
    for name in (
        "format",
        *(
            f"run/{part}"
            for part in ("attempts", "cards", "chart_card", "chartbar", "charts", "control", "dom", "explorer", "flow", "head")
        ),
        *(f"run/{part}" for part in ("ledgers", "panels", "past", "plot", "socket", "source", "store", "tabs", "travel", "url", "view")),
    )
)


@require_safe
def home(request: HttpRequest) -> HttpResponse:
    return redirect("/runs/")


@require_safe
def run_detail(request: HttpRequest, public_id: str) -> HttpResponse:
    """The frame of the live page; its modules fetch snapshot and series and join the socket."""
    run = run_or_404(request.user, public_id)
    data = run.config.data
    facts = {
        "task": lookup(data, "environment.dataset"),
        "model": lookup(data, "model.path"),
        "steps": lookup(data, "budget.steps"),
        "by": listing.maker(run),
    }
    context = {
        "section": "runs",
        "run": run,
        "tabs": TABS,
        "modules": MODULES,
        "tab": wanted if (wanted := request.GET.get("tab")) in dict(TABS) else "overview",
        "facts": facts,
        "can_control": can(request.user, "run.cancel", run),
        "can_edit": can(request.user, "run.edit", run),
        "can_create": can(request.user, "run.create", run.team),
        "cancellable": run.state in RunState.active() and run.state != RunState.STOPPING,
        "steerable": run.state in (RunState.LAUNCHING, RunState.RUNNING, RunState.PAUSED),
        "resumable": run.state in (RunState.FAILED, RunState.CANCELLED, RunState.LOST) and run.source != Run.Source.UPLOAD,
        "charts": figures.charts(),
        "config_blocks": config_blocks(data),
        "tables": WORDS.items(),
        "formats": FORMATS,
        "design": guide.design_of(data),
        "preset": guide.preset_of(run.preset),
        "foreseen": foreseen(run),
        "page_data": {
            "run": run.public_id,
            "charts": [chart.as_dict() for chart in figures.charts()],
            "series": figures.series_names(),
            "groupSize": lookup(data, "batch.group_size"),
        },
    }
    return render(request, "runs/detail.html", context)


def foreseen(run: Run) -> dict[str, Any] | None:
    """What the overview shows beside what was predicted; None: nothing was."""
    if not run.forecast:
        return None
    attempt = telemetry.current_attempt(run)
    state = telemetry.latest_state(attempt) if attempt is not None else None
    prompts, group = lookup(run.config.data, "batch.prompts"), lookup(run.config.data, "batch.group_size")
    resumed = attempt is not None and (attempt.resumed_from_id is not None or attempt.resumed_from_attempt_id is not None)
    rows = foresight_words.compared(run.forecast, state, None if resumed or not prompts or not group else prompts * group)
    return {"rows": rows, "source": run.forecast.get("source"), "step": (state or {}).get("step")}


@require_safe
def config_json(request: HttpRequest, public_id: str) -> HttpResponse:
    """The resolved config, as `python -m workers run` takes it."""
    run = run_or_404(request.user, public_id)
    response = JsonResponse(run.config.data, json_dumps_params={"indent": 2})
    response["Content-Disposition"] = f'attachment; filename="{run.public_id}-config.json"'
    return response


@require_http_methods(["GET", "HEAD", "POST"])
def edit(request: HttpRequest, public_id: str) -> HttpResponse:
    """What people say about a run: its name, note and tags."""
    run = run_or_404(request.user, public_id)
    if not can(request.user, "run.edit", run):
        raise PermissionDenied("Your role in this team does not allow editing this run.")
    newest = edition(run)
    status = 200
    form = EditForm(request.POST or None, initial={"name": run.name, "note": run.note, "tags": ", ".join(run.tags), "version": newest})
    if request.method == "POST" and form.is_valid():
        data = form.cleaned_data
        user: Any = request.user
        try:
            services.edit_run(run, user, name=data["name"], note=data["note"], tags=data["tags"], version=data["version"] or None)
        except WrongState as fault:
            # What was typed stays; saved once more, it is known that it replaces what the other wrote.
            form.data = {**form.data.dict(), "version": newest}
            status = 409
            form.add_error(None, forms.sentence(fault.message, f"now it is “{run.name}”; save again to replace that"))
        except BadInput as fault:
            form.add_error(fault.field if fault.field in form.fields else None, forms.sentence(fault.message, fault.cure))
        else:
            return redirect(f"/runs/{run.public_id}/")
    context = {"section": "runs", "run": run, "form": form, "can_delete": can(request.user, "run.delete", run)}
    return render(request, "runs/edit.html", context, status=422 if form.errors and status == 200 else status)


@require_POST
def delete(request: HttpRequest, public_id: str) -> HttpResponse:
    """Puts a run that is over out of sight."""
    return _press(request, public_id, services.delete_run, done="The run is deleted.", then="/runs/")


def config_blocks(data: dict[str, Any]) -> list[dict[str, Any]]:
    """The config as a reader sees it: every field by block, those that differ from the default marked."""
    default = RunConfig.model_validate({}).as_json()
    blocks = [block for section in forms.sections(data) for block in section.blocks]
    return [
        {
            "title": block.title,
            "rows": [
                {
                    "title": item.title,
                    "help": item.path,
                    "unit": item.unit if item.value not in ("", None) else "",
                    "value": _shown(item.value),
                    "changed": lookup(data, item.path) != lookup(default, item.path),
                }
                for item in block.fields
            ],
        }
        for block in blocks
    ]


def _shown(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list):
        return ", ".join(str(entry) for entry in value)
    return str(value) if value not in ("", None) else "none"


def _press(request: HttpRequest, public_id: str, action: Callable[[Run, Any], Any], *, done: str = "", then: str = "") -> HttpResponse:
    """One button: the action, its refusal in words, and an acknowledgement where the page would not show the change by itself."""
    run = run_or_404(request.user, public_id)
    try:
        action(run, request.user)
    except NotAllowed as fault:
        raise PermissionDenied(fault.message) from None
    except HeadraceError as fault:
        messages.error(request, f"{fault.message[:1].upper()}{fault.message[1:]}." + (f" To do: {fault.cure}." if fault.cure else ""))
        return redirect(f"/runs/{run.public_id}/")
    if done:
        messages.success(request, done)
    return redirect(then or f"/runs/{run.public_id}/")
