"""The way to a new run: form, review, launch. Every step judges the config afresh; nothing starts before the last."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import Any

from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, QueryDict
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods

from headrace.experiments import forms, selectors, services
from headrace.experiments.models import Project, Run
from headrace.experiments.problems import BadInput, IdempotencyConflict
from headrace.experiments.text import clean_line
from headrace.schema_parse import Errors, differences, parse
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.teams.views import current_team
from headrace.telemetry.access import run_or_404
from workers.contract import compat, loading, presets
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

# Suggestions beside the task field; any other reasoning-gym name or .jsonl path is as good.
DATASETS = (
    "basic_arithmetic",
    "chain_sum",
    "count_bits",
    "decimal_arithmetic",
    "fraction_simplification",
    "gcd",
    "lcm",
    "leg_counting",
    "letter_counting",
    "number_sorting",
    "prime_factorization",
    "products",
    "simple_equations",
    "spell_backward",
    "word_sorting",
)


@dataclass
class Draft:
    """A form on its way: what was typed, what it resolves to, and what is wrong with it."""

    submitted: QueryDict | None = None
    values: dict[str, Any] | None = None
    config: RunConfig | None = None
    errors: Errors = field(default_factory=dict)
    name: str = ""
    name_error: str = ""
    key: str = field(default_factory=lambda: secrets.token_urlsafe(18))
    preset: str = presets.DEFAULT
    clone: Run | None = None

    @property
    def sound(self) -> bool:
        return self.config is not None and not self.errors and not self.name_error


@require_http_methods(["GET", "HEAD", "POST"])
def new_run(request: HttpRequest) -> HttpResponse:
    """GET fills the form from ?preset= or ?clone=; POST reviews, goes back or launches, by its button."""
    team = current_team(request)
    if team is None or not can(request.user, "run.create", team):
        raise PermissionDenied("Your role in this team does not allow starting runs. An owner of the team can change it.")
    if request.method != "POST":
        return _show_form(request, team, _fresh(request))
    draft = _submitted(request)
    action = request.POST.get("action")
    if action == "edit" or not draft.sound:
        return _show_form(request, team, draft)
    return _launch(request, team, draft) if action == "launch" else _review(request, draft)


def _fresh(request: HttpRequest) -> Draft:
    draft = Draft(preset=request.GET.get("preset", "") or presets.DEFAULT)
    if request.GET.get("clone"):
        draft.clone = run_or_404(request.user, request.GET["clone"])
        draft.values, draft.name = draft.clone.config.data, f"{draft.clone.name} (copy)"[:200]
        draft.preset = draft.clone.preset.partition("@")[0] or presets.DEFAULT
        cause = draft.clone.outcome_cause or {}
        if request.GET.get("fix") and request.GET["fix"] == cause.get("field"):
            draft.errors = {cause["field"]: [forms.sentence(str(cause.get("message", "")), cause.get("cure"))]}
        return draft
    try:
        draft.values = loading.resolve(None, preset=draft.preset).as_json()
    except ConfigError as fault:
        draft.errors = forms.from_problems(fault.problems)
        draft.preset = presets.DEFAULT
        draft.values = loading.resolve(None, preset=draft.preset).as_json()
    draft.name = f"{draft.values['environment']['dataset']} {draft.preset}"
    return draft


def preset_groups(described: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The picker's groups: Headrace's own, the published designs, their variants."""
    own = [item for item in described if item["name"] not in presets.LIBRARIES and not item["variant_of"]]
    published = [item for item in described if item["name"] in presets.LIBRARIES]
    variants = [item for item in described if item["variant_of"]]
    groups = (("Headrace's own", own), ("Published designs", published), ("Variants: another mode, or March 2026", variants))
    return [(title, items) for title, items in groups if items]


def _submitted(request: HttpRequest) -> Draft:
    post = request.POST
    draft = Draft(submitted=post, name=post.get("name", ""), preset=post.get("preset_name", "") or presets.DEFAULT)
    draft.key = post.get("idempotency_key", "")[:200] or draft.key
    if post.get("clone"):
        draft.clone = run_or_404(request.user, post["clone"])
    try:
        draft.name = clean_line(draft.name, field="name")
    except BadInput as fault:
        draft.name_error = f"The name {fault.message}: {fault.cure}."
    data, draft.errors = parse(forms.schema(), post)
    # A field that could not be read keeps the preset's value for the check of the others.
    base = data.pop("preset", None)
    try:
        draft.config = loading.resolve({**data, "preset": base} if base else data, preset=None)
    except ConfigError as fault:
        unread = set(draft.errors)
        found = forms.from_problems(fault.problems)
        draft.errors.update({path: texts for path, texts in found.items() if path not in unread})
    return draft


