"""The built-in verifiers of JSONL tasks: (answer given, answer expected) -> reward, 0 or 1."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation

from workers.contract.errors import DataError


def exact(given: str, expected: str) -> float:
    """The same text, apart from case and spaces."""
    return float(_plain(given) == _plain(expected))


def number(given: str, expected: str) -> float:
    """The same number: 4, 4.0 and +4 are one. Raises DataError when the expected answer is no number."""
    wanted = _decimal(expected)
    if wanted is None:
        raise DataError(
            "the expected answer is not a number",
            field="environment.verifier",
            value=expected,
            cure="use the verifier exact or contains, or correct the data",
        )
    found = _decimal(given)
    return float(found is not None and found == wanted)


def contains(given: str, expected: str) -> float:
    """The expected answer stands somewhere in the given one."""
    return float(_plain(expected) in _plain(given))


VERIFIERS: dict[str, Callable[[str, str], float]] = {"exact": exact, "number": number, "contains": contains}


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()


def _decimal(text: str) -> Decimal | None:
    cleaned = text.strip().replace(",", "").replace("−", "-")
    if len(cleaned) > 400 or "_" in cleaned:
        return None
    try:
        value = Decimal(cleaned)
    except InvalidOperation:
        return None
    return value if value.is_finite() else None
