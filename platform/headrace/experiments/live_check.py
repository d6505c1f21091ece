"""What the form's live check answers: made from a draft by the same code that judges a launch."""

from __future__ import annotations

from typing import Any

from django.conf import settings

from headrace.experiments import equivalents, forecast, forms, sweeps
from headrace.experiments.draft import Draft
from headrace.schema_form import fields_of
from headrace.schema_parse import differences
from headrace.teams.models import Team

SHOWN_RUNS = 12
# Inputs of the form that are no fields of the config: title and the id of the input.
OTHERS = {
    "priority": ("Priority", "run-priority"),
    "project": ("Project", "project"),
    "experiment": ("Experiment", "experiment"),
    "forked_from": ("Start from", "run-fork"),
    "sweep.seeds": ("Seeds", "sweep-seeds"),
    **{f"sweep.values.{number}": (f"Varied field {number}", f"sweep-values-{number}") for number in range(1, sweeps.MOST_AXES + 1)},
}


def answer(team: Team, draft: Draft) -> dict[str, Any]:
    """The whole answer as JSON. `problems` stop a launch, `warnings` do not; both carry the path of their field."""
    found: dict[str, Any] = {
        "ok": draft.sound,
        "problems": problems(draft),
        "warnings": [
            {"path": row.field or "", **_place(row.field or ""), "text": forms.sentence(row.message, row.cure)} for row in draft.warnings
        ],
        "changes": [],
        "compared": draft.base()[1],
        "commands": [],
        "forecast": None,
        "sweep": None,
    }
    if draft.config is None:
        return found
    found["changes"] = differences(forms.schema(), draft.base()[0], draft.config.as_json())
    found["commands"] = equivalents.commands(draft.config, draft.name or "run", settings.BASE_URL)
    found["forecast"] = forecast.of(team, draft.config, priority=draft.priority, runs=max(1, len(draft.variants)))
    found["digest"] = draft.config.digest()
    if draft.plan.wanted:
        found["sweep"] = {
            "count": draft.plan.count(),
            "most": sweeps.MOST_RUNS,
            "runs": [variant.label for variant in draft.variants[:SHOWN_RUNS]],
            "more": max(0, len(draft.variants) - SHOWN_RUNS),
        }
    return found


def problems(draft: Draft) -> list[dict[str, str]]:
    """Every fault once: path, title, id of the input, sentence."""
    rows = [{"path": "name", "title": "Name of the run", "id": "run-name", "text": draft.name_error}] if draft.name_error else []
    for path, texts in {**draft.errors, **draft.plan.errors}.items():
        rows += [{"path": path, **_place(path), "text": text} for text in texts]
    return rows


def warnings(draft: Draft) -> list[dict[str, str]]:
    """What runs and does not do what one might think, in the same shape."""
    return [{"path": row.field or "", **_place(row.field or ""), "text": forms.sentence(row.message, row.cure)} for row in draft.warnings]


def links(draft: Draft) -> list[dict[str, str]]:
    """The same for the summary on top of a page that came back with faults."""
    return [{"id": row["id"], "title": row["title"], "error": row["text"]} for row in problems(draft)]


def _place(path: str) -> dict[str, str]:
    if path in OTHERS:
        title, input_id = OTHERS[path]
        return {"title": title, "id": input_id}
    item = fields_of(forms.schema()).get(path)
    return {"title": item.title if item else path, "id": item.input_id if item else ""}
