"""The run page's controls, for its template: the same answer that control.json gives."""

from __future__ import annotations

from typing import Any

from django import template

from headrace.experiments.control import buttons
from headrace.experiments.models import Run

register = template.Library()


@register.simple_tag(takes_context=True)
def controls_of(context: dict[str, Any], run: Run) -> dict[str, Any]:
    """Called by runs/panels/control.html."""
    return buttons(run, context["user"])
