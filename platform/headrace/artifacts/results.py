"""What a probe's result file says, brought into bounds: whatever wrote it, a page gets plain numbers and text of limited size."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from headrace.telemetry.codec import clean_text
from workers.contract.errors import HeadraceError

LARGEST_FILE = 16 * 1024 * 1024
MAX_TOKENS = 1024
MAX_TEXT = 20_000
MAX_ANSWERS = 16
SIDES = ("base", "trained")
_COLUMNS = ("ids", "text", "logprobs", "base_logprobs", "trained_logprobs", "versions")


class Unreadable(HeadraceError):
    """The result file is not one."""


def read(path: Path) -> dict[str, Any]:
    """{"answers": [{prompt, base, trained}], "facts": {...}}; a side is {completion, finish_reason, tokens} or null. Raises Unreadable."""
    try:
        if path.is_symlink() or path.stat().st_size > LARGEST_FILE:
            raise Unreadable("the answer is too large", field="result", value=path.name, cure="ask for fewer tokens")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise Unreadable("the answer cannot be read", field="result", value=path.name, cure="ask again") from error
    if isinstance(found, dict) and isinstance(found.get("error"), dict | str):
        said = found["error"]
        said = said if isinstance(said, dict) else {"message": said}
        raise Unreadable(clean_text(said.get("message"), 400), field="result", cure=clean_text(said.get("cure"), 300) or "ask again")
    answers = found.get("answers", found.get("results")) if isinstance(found, dict) else None
    if not isinstance(answers, list) or not answers:
        raise Unreadable("the answer holds no completions", field="result", value=path.name, cure="ask again")
    facts = {name: value for name, value in found.items() if isinstance(value, int | float | str) and not isinstance(value, bool)}
    return {
        "answers": [_answer(item) for item in answers[:MAX_ANSWERS] if isinstance(item, dict)],
        "facts": {clean_text(name, 40): _scalar(value) for name, value in list(facts.items())[:20]},
    }


def _answer(item: dict[str, Any]) -> dict[str, Any]:
    return {"prompt": clean_text(item.get("prompt"), MAX_TEXT), **{side: _side(item.get(side)) for side in SIDES}}


def _side(given: Any) -> dict[str, Any] | None:
    if not isinstance(given, dict):
        return None
    tokens = given.get("tokens")
    columns = tokens if isinstance(tokens, dict) else given
    return {
        "completion": clean_text(given.get("completion", given.get("text") if isinstance(given.get("text"), str) else ""), MAX_TEXT),
        "finish_reason": clean_text(given.get("finish_reason"), 20),
        "tokens": {
            name: [_scalar(value) for value in columns[name][:MAX_TOKENS]] for name in _COLUMNS if isinstance(columns.get(name), list)
        },
    }


def _scalar(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value, 200)
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        return None
    return value
