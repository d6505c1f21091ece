"""What people ask of a run after its start: pause, go on, a checkpoint, an early end, a larger or smaller budget.

Writes go into `Run.control`, which rides to the driver on its next reply; `asked` beside it says when and by whom, for the page.
The plain cancel, checkpoint, stop and resume are in `services`.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import transaction
from django.utils import timezone
from pydantic import ValidationError

from headrace.experiments import services
from headrace.experiments.budget import Budget, Used, budget_of, used_of, used_up
from headrace.experiments.models import Artifact, Attempt, Run
from headrace.experiments.problems import BadInput, WrongState
from headrace.experiments.states import RunState
from headrace.teams import audit
from headrace.teams.models import User
from headrace.teams.policy import can
from headrace.teams.services import require
from workers.contract.events import Control
from workers.contract.flow import Budget as BudgetBlock

STEERABLE = (RunState.LAUNCHING, RunState.RUNNING, RunState.PAUSED)


def pause_run(run: Run, user: User | None, *, actor: str = "") -> None:
    """Ask the driver to hold at the end of the step it is in. Asking twice is asking once."""
    _steer(run, user, "run.edit", {"pause": True}, "pause", actor)


def go_on(run: Run, user: User | None) -> None:
    """Take a pause back: a run that is held goes on, one that was only asked to hold does not."""
    _steer(run, user, "run.edit", {"pause": False}, "go_on")


def checkpoint_now(run: Run, user: User | None, *, actor: str = "") -> None:
    """Ask the driver for a checkpoint at the end of the step it is in."""
    _steer(run, user, "run.edit", None, "checkpoint", actor)


def stop_after_step(run: Run, user: User | None) -> None:
    """Ask the driver to end the run, as succeeded, after the step it is in."""
    _steer(run, user, "run.cancel", {"stop_after_step": True}, "stop")


def extend_budget(run: Run, user: User | None, *, steps: int | None, wall_s: float | None) -> Budget:
    """Set the budget's steps and time limit anew, longer or shorter, never below what is done. None: as the config says.

    A run that is over keeps the new limits for its resume. Raises BadInput naming the field, WrongState where nothing can be asked.
    """
    if user is not None:
        require(user, "run.edit", run)
    with transaction.atomic():
        locked = Run.unscoped.select_for_update(of=("self",)).select_related("config").get(pk=run.pk)
        if locked.source == Run.Source.UPLOAD:
            raise WrongState("an uploaded run ran elsewhere", field="run", value=locked.public_id, cure="clone it with a larger budget")
        if locked.state == RunState.STOPPING:
            raise WrongState("the run is stopping", field="state", value=locked.state, cure="extend it once it has stopped, then resume it")
        _check_limits(locked, steps, wall_s)
        given = budget_of(locked)
        changes = {"steps": None if steps == given.config_steps else steps, "wall_s": None if wall_s == given.config_wall_s else wall_s}
        _write(locked, changes, "budget", user, "")
        audit.record("run.budget", user=user, team=locked.team, obj=locked, detail={"steps": steps, "wall_s": wall_s})
        run.control = locked.control
    return budget_of(locked)


def resume_with_budget(run: Run, user: User | None, *, steps: int | None = None, wall_s: float | None = None) -> Attempt:
    """Resume, after setting the budget anew where one is given: the way on for a run that has done all its steps."""
    with transaction.atomic():
        if steps is not None or wall_s is not None:
            now = budget_of(run)
            extend_budget(run, user, steps=steps or now.steps, wall_s=wall_s if wall_s is not None else now.wall_s)
        return services.resume_run(run, user)


def _check_limits(run: Run, steps: int | None, wall_s: float | None) -> None:
    """Within what the config's schema allows, and not below what is done."""
    used = used_of(run)
    for field, value in (("steps", steps), ("wall_s", wall_s)):
        if value is None:
            continue
        try:
            BudgetBlock.model_validate({field: value})
        except ValidationError as error:
            fault = error.errors(include_url=False, include_context=False)[0]
            raise BadInput(fault["msg"].lower(), field=field, value=value, cure="1 to 10,000,000 steps; 1 s to a year") from error
    if steps is not None and steps < max(1, used.steps):
        raise BadInput("is below what is done", field="steps", value=steps, cure=f"at least {max(1, used.steps)}; to end it now, stop it")
    if wall_s is not None and not run.is_over and used.wall_s is not None and wall_s < used.wall_s:
        raise BadInput("has passed already", field="wall_s", value=wall_s, cure=f"more than {used.wall_s:.0f} s; to end it now, stop it")


def _steer(run: Run, user: User | None, action: str, changes: dict[str, Any] | None, name: str, actor: str = "") -> None:
    """One wish to a driver that is there to hear it. `changes` None: one more checkpoint."""
    if user is not None:
        require(user, action, run)
    with transaction.atomic():
        locked = Run.unscoped.select_for_update(of=("self",)).get(pk=run.pk)
        if locked.state not in STEERABLE:
            raise WrongState(f"the run is {locked.state}", field="state", value=locked.state, cure="only a run under way can be asked")
        if changes is None:
            changes = {"checkpoint_now": Control.model_validate(locked.control or {}).checkpoint_now + 1}
        _write(locked, changes, name, user, actor)
        audit.record("run.control", user=user, actor=actor, team=locked.team, obj=locked, detail={"asked": name})
        run.control = locked.control


