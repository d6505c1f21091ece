"""The way back from a submitted form: strict nested data for the config, and every fault mapped to its field."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from headrace.schema_form import Field, Submitted, as_text, fields_of, lookup

Errors = dict[str, list[str]]


def parse(schema: Mapping[str, Any], submitted: Submitted) -> tuple[dict[str, Any], Errors]:
    """Nested data with the config's own types, and the faults found on the way. Called once per POST.

    Fields that were not sent stay out, so the model's defaults hold. Limits are left to the model: one place judges.
    """
    data: dict[str, Any] = {}
    errors: Errors = {}
    for item in fields_of(schema).values():
        absent_is_value = item.kind in ("boolean", "choices") and f"{item.path}.shown" in submitted
        if item.path not in submitted and not absent_is_value:
            continue
        try:
            value = _read(item, submitted)
        except ValueError as fault:
            errors.setdefault(item.path, []).append(str(fault))
            continue
        target = data
        *parents, last = item.path.split(".")
        for key in parents:
            target = target.setdefault(key, {})
        target[last] = value
    if submitted.get("preset"):
        data["preset"] = str(submitted.get("preset"))
    return data, errors


def _read(item: Field, submitted: Submitted) -> Any:
    if item.kind == "choices":
        return [str(entry) for entry in submitted.getlist(item.path)]
    raw = str(submitted.get(item.path, "")).replace("\r\n", "\n")
    if item.kind == "boolean":
        return raw in ("on", "true")
    if item.kind == "textarea":
        return raw
    raw = raw.strip()
    if raw == "" and item.nullable:
        return None
    if item.kind == "json":
        return _read_json(raw, listed=item.listed)
    if item.kind in ("integer", "number"):
        return _read_number(item, raw)
    return raw


def _read_json(raw: str, *, listed: bool) -> Any:
    try:
        value = json.loads(raw or ("[]" if listed else "{}"))
    except json.JSONDecodeError as fault:
        example = '[{"hi": 2.0}]' if listed else '{"min_terms": 2}'
        raise ValueError(f"Not JSON: {fault.msg} at line {fault.lineno}, column {fault.colno}. Write for example {example}.") from None
    except RecursionError:
        raise ValueError("Not JSON that can be read: it is nested too deeply.") from None
    if listed and (not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value)):
        raise ValueError("A JSON list of objects is needed. Put objects between brackets; [] is none.")
    if not listed and not isinstance(value, dict):
        raise ValueError(f"A JSON object is needed, {type(value).__name__} was given. Put it between braces.")
    return value


def _read_number(item: Field, raw: str) -> int | float:
    if raw == "":
        raise ValueError("A number is needed here." + (f" {item.limits.capitalize()}." if item.limits else ""))
    try:
        return int(raw.replace("_", "")) if item.kind == "integer" else float(raw.replace("_", ""))
    except ValueError:
        wanted = "a whole number" if item.kind == "integer" else "a number"
        raise ValueError(f"“{raw[:60]}” is not {wanted}. Write it with digits, for example {as_text(item, item.default) or '1'}.") from None


def differences(schema: Mapping[str, Any], before: Mapping[str, Any], after: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Fields whose value differs: what a reader checks before a launch."""
    rows = []
    for item in fields_of(schema).values():
        old, new = lookup(before, item.path), lookup(after, item.path)
        if old != new:
            rows.append({"path": item.path, "title": item.title, "before": _shown(old), "after": _shown(new)})
    return rows


def _shown(value: Any) -> str:
    return "none" if value is None else json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else str(value)
