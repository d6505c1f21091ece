"""Text that people type: one normal form, and nothing in it that displays as something else. And lengths of time for them to read."""

from __future__ import annotations

import unicodedata

from headrace.experiments.problems import BadInput

_NEWLINES = "\n\t"


def clean_line(text: str, *, field: str, longest: int = 200) -> str:
    """A name: NFC, trimmed, not empty, no control, direction or zero-width characters."""
    value = _clean(text, field=field, longest=longest, allowed="")
    if not value:
        raise BadInput("is empty", field=field, value=text[:longest], cure="give it at least one visible character")
    return value


def clean_text(text: str, *, field: str, longest: int = 20_000) -> str:
    """A note: as a name, but it may be empty and have several lines."""
    return _clean(text.replace("\r\n", "\n"), field=field, longest=longest, allowed=_NEWLINES)


def duration(seconds: float) -> str:
    """A length of time, in its two largest units."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole} s" if whole or not seconds else "under 1 s"
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {whole % 60:02} s"


def _clean(text: str, *, field: str, longest: int, allowed: str) -> str:
    if not isinstance(text, str):
        raise BadInput("is not text", field=field, value=text, cure="give text")
    if len(text) > 4 * longest:
        raise BadInput(f"is longer than {longest} characters", field=field, value=f"{len(text)} characters", cure="shorten it")
    value = unicodedata.normalize("NFC", text).strip()
    if len(value) > longest:
        raise BadInput(f"is longer than {longest} characters", field=field, value=f"{len(value)} characters", cure="shorten it")
    for character in value:
        # Cc, Cf, Cs, Co, Cn: control, format (direction marks, zero width), surrogate, private, unassigned.
        if character not in allowed and unicodedata.category(character).startswith("C"):
            raise BadInput("holds an invisible character", field=field, value=f"U+{ord(character):04X}", cure="remove this character")
    return value
