"""The run page's controls. Each press answers a form with the page again and a script with what the controls say now."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, cast

from django.contrib import messages
from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.cache import never_cache
from django.views.decorators.http import require_http_methods, require_POST

from headrace.experiments import control, services
from headrace.experiments.models import Run
from headrace.experiments.problems import BadInput
from headrace.experiments.resume_preview import preview
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.telemetry.access import run_or_404
from headrace.telemetry.views import json_of_run
from workers.contract.errors import HeadraceError

Press = Callable[[HttpRequest, Run], str]


def button(press: Press) -> Callable[..., HttpResponse]:
    """A POST view around one press, which returns the words for a page without scripts."""

    @require_POST
    @login_not_required  # a script gets 401 in JSON; a form is sent to the login page below
    @wraps(press)
    def wrapped(request: HttpRequest, public_id: str) -> HttpResponse:
        by_script = "application/json" in request.headers.get("Accept", "")
        if not request.user.is_authenticated:
            if by_script:
                return JsonResponse({"code": "login_required", "message": "sign in first", "cure": "/login/"}, status=401)
            return redirect(f"/login/?next=/runs/{public_id}/")
        run = run_or_404(request.user, public_id)
        try:
            words = press(request, run)
        except NotAllowed as fault:
            if by_script:
                return JsonResponse(fault.as_dict(), status=403)
            raise PermissionDenied(fault.message) from None
        except HeadraceError as fault:
            if by_script:
                return JsonResponse(fault.as_dict(), status=400 if isinstance(fault, BadInput) else 409)
            messages.error(request, sentence(fault))
            return redirect(f"/runs/{run.public_id}/")
        if by_script:
            run.refresh_from_db()
            return JsonResponse(control.buttons(run, request.user))
        messages.success(request, words)
        return redirect(f"/runs/{run.public_id}/")

    return cast("Callable[..., HttpResponse]", wrapped)


def sentence(fault: HeadraceError) -> str:
    """A refusal as a person reads it."""
    named = f"{fault.field} {fault.message}" if isinstance(fault, BadInput) and fault.field else fault.message
    return f"{named[:1].upper()}{named[1:]}." + (f" To do: {fault.cure}." if fault.cure else "")


@button
def cancel(request: HttpRequest, run: Run) -> str:
    """Asks the run to stop; the last complete checkpoint stands."""
    services.cancel_run(run, _user(request))
    return "The run is being cancelled; its last complete checkpoint stays."


@button
def checkpoint(request: HttpRequest, run: Run) -> str:
    """Asks for a checkpoint at the end of the step the run is in."""
    control.checkpoint_now(run, _user(request))
    return "A checkpoint is asked for: it is written at the end of this step."


@button
def stop(request: HttpRequest, run: Run) -> str:
    """Asks the run to end, as succeeded, after the step it is in."""
    control.stop_after_step(run, _user(request))
    return "The run ends after the step it is in, and counts as succeeded."


@button
def pause(request: HttpRequest, run: Run) -> str:
    """Asks the run to hold at the end of the step it is in."""
    control.pause_run(run, _user(request))
    return "A pause is asked for: the run holds at the end of this step."


@button
def go_on(request: HttpRequest, run: Run) -> str:
    """Takes a pause back."""
    control.go_on(run, _user(request))
    return "The run is asked to go on."


@button
def budget(request: HttpRequest, run: Run) -> str:
    """Sets steps and time limit anew."""
    steps, wall_s = _whole(request, "steps"), _number(request, "wall_s")
    now = control.extend_budget(run, _user(request), steps=steps, wall_s=wall_s)
    return f"The budget is now {now.steps} steps" + (f" and {now.wall_s:g} s." if now.wall_s else ".")


@never_cache
@require_http_methods(["GET", "HEAD", "POST"])
def resume(request: HttpRequest, public_id: str) -> HttpResponse:
    """GET: what a resume restores, makes again and loses. POST: queues a new attempt, with a larger budget where one is given."""
    run = run_or_404(request.user, public_id)
    if not can(request.user, "run.resume", run):
        raise PermissionDenied("Your role in this team does not allow resuming this run.")
    error, given = "", request.POST.get("steps", "")
    if request.method == "POST":
        try:
            control.resume_with_budget(run, _user(request), steps=_whole(request, "steps"))
        except HeadraceError as fault:
            error = sentence(fault)
        else:
            return redirect(f"/runs/{run.public_id}/")
    facts = preview(run)
    context = {
        "section": "runs",
        "run": run,
        "facts": facts,
        "error": error,
        "steps": given or (facts["suggested_steps"] if facts["used_up"] else ""),
        "may": control.buttons(run, request.user)["resume"],
    }
    return render(request, "runs/resume.html", context, status=409 if error else 200)


@json_of_run
def control_json(request: HttpRequest, run: Run) -> dict[str, Any]:
    """What the controls say now."""
    return control.buttons(run, request.user)


@json_of_run
def resume_json(request: HttpRequest, run: Run) -> dict[str, Any]:
    """What a resume would do."""
    return preview(run)


def _user(request: HttpRequest) -> Any:
    return request.user


def _whole(request: HttpRequest, name: str) -> int | None:
    text = request.POST.get(name, "").strip()
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 12):
        raise BadInput("is not a whole number", field=name, value=text[:40], cure="for example 60")
    return int(text)


def _number(request: HttpRequest, name: str) -> float | None:
    text = request.POST.get(name, "").strip()
    try:
        return float(text) if text else None
    except ValueError as error:
        raise BadInput("is not a number of seconds", field=name, value=text[:40], cure="for example 3600") from error
