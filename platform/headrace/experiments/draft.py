"""A new run on its way: what was typed, what it resolves to, and what is wrong with it. The page, the check and the launch share it."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

from django.http import Http404, HttpRequest, QueryDict

from headrace.experiments import forms, selectors, sweeps
from headrace.experiments.admission import INIT_FROM, PRIORITIES, folder_of
from headrace.experiments.models import Artifact, Run
from headrace.experiments.problems import BadInput
from headrace.experiments.sweeps import Plan, Variant
from headrace.experiments.text import clean_line
from headrace.schema_form import fields_of, lookup
from headrace.schema_parse import Errors, parse
from headrace.telemetry.access import run_or_404
from workers.contract import compat, loading, presets
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, HeadraceError


@dataclass
class Draft:
    """A form on its way."""

    submitted: QueryDict | None = None
    values: dict[str, Any] | None = None
    config: RunConfig | None = None
    errors: Errors = field(default_factory=dict)
    name: str = ""
    name_error: str = ""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    preset: str = presets.DEFAULT
    clone: Run | None = None
    forked_from: Artifact | None = None
    priority: int = 0
    plan: Plan = field(default_factory=Plan)
    variants: list[Variant] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return self.config is not None and not self.errors and not self.name_error and not self.plan.errors

    @property
    def warnings(self) -> list[HeadraceError]:
        return compat.warnings(self.config) if self.config is not None else []

    def base(self) -> tuple[dict[str, Any], str]:
        """What the form is compared with, and its name: the parent of a clone, else the preset, else the defaults."""
        if self.clone is not None:
            return self.clone.config.data, f"the run “{self.clone.name}”"
        label = self.config.preset if self.config is not None else (self.values or {}).get("preset")
        if label is None and self.submitted is not None:
            label = self.submitted.get("preset")
        name = str(label or "").partition("@")[0]
        if name in presets.names():
            return loading.resolve(None, preset=name).as_json(), f"the preset {name}"
        return RunConfig.model_validate({}).as_json(), "the defaults"


def fresh(request: HttpRequest) -> Draft:
    """From ?preset=, or from ?clone= and, with it, ?from= (a checkpoint of that run). Raises Http404 for what the user may not see."""
    asked = request.GET
    draft = Draft(preset=asked.get("preset", "") or presets.DEFAULT)
    if asked.get("clone"):
        _cloned(request, draft)
        return draft
    try:
        draft.values = loading.resolve(None, preset=draft.preset).as_json()
    except ConfigError as fault:
        draft.errors = forms.from_problems(fault.problems)
        draft.preset = presets.DEFAULT
        draft.values = loading.resolve(None, preset=draft.preset).as_json()
    draft.name = f"{draft.values['environment']['dataset']} {draft.preset}"
    return draft


def _cloned(request: HttpRequest, draft: Draft) -> None:
    draft.clone = parent = run_or_404(request.user, request.GET["clone"])
    draft.values, draft.name = parent.config.data, f"{parent.name} (copy)"[:200]
    draft.preset = parent.preset.partition("@")[0] or presets.DEFAULT
    cause = parent.outcome_cause or {}
    if request.GET.get("fix") and request.GET["fix"] == cause.get("field"):
        draft.errors = {cause["field"]: [forms.sentence(str(cause.get("message", "")), cause.get("cure"))]}
    if request.GET.get("from"):
        draft.forked_from = checkpoint_of(parent, request.GET["from"])
        if draft.forked_from is None:
            raise Http404("no such checkpoint")
        draft.name = f"{parent.name} (from step {draft.forked_from.step})"[:200]
        if can_fork():
            draft.values = loading.overlay(parent.config.data, {"model": {"init_from": folder_of(draft.forked_from)}})


def submitted(request: HttpRequest) -> Draft:
    """From a POST of the form. Nothing raises but Http404; every fault is in the draft."""
    post = request.POST
    draft = Draft(submitted=post, name=post.get("name", ""), preset=post.get("preset_name", "") or presets.DEFAULT)
    draft.key = post.get("idempotency_key", "")[:180] or draft.key
    if post.get("clone"):
        draft.clone = run_or_404(request.user, post["clone"])
    try:
        draft.name = clean_line(draft.name, field="name")
    except BadInput as fault:
        draft.name_error = f"The name {fault.message}: {fault.cure}."
    _read_priority(draft, post.get("priority", ""))
    data, errors = parse(forms.schema(), post)
    draft.errors.update(errors)
    _read_fork(draft, data, post.get("forked_from", ""))
    # A field that could not be read keeps the preset's value for the check of the others.
    base = data.pop("preset", None)
    try:
        draft.config = loading.resolve({**data, "preset": base} if base else data, preset=None)
    except ConfigError as fault:
        unread = set(draft.errors)
        found = forms.from_problems(fault.problems)
        draft.errors.update({path: texts for path, texts in found.items() if path not in unread})
    _read_sweep(draft)
    return draft


def _read_priority(draft: Draft, text: str) -> None:
    known = {str(value): value for value, _label in PRIORITIES}
    if text and text not in known:
        draft.errors["priority"] = [f"“{text[:20]}” is no priority. Choose one of the list."]
    draft.priority = known.get(text, 0)


def _read_fork(draft: Draft, data: dict[str, Any], chosen: str) -> None:
    """The chosen checkpoint's folder becomes the config's start; a folder left over from another choice goes."""
    if draft.clone is not None and chosen:
        draft.forked_from = checkpoint_of(draft.clone, chosen)
        if draft.forked_from is None or not can_fork():
            draft.errors["forked_from"] = ["This checkpoint is not there any more. Choose another one, or the model's own weights."]
            return
        data.setdefault("model", {})["init_from"] = folder_of(draft.forked_from)
    elif draft.clone is not None and can_fork():
        typed = lookup(data, INIT_FROM)
        if typed and any(typed == folder_of(row) for row in checkpoints(draft.clone)):
            data["model"]["init_from"] = None


def _read_sweep(draft: Draft) -> None:
    assert draft.submitted is not None
    draft.plan = sweeps.read_plan(draft.submitted)
    if draft.config is None or not draft.plan.wanted or draft.plan.errors:
        return
    try:
        draft.variants = sweeps.variants(draft.config, draft.plan)
    except ConfigError as fault:
        draft.plan.errors["sweep.values.1"] = [forms.sentence(fault.message, fault.cure)]


def can_fork() -> bool:
    """Whether the engine of this version takes a checkpoint to start from."""
    return INIT_FROM in fields_of(forms.schema())


def checkpoints(run: Run) -> list[Artifact]:
    """The run's complete checkpoints, the newest first. The caller has checked that the user may see the run."""
    rows = selectors.artifacts_of(run).filter(kind=Artifact.Kind.CHECKPOINT, state=Artifact.State.COMPLETE)
    return list(rows.select_related("attempt").order_by("-attempt__number", "-step", "-pk")[:200])


def checkpoint_of(run: Run, public_id: str) -> Artifact | None:
    return next((row for row in checkpoints(run) if row.public_id == public_id), None)
