"""The way to a new run: form, review, launch. Every step judges the config afresh; nothing starts before the last."""

from __future__ import annotations

import json
import secrets
from functools import lru_cache
from typing import Any

from django.conf import settings
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_http_methods, require_POST

from headrace.experiments import equivalents, forecast, foresight, forms, live_check, selectors, services, sweeps
from headrace.experiments.admission import PRIORITIES
from headrace.experiments.draft import Draft, can_fork, checkpoints, fresh, submitted
from headrace.experiments.models import Experiment, Project
from headrace.experiments.problems import BadInput, IdempotencyConflict, QuotaReached
from headrace.experiments.projects import experiments_of
from headrace.schema_form import as_text, fields_of, lookup
from headrace.schema_parse import differences
from headrace.teams.models import Team
from headrace.teams.policy import can
from headrace.teams.services import NotAllowed
from headrace.teams.views import current_team
from workers.contract import presets
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


@require_http_methods(["GET", "HEAD", "POST"])
def new_run(request: HttpRequest) -> HttpResponse:
    """GET fills the form from ?preset= or ?clone=; POST reviews, goes back or launches, by its button."""
    team = _team(request)
    if request.method != "POST":
        return _show_form(request, team, fresh(request))
    draft = submitted(request)
    action = request.POST.get("action")
    if action == "edit" or not draft.sound:
        return _show_form(request, team, draft)
    return _launch(request, team, draft) if action == "launch" else _review(request, team, draft)


@require_POST
def check(request: HttpRequest) -> JsonResponse:
    """The form as it is being typed: problems, warnings, what differs, the same by command and API, and what is known ahead."""
    return JsonResponse(live_check.answer(_team(request), submitted(request)))


@require_POST
def predict(request: HttpRequest) -> JsonResponse:
    """What the run that is being typed will come to: {source, why, predicted}. A config that does not hold is not forecast."""
    team, draft = _team(request), submitted(request)
    if draft.config is None or draft.errors:
        return JsonResponse(foresight.Foresight(why="Mend the problems first: only a config that can run is forecast.").as_json())
    return JsonResponse(foresight.answer(team, draft.config))


def _team(request: HttpRequest) -> Team:
    team = current_team(request)
    if team is None or not can(request.user, "run.create", team):
        raise PermissionDenied("Your role in this team does not allow starting runs. An owner of the team can change it.")
    return team


@lru_cache(maxsize=1)
def _presets() -> dict[str, dict[str, Any]]:
    """Every preset as the picker shows it; resolving them all takes longer than the rest of the page. Read only."""
    return {item["name"]: item for item in presets.describe()}


def preset_groups(described: list[dict[str, Any]]) -> list[tuple[str, list[dict[str, Any]]]]:
    """The picker's groups: Headrace's own, the published designs, their variants."""
    own = [item for item in described if item["name"] not in presets.LIBRARIES and not item["variant_of"]]
    published = [item for item in described if item["name"] in presets.LIBRARIES]
    variants = [item for item in described if item["variant_of"]]
    groups = (("Headrace's own", own), ("Published designs", published), ("Variants: another mode, or March 2026", variants))
    return [(title, items) for title, items in groups if items]


def _show_form(request: HttpRequest, team: Team, draft: Draft) -> HttpResponse:
    form = forms.sections(draft.values, submitted=draft.submitted, errors=draft.errors)
    described = _presets()
    base, compared = draft.base()
    known = fields_of(forms.schema())
    links = live_check.links(draft)
    label = draft.submitted.get("preset", "") if draft.submitted is not None else (draft.values or {}).get("preset") or ""
    post = draft.submitted if draft.submitted is not None else {}
    projects = list(selectors.projects_for(request.user, team))
    context = {
        "section": "new",
        "groups": [(title, [section for section in form if section.group == title]) for title in (forms.DESIGN, forms.WORK)],
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
        "project_id": post.get("project", "") or (draft.clone.project.public_id if draft.clone is not None else ""),
        "experiments": experiments_of(request.user, projects),
        "experiment_id": post.get("experiment", "") or _experiment_of(draft),
        "datasets": DATASETS,
        "compared_with": compared,
        "can_fork": can_fork(),
        "checkpoints": checkpoints(draft.clone) if draft.clone is not None else [],
        "forked_from": draft.forked_from.public_id if draft.forked_from else "",
        "priorities": [row for row in PRIORITIES if row[0] <= 0 or can(request.user, "queue.edit", team)],
        "priority": draft.priority,
        "sweep_rows": _sweep_rows(draft, post),
        "sweep_seeds": post.get("sweep.seeds", ""),
        "sweep_errors": draft.plan.errors,
        "sweep_open": draft.plan.wanted,
        "most_runs": sweeps.MOST_RUNS,
        "fields": list(known.values()),
        "page_data": {
            "base": {path: as_text(item, lookup(base, path)) for path, item in known.items()},
            "compared": compared,
            "design": [section.title for section in form if section.axis],
        },
    }
    faulty = draft.submitted is not None and not draft.sound and request.POST.get("action") != "edit"
    return render(request, "runs/new.html", context, status=422 if faulty else 200)


