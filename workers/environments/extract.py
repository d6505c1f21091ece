"""From a completion to the answer that is judged: one function a kind of `environment.answer`. None: there is no answer in it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable

# A sign counts only where nothing it could be subtracted from stands before it: "8-3" ends in 3, "= -3" in -3.
_NUMBER = re.compile(
    r"(?:(?<![\w.)])[-+])?(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|(?:(?<![\w.)])[-+])?(?<![\w.])\.[0-9]+"
)
_MINUS = {ord("−"): "-", ord("–"): "-"}


def last_number(text: str) -> str | None:
    """The last number, without thousands commas or a plus sign: "so 1,234." gives "1234"."""
    found = None
    for match in _NUMBER.finditer(text.translate(_MINUS)):
        found = match.group()
    return None if found is None else found.replace(",", "").removeprefix("+")


def answer_tag(text: str) -> str | None:
    """What stands between the last <answer> and the </answer> after it."""
    start = text.rfind("<answer>")
    if start < 0:
        return None
    end = text.find("</answer>", start)
    return (text[start + len("<answer>") : end].strip() or None) if end >= 0 else None


def last_line(text: str) -> str | None:
    """The last line that is not empty."""
    return next((line.strip() for line in reversed(text.splitlines()) if line.strip()), None)


def whole(text: str) -> str | None:
    """The whole completion without surrounding space."""
    return text.strip() or None


KINDS: dict[str, Callable[[str], str | None]] = {
    "last_number": last_number,
    "answer_tag": answer_tag,
    "last_line": last_line,
    "whole": whole,
}


def choose(kind: str, answers: Iterable[str | None]) -> str:
    """`auto` settled by some of the task's own answers: the last number where each is a number, the last line otherwise."""
    if kind != "auto":
        return kind
    return "last_number" if all(answer is not None and _NUMBER.fullmatch(answer.strip()) for answer in answers) else "last_line"


def extract(kind: str, text: str) -> str | None:
    """The answer in `text` by `kind`, which is not `auto`. Called once a sample, before the verifier."""
    return KINDS[kind](text)
