"""How pages write amounts of bytes."""

from __future__ import annotations

from django import template

register = template.Library()
UNITS = ("B", "kB", "MB", "GB", "TB")


@register.filter
def size(value: float | None) -> str:
    """1234567 is "1.2 MB"; nothing is a dash, never 0."""
    if value is None:
        return "–"
    rest, unit = float(value), 0
    while rest >= 1000 and unit < len(UNITS) - 1:
        rest, unit = rest / 1000, unit + 1
    return f"{rest:.1f} {UNITS[unit]}" if unit and rest < 10 else f"{rest:.0f} {UNITS[unit]}"