def _sweep_rows(draft: Draft, post: Any) -> list[dict[str, Any]]:
    return [
        {
            "number": number,
            "path": post.get(f"sweep.path.{number}", ""),
            "values": post.get(f"sweep.values.{number}", ""),
            "errors": draft.plan.errors.get(f"sweep.values.{number}", []),
        }
        for number in range(1, sweeps.MOST_AXES + 1)
    ]


def _review(request: HttpRequest, team: Team, draft: Draft) -> HttpResponse:
    config = draft.config
    assert config is not None and draft.submitted is not None  # a sound draft of a POST
    before, compared = draft.base()
    kept = draft.submitted
    hidden = [(key, value) for key in kept if key not in ("csrfmiddlewaretoken", "action") for value in kept.getlist(key)]
    name = equivalents.base_of(config) if config.preset else ""
    context = {
        "section": "new",
        "name": draft.name,
        "problems": draft.warnings,
        "preset": presets.described(name) if name else None,
        "hidden": hidden,
        "differences": differences(forms.schema(), before, config.as_json()),
        "compared_with": compared,
        "config_json": json.dumps(config.as_json(), indent=2, ensure_ascii=False),
        "digest": config.digest(),
        "samples_per_step": config.batch.prompts * config.batch.group_size,
        "samples_total": config.batch.prompts * config.batch.group_size * config.budget.steps,
        "task": config.environment.dataset,
        "forked_from": draft.forked_from,
        "variants": draft.variants,
        "commands": equivalents.commands(config, draft.name, settings.BASE_URL),
        "forecast": forecast.of(team, config, priority=draft.priority, runs=max(1, len(draft.variants))),
    }
    return render(request, "runs/review.html", context)


def _launch(request: HttpRequest, team: Team, draft: Draft) -> HttpResponse:
    user: Any = request.user
    assert draft.config is not None
    parent = draft.clone if draft.clone is not None and draft.clone.team_id == team.pk else None
    shared: dict[str, Any] = {"team": team, "user": user, "name": draft.name, "idempotency_key": draft.key, "parent": parent}
    shared |= {"priority": draft.priority, "forked_from": draft.forked_from if parent else None}
    try:
        project = _project(request, team)
        shared["experiment"] = _experiment(request, project)
        if draft.plan.wanted:
            sweep = sweeps.start_sweep(config=draft.config, plan=draft.plan, project=project, **shared)
            return redirect(f"/sweeps/{sweep.public_id}/")
        config = services.create_config(team, draft.config, user=user, parent=parent.config if parent else None)
        run = services.start_run(config=config, project=project, **shared)
    except IdempotencyConflict:
        draft.key = secrets.token_urlsafe(18)
        draft.errors = {"": ["This form has launched a run already and was changed since. Review it once more to launch a second one."]}
        return _show_form(request, team, draft)
    except (BadInput, QuotaReached, NotAllowed, ConfigError) as fault:
        draft.errors = forms.from_problems([fault])
        return _show_form(request, team, draft)
    return redirect(f"/runs/{run.public_id}/")


def _experiment_of(draft: Draft) -> str:
    """The experiment of the run that is cloned, unless the form was sent with none."""
    known = draft.clone.experiment if draft.clone is not None and draft.submitted is None else None
    return known.public_id if known is not None else ""


def _experiment(request: HttpRequest, project: Project) -> Experiment | None:
    """The experiment chosen; None: none. Raises BadInput for one that is not in the project."""
    chosen = request.POST.get("experiment", "")
    if not chosen:
        return None
    found = next((row for row in experiments_of(request.user, [project]) if row.public_id == chosen), None)
    if found is None:
        raise BadInput("is not in this project", field="experiment", value=chosen[:40], cure="choose one of the project's, or none")
    return found


def _project(request: HttpRequest, team: Team) -> Project:
    """The project chosen, else the team's first."""
    projects = selectors.projects_for(request.user, team)
    chosen = request.POST.get("project", "")
    project = (projects.filter(public_id=chosen).first() if chosen else None) or projects.first()
    if project is None:
        raise BadInput("this team has no project yet", field="project", cure="an owner makes one under Admin")
    return project
