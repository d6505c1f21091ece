"""CSV that is safe to open: a cell from people or models never becomes a formula of a spreadsheet."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from django.http import HttpResponse

_STARTS = ("=", "+", "-", "@", "\t", "\r", "\n", "|", "%")


def cell(value: Any) -> Any:
    """One value as a cell: numbers as they are, nothing as an empty cell, text that a spreadsheet would run with ' before it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        return value
    if isinstance(value, datetime):
        return value.isoformat()
    text = ", ".join(str(part) for part in value) if isinstance(value, list) else str(value)
    return f"'{text}" if text.startswith(_STARTS) or text.lstrip().startswith(_STARTS) else text


def answer(name: str, head: Sequence[str], rows: Iterable[Sequence[Any]]) -> HttpResponse:
    """A CSV download of this name."""
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow([cell(title) for title in head])
    writer.writerows([cell(value) for value in row] for row in rows)
    response = HttpResponse(out.getvalue(), content_type="text/csv; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="{name}"'
    return response
