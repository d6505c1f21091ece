"""The fields of RunConfig by dotted path: their types and limits in words, values from text, and faults with a cure."""

from __future__ import annotations

import difflib
import json
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, HeadraceError

_BOUNDS = (("ge", "at least"), ("gt", "more than"), ("le", "at most"), ("lt", "less than"))
_LENGTHS = (("min_length", "at least"), ("max_length", "at most"))


@cache
def table() -> dict[str, FieldInfo]:
    """Every value field (not the sections) by dotted path, in the order of the form."""
    found: dict[str, FieldInfo] = {}

    def walk(model: type[BaseModel], prefix: str) -> None:
        for name, info in model.model_fields.items():
            inner = section(info)
            if inner is None or kinds(info)[1]:  # a section that may be null is a value, too
                found[f"{prefix}{name}"] = info
            if inner is not None:
                walk(inner, f"{prefix}{name}.")

    walk(RunConfig, "")
    return found


def paths() -> list[str]:
    """One path for each input of the form. The inside of a section that may be null is not listed; `find` knows it, too."""
    return [path for path in table() if path.rpartition(".")[0] not in table()]


def find(path: str) -> FieldInfo | None:
    return table().get(path)


def ending_in(path: str) -> list[str]:
    """Fields whose last word resembles the path's last word: someone wrote `steps` for `budget.steps`."""
    last = path.rpartition(".")[2]
    exact = [name for name in table() if name.rpartition(".")[2] == last]
    if exact:
        return exact[:4]
    words = {name.rpartition(".")[2] for name in table()}
    close = difflib.get_close_matches(last, words, n=2, cutoff=0.7)
    return [name for name in table() if name.rpartition(".")[2] in close][:4]


def kinds(info: FieldInfo) -> tuple[list[Any], bool]:
    """The types a field takes, null left out, and whether it takes null."""
    annotation = info.annotation
    members = list(get_args(annotation)) if get_origin(annotation) in (Union, UnionType) else [annotation]
    return [member for member in members if member is not NoneType], NoneType in members


def section(info: FieldInfo) -> type[BaseModel] | None:
    """The model of a field that holds a section, None for a plain value."""
    return next((kind for kind in kinds(info)[0] if isinstance(kind, type) and issubclass(kind, BaseModel)), None)


def limits(info: FieldInfo) -> str:
    """What a field takes, in words: "a whole number, at least 1 and at most 64"."""
    types, nullable = kinds(info)
    words = " or ".join(_type_words(kind) for kind in types)
    text_like = any(kind is str or get_origin(kind) in (list, dict) or kind in (list, dict) for kind in types)
    bounds: list[str] = []
    for meta in info.metadata:
        bounds += [f"{phrase} {getattr(meta, name):,}" for name, phrase in _BOUNDS if getattr(meta, name, None) is not None]
        unit = "characters" if str in types else "items"
        bounds += [
            f"{phrase} {getattr(meta, name):,} {unit}" for name, phrase in _LENGTHS if text_like and getattr(meta, name, None) is not None
        ]
    return words + (f", {' and '.join(bounds)}" if bounds else "") + (", or null" if nullable else "")


def _type_words(kind: Any) -> str:
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(kind))
    if get_origin(kind) is list:
        return f"a list, each item {_type_words(get_args(kind)[0])}"
    if get_origin(kind) is dict or kind is dict:
        return "a JSON object"
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return f"an object with {', '.join(kind.model_fields)}"
    return {int: "a whole number", float: "a finite number", bool: "true or false", str: "text"}.get(kind, "a value")


def parsed(path: str, info: FieldInfo, text: str) -> Any:
    """The value that `path=text` means. What is not of the field's type goes on as text, for validation to refuse it by name."""
    types, nullable = kinds(info)
    if nullable and text.strip().lower() in ("null", "none"):
        return None
    if section(info) is not None or any(get_origin(kind) in (list, dict) for kind in types):
        try:
            return json.loads(text)
        except (ValueError, RecursionError):
            raise ConfigError("the value is not JSON", field=path, value=text, cure=f"give {limits(info)}, as JSON") from None
    if any(kind is str or (get_origin(kind) is Literal and isinstance(get_args(kind)[0], str)) for kind in types):
        return text
    return loose(text)


def loose(text: str) -> Any:
    """JSON where the text is JSON (numbers, true, false, null, lists, objects), the text itself otherwise."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def fault(item: Any) -> HeadraceError:
    """One of pydantic's errors in our words: dotted field, value, cure with the limits."""
    location = [str(part) for part in item["loc"]]
    path = ".".join(location) or "spec"
    if item["type"] == "extra_forbidden":
        return _unknown(location, item["input"])
    info = find(path) or find(".".join(location[:-1]))
    message = str(item["msg"]).removeprefix("Value error, ")
    cure = f"give {limits(info)}" if info else "give an object with the section's fields"
    return ConfigError(message[:1].lower() + message[1:], field=path[:200], value=item["input"], cure=cure)


def _unknown(location: list[str], value: Any) -> HeadraceError:
    above, name = ".".join(location[:-1]), location[-1]
    model: type[BaseModel] = RunConfig
    for part in location[:-1]:
        model = section(model.model_fields[part]) or model
    known = list(model.model_fields)
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    elsewhere = [path for path in ending_in(name) if path != f"{above}.{name}"]
    if any(path.rpartition(".")[2] == name for path in elsewhere) or (elsewhere and not close):
        cure = f"did you mean {' or '.join(elsewhere)}?"
    elif close:
        cure = f"did you mean {'.'.join([*location[:-1], close[0]])}?"
    else:
        cure = f"the fields of {above or 'a config'} are: {', '.join(known)}"
    return ConfigError("there is no such field", field=".".join(location)[:200], value=value, cure=cure)