def _write(locked: Run, changes: dict[str, Any], name: str, user: User | None, actor: str) -> None:
    """With the row locked: the wish, and when, by whom and after which step it was made."""
    before = locked.control or {}
    asked = dict(before.get("asked") or {})
    asked.pop("pause" if name == "go_on" else "go_on", None)
    asked[name] = {
        "at": timezone.now().isoformat(),
        "by": user.email if user else actor or "headrace",
        "step": used_of(locked).steps,
    }
    wish = Control.model_validate(before).model_copy(update=changes)
    locked.control = {**wish.model_dump(), "asked": asked}
    locked.save(update_fields=["control"])


# --- what the page shows of it


def buttons(run: Run, user: Any) -> dict[str, Any]:
    """Every control of the run for this user: whether it may be pressed now, why not, and what became of the last press.

    Called by the page's template and by control.json, so both say the same.
    """
    budget, used = budget_of(run), used_of(run)
    control, asked = Control.model_validate(run.control or {}), dict((run.control or {}).get("asked") or {})
    may_edit, may_cancel, may_resume = (can(user, action, run) for action in ("run.edit", "run.cancel", "run.resume"))
    idle, alive = _idle_reason(run), not run.is_over
    held = "it is paused: nothing changed since its last step" if run.state == RunState.PAUSED else ""
    twice = "it is asked for already"
    told = {"steps": budget.steps, "wall_s": budget.wall_s, "extended": budget.extended}
    told |= {
        "config_steps": budget.config_steps,
        "config_wall_s": budget.config_wall_s,
        "done_steps": used.steps,
        "done_wall_s": used.wall_s,
    }
    return {
        "state": run.state,
        "over": run.is_over,
        "step": used.steps,
        "budget": told,
        "pause": _button(may_edit, idle or (twice if control.pause else ""), shown=alive and not control.pause),
        "go_on": _button(may_edit, idle, shown=alive and control.pause),
        "checkpoint": _button(may_edit, idle or held, shown=alive),
        "stop": _button(may_cancel, idle or (twice if control.stop_after_step else ""), shown=alive),
        "cancel": _button(may_cancel, "it is stopping already" if run.state == RunState.STOPPING else "", shown=alive),
        "extend": _button(may_edit, _extend_reason(run), shown=True),
        "resume": _button(may_resume, _resume_reason(run), shown=run.is_over),
        "said": _said(run, control, asked, used),
    }


def _button(may: bool, why: str, *, shown: bool) -> dict[str, Any]:
    return {"may": may, "shown": may and shown, "enabled": may and not why, "why": why}


def _idle_reason(run: Run) -> str:
    if run.source == Run.Source.UPLOAD:
        return "it ran elsewhere and was uploaded"
    words = {RunState.QUEUED: "it has not started yet", RunState.STOPPING: "it is stopping"}
    return words.get(RunState(run.state), f"it is over: {run.state}" if run.is_over else "")


def _extend_reason(run: Run) -> str:
    if run.source == Run.Source.UPLOAD:
        return "it ran elsewhere and was uploaded: clone it with a larger budget"
    return "it is stopping" if run.state == RunState.STOPPING else ""


def _resume_reason(run: Run) -> str:
    if run.source == Run.Source.UPLOAD:
        return "it ran elsewhere and was uploaded: clone it instead"
    return "" if run.is_over else "it is not over"


def _said(run: Run, control: Control, asked: dict[str, Any], used: Used) -> list[dict[str, Any]]:
    """One line a wish: {what, at, by, words, done}. The page writes the time in the reader's zone."""
    lines: list[dict[str, Any]] = []
    step = used.steps + 1

    def line(name: str, words: str, done: bool = False) -> None:
        lines.append({"what": name, "at": asked[name]["at"], "by": asked[name]["by"], "words": words, "done": done})

    if "pause" in asked and control.pause and not run.is_over:
        held = run.state == RunState.PAUSED
        line("pause", f"paused after step {used.steps}" if held else f"pause: waiting for the end of step {step}", held)
    if "go_on" in asked and run.state == RunState.PAUSED:
        line("go_on", "go on: waiting for the driver")
    if "checkpoint" in asked:
        written = _written_since(run, asked["checkpoint"]["at"])
        if written is not None:
            line("checkpoint", f"checkpoint of step {written.step} is written", True)
        elif not run.is_over:
            line("checkpoint", f"checkpoint: waiting for the end of step {step}")
    if "stop" in asked and control.stop_after_step and not run.is_over:
        line("stop", f"stop: waiting for the end of step {step}, then it counts as succeeded")
    if "budget" in asked:
        budget = budget_of(run)
        limit = f", {budget.wall_s:g} s" if budget.wall_s else ""
        line("budget", f"budget set to {budget.steps} steps{limit}" + ("; holds once it is resumed" if run.is_over else ""), True)
    return lines


def _written_since(run: Run, at: str) -> Artifact | None:
    rows = Artifact.objects.for_team(run.team_id).filter(run=run, kind=Artifact.Kind.CHECKPOINT, created_at__gte=datetime.fromisoformat(at))
    return rows.order_by("step", "pk").first()


__all__ = ["buttons", "checkpoint_now", "extend_budget", "go_on", "pause_run", "resume_with_budget", "stop_after_step", "used_up"]
