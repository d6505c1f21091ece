"""Query parameters of JSON views: read, bounded, or refused by name."""

from __future__ import annotations

import math
from collections.abc import Sequence

from django.http import HttpRequest

from workers.contract.errors import HeadraceError

BIGINT = 2**63 - 1


class BadQuery(HeadraceError):
    """A query parameter that cannot be used."""


def integer(request: HttpRequest, name: str, default: int, low: int, high: int) -> int:
    """A whole number within low..high; the default where it is not given."""
    found = optional_integer(request, name, low, high)
    return default if found is None else found


def optional_integer(request: HttpRequest, name: str, low: int, high: int = BIGINT) -> int | None:
    """The same, None where it is not given."""
    given = request.GET.get(name, "")
    if not given:
        return None
    if not (given.isascii() and given.isdigit() and len(given) <= 19 and low <= int(given) <= high):
        raise BadQuery("not a whole number in range", field=name, value=given[:80], cure=f"{low} to {high}")
    return int(given)


def number(request: HttpRequest, name: str, meaning: str = "a step or Unix seconds") -> float | None:
    """A finite number, None where it is not given."""
    given = request.GET.get(name, "")
    if not given:
        return None
    try:
        value = float(given)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or abs(value) > 1e18:
        raise BadQuery("not a finite number", field=name, value=given[:80], cure=meaning)
    return value


def choice(request: HttpRequest, name: str, words: Sequence[str], default: str = "") -> str:
    """One of the words; the default where it is not given."""
    given = request.GET.get(name, "") or default
    if given and given not in words:
        raise BadQuery("not one of the words", field=name, value=given[:80], cure=f"one of {', '.join(words)}")
    return given


def text(request: HttpRequest, name: str, limit: int = 200) -> str:
    """Text that every database takes, cut at the limit."""
    given = request.GET.get(name, "").replace("\x00", "")[:limit]
    return given.encode("utf-8", "replace").decode("utf-8")