def _show_form(request: HttpRequest, team: Team, draft: Draft) -> HttpResponse:
    form = forms.sections(draft.values, submitted=draft.submitted, errors=draft.errors)
    described = {item["name"]: item for item in presets.describe()}
    links = forms.error_links(form, draft.errors)
    if draft.name_error:
        links.insert(0, {"id": "run-name", "title": "Name of the run", "error": draft.name_error})
    label = draft.submitted.get("preset", "") if draft.submitted is not None else (draft.values or {}).get("preset") or ""
    projects = list(selectors.projects_for(request.user, team))
    context = {
        "section": "new",
        "sections": form,
        "preset_groups": preset_groups(list(described.values())),
        "preset": described.get(draft.preset),
        "preset_name": draft.preset if draft.preset in described else presets.DEFAULT,
        "preset_label": label,
        "error_links": links,
        "error_count": len(links),
        "idempotency_key": draft.key,
        "name": draft.name,
        "name_error": draft.name_error,
        "clone": draft.clone,
        "projects": projects,
        "project_id": draft.submitted.get("project", "") if draft.submitted is not None else "",
        "datasets": DATASETS,
    }
    faulty = draft.submitted is not None and not draft.sound and request.POST.get("action") != "edit"
    return render(request, "runs/new.html", context, status=422 if faulty else 200)


def _review(request: HttpRequest, draft: Draft) -> HttpResponse:
    config = draft.config
    assert config is not None and draft.submitted is not None  # a sound draft of a POST
    if draft.clone is not None:
        before, compared = draft.clone.config.data, f"the run “{draft.clone.name}”"
    else:
        before, compared = _preset_values(config), f"the preset {config.preset}" if config.preset else "the defaults"
    kept = draft.submitted
    hidden = [(key, value) for key in kept if key not in ("csrfmiddlewaretoken", "action") for value in kept.getlist(key)]
    batch = config.batch.prompts * config.batch.group_size
    context = {
        "section": "new",
        "name": draft.name,
        "problems": compat.warnings(config),
        "preset": presets.described(_preset_name(config)) if _preset_name(config) in presets.names() else None,
        "hidden": hidden,
        "differences": differences(forms.schema(), before, config.as_json()),
        "compared_with": compared,
        "config_json": json.dumps(config.as_json(), indent=2, ensure_ascii=False),
        "digest": config.digest(),
        "samples_per_step": batch,
        "samples_total": batch * config.budget.steps,
        "task": config.environment.dataset,
    }
    return render(request, "runs/review.html", context)


def _preset_name(config: RunConfig) -> str:
    return (config.preset or "").partition("@")[0]


def _preset_values(config: RunConfig) -> dict[str, Any]:
    name = _preset_name(config)
    return loading.resolve(None, preset=name).as_json() if name in presets.names() else RunConfig.model_validate({}).as_json()


def _launch(request: HttpRequest, team: Team, draft: Draft) -> HttpResponse:
    user: Any = request.user
    assert draft.config is not None
    parent = draft.clone if draft.clone is not None and draft.clone.team_id == team.pk else None
    try:
        config = services.create_config(team, draft.config, user=user, parent=parent.config if parent else None)
        run = services.start_run(
            team=team,
            user=user,
            config=config,
            project=_project(request, team),
            name=draft.name,
            idempotency_key=draft.key,
            parent=parent,
        )
    except IdempotencyConflict:
        draft.key = secrets.token_urlsafe(18)
        draft.errors = {"": ["This form has launched a run already and was changed since. Review it once more to launch a second one."]}
        return _show_form(request, team, draft)
    except BadInput as fault:
        draft.errors = forms.from_problems([fault])
        return _show_form(request, team, draft)
    return redirect(f"/runs/{run.public_id}/")


def _project(request: HttpRequest, team: Team) -> Project:
    """The project chosen, else the team's first."""
    projects = selectors.projects_for(request.user, team)
    chosen = request.POST.get("project", "")
    project = (projects.filter(public_id=chosen).first() if chosen else None) or projects.first()
    if project is None:
        raise BadInput("this team has no project yet", field="project", cure="an owner makes one under Admin")
    return project
