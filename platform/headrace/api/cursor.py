"""Pages of a list: where the next one begins. Nothing is left out or told twice where several rows were made in the same instant."""

from __future__ import annotations

from typing import Any

from django.db.models import Q, QuerySet

from headrace.api.callers import moment
from headrace.experiments.problems import BadInput

_MOST = 1_000_000


def newest_first(rows: QuerySet[Any], before: str, limit: int) -> tuple[list[Any], str | None]:
    """(rows, `before` of the next page or None). `before`: a cursor of here, or a time with zone. Raises BadInput."""
    if before:
        text, _, last = before.partition("~")
        at = moment(text, "before")
        earlier = Q(created_at__lt=at)
        rows = rows.filter(earlier | Q(created_at=at, public_id__lt=last[:20]) if last else earlier)
    page = list(rows.order_by("-created_at", "-public_id")[: limit + 1])
    if len(page) <= limit:
        return page, None
    return page[:limit], f"{page[limit - 1].created_at.isoformat()}~{page[limit - 1].public_id}"


def as_sorted(rows: QuerySet[Any], before: str, limit: int) -> tuple[list[Any], str | None]:
    """The same in an order of the caller's: the cursor counts the rows that were told."""
    count = before.removeprefix("@")
    if before and not (before.startswith("@") and count.isascii() and count.isdigit() and len(count) < 8 and int(count) < _MOST):
        raise BadInput("not a page of a sorted list", field="before", value=before[:80], cure="send the `next` of the page before")
    first = int(count or 0)
    page = list(rows[first : first + limit + 1])
    return page[:limit], f"@{first + limit}" if len(page) > limit else None
