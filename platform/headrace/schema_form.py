"""One form renderer: a pydantic model's JSON Schema in, fields grouped by block out. `schema_parse` reads the POST back.

The browser form, its review page and its error messages all come from here, so a new config field needs no template.
Names of inputs are dotted config paths (`batch.prompts`), the same words as `--set` on the command line.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol

Kind = Literal["text", "textarea", "integer", "number", "boolean", "choice", "choices", "json"]
HIDDEN = frozenset({"schema_version", "preset"})


class Submitted(Protocol):
    """The part of Django's QueryDict that parsing needs."""

    def get(self, key: str, default: Any = None) -> Any: ...
    def getlist(self, key: str) -> list[Any]: ...
    def __contains__(self, key: object) -> bool: ...


@dataclass(frozen=True)
class Choice:
    """One allowed value and the sentence that explains it ("" when there is none)."""

    value: str
    description: str = ""


@dataclass(frozen=True)
class Field:
    """One input. `value` is what the input shows (text, or a list for `choices`)."""

    path: str
    kind: Kind
    title: str
    help: str = ""
    unit: str = ""
    level: str = "more"
    nullable: bool = False
    choices: tuple[Choice, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    exclusive_minimum: float | None = None
    exclusive_maximum: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    default: Any = None
    value: Any = ""
    errors: tuple[str, ...] = ()
    listed: bool = False  # json: a list of objects, not an object
    parts: tuple[Field, ...] = ()  # json: what each object may hold

    @property
    def example(self) -> str:
        """json with known parts: an object of their defaults, to begin with; "" where a part has no default."""
        if not self.parts or any(part.default is None and not part.nullable for part in self.parts):
            return ""
        value = {part.name: part.default for part in self.parts}
        return written([value] if self.listed else value)

    @property
    def input_id(self) -> str:
        return "field-" + self.path.replace(".", "-").replace("_", "-")

    @property
    def limits(self) -> str:
        """One short phrase: what the value may be."""
        low = _bound("at least", self.minimum) or _bound("above", self.exclusive_minimum)
        high = _bound("at most", self.maximum) or _bound("below", self.exclusive_maximum)
        words = ", ".join(word for word in (low, high) if word)
        return f"{words}; empty: none" if self.nullable and words else words

    @property
    def described_by(self) -> str:
        return f"{self.input_id}-help" + (f" {self.input_id}-errors" if self.errors else "")

    @property
    def step(self) -> str:
        return "1" if self.kind == "integer" else "any"

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def rows(self) -> int:
        """Height of a text area; an object of a list takes two lines of it."""
        if self.kind != "json":
            return 2
        lines = str(self.value).count("\n") + 1
        return min(14, max(4, 2 * (lines - 1) if self.listed else lines))

    @property
    def explained(self) -> bool:
        """Whether its choices have sentences."""
        return any(choice.description for choice in self.choices)

    @property
    def chosen(self) -> Choice | None:
        return next((choice for choice in self.choices if choice.value == self.value), None)


@dataclass(frozen=True)
class Block:
    """The fields of one section of the config."""

    name: str
    title: str
    description: str
    fields: tuple[Field, ...] = field(default_factory=tuple)

    @property
    def main(self) -> list[Field]:
        return [item for item in self.fields if item.level == "main"]

    @property
    def more(self) -> list[Field]:
        return [item for item in self.fields if item.level != "main"]

    @property
    def has_errors(self) -> bool:
        return any(item.errors for item in self.fields)

    @property
    def more_has_errors(self) -> bool:
        return any(item.errors for item in self.more)


def _bound(word: str, value: float | None) -> str:
    if value is None:
        return ""
    number = f"{int(value):,}" if float(value).is_integer() and abs(value) < 1e15 else f"{value:g}"
    return f"{word} {number}"


def blocks(
    schema: Mapping[str, Any],
    values: Mapping[str, Any] | None = None,
    *,
    submitted: Submitted | None = None,
    errors: Mapping[str, Iterable[str]] | None = None,
    describe: Callable[[str, str], str] | None = None,
) -> list[Block]:
    """Blocks of the form. Called for every showing of it.

    `values` is a nested config (a preset, a cloned run) filling the inputs; `submitted` wins over it, so that a faulty
    form comes back exactly as it was typed. `describe(path, choice)` gives the sentence beside a choice.
    """
    found: list[Block] = []
    roots: list[Field] = []
    for name, raw in schema["properties"].items():
        part = _resolve(schema, raw)
        if name in HIDDEN:
            continue
        if "properties" in part:
            fields = [_field(schema, f"{name}.{key}", sub, describe) for key, sub in part["properties"].items()]
            found.append(Block(name, part.get("title", name), part.get("description", ""), tuple(fields)))
        else:
            roots.append(_field(schema, name, raw, describe))
    found.insert(0, Block("run", "Run", "What holds for the run as a whole.", tuple(roots)))
    return [replace(block, fields=tuple(_filled(item, values, submitted, errors or {}) for item in block.fields)) for block in found]


def fields_of(schema: Mapping[str, Any]) -> dict[str, Field]:
    """Every field by its dotted path."""
    return {item.path: item for block in blocks(schema) for item in block.fields}


def _resolve(schema: Mapping[str, Any], part: Mapping[str, Any]) -> dict[str, Any]:
    """Follow `$ref` (and an allOf of one) and merge what stands beside it."""
    merged = dict(part)
    while "$ref" in merged or len(merged.get("allOf", ())) == 1:
        reference = merged.pop("$ref", None) or merged.pop("allOf")[0]["$ref"]
        target = schema["$defs"][reference.rsplit("/", 1)[-1]]
        merged = {**target, **merged}
    return merged


def _field(schema: Mapping[str, Any], path: str, raw: Mapping[str, Any], describe: Callable[[str, str], str] | None) -> Field:
    part = _resolve(schema, raw)
    variants = [_resolve(schema, option) for option in part.get("anyOf", ())]
    nullable = any(option.get("type") == "null" for option in variants)
    core = next((option for option in variants if option.get("type") != "null"), part)
    names = core.get("enum") or ([core["const"]] if "const" in core else None)
    items = _resolve(schema, core["items"]) if core.get("type") == "array" else {}
    if items and "properties" not in items:
        names = items.get("enum") or [items.get("const")]
    inner = items if "properties" in items else core
    return Field(
        path=path,
        kind="json" if "properties" in items else _kind(core, part, bool(names)),
        listed="properties" in items,
        parts=tuple(_field(schema, f"{path}.{key}", sub, describe) for key, sub in inner.get("properties", {}).items()),
        title=part.get("title", path),
        help=part.get("description", ""),
        unit=part.get("unit", ""),
        level=part.get("level", "more"),
        nullable=nullable,
        choices=tuple(Choice(str(name), describe(path, str(name)) if describe else "") for name in names or ()),
        minimum=core.get("minimum"),
        maximum=core.get("maximum"),
        exclusive_minimum=core.get("exclusiveMinimum"),
        exclusive_maximum=core.get("exclusiveMaximum"),
        min_length=core.get("minLength"),
        max_length=core.get("maxLength"),
        default=part.get("default"),
    )


def _kind(core: Mapping[str, Any], part: Mapping[str, Any], enumerated: bool) -> Kind:
    if core.get("type") == "array":
        return "choices"
    if enumerated:
        return "choice"
    widget = part.get("widget")
    if widget in ("json", "textarea"):
        return "json" if widget == "json" else "textarea"
    kinds: dict[str, Kind] = {"integer": "integer", "number": "number", "boolean": "boolean", "object": "json"}
    return kinds.get(core.get("type", "string"), "text")


def lookup(data: Mapping[str, Any] | None, path: str) -> Any:
    """The value at a dotted path of nested data; None where there is none."""
    value: Any = data
    for key in path.split("."):
        if not isinstance(value, Mapping) or key not in value:
            return None
        value = value[key]
    return value


def _filled(item: Field, values: Mapping[str, Any] | None, submitted: Submitted | None, errors: Mapping[str, Iterable[str]]) -> Field:
    faults = tuple(errors.get(item.path, ()))
    if submitted is not None:
        shown = submitted.getlist(item.path) if item.kind == "choices" else submitted.get(item.path, "")
        return replace(item, value=(shown in ("on", "true")) if item.kind == "boolean" else shown, errors=faults)
    return replace(item, value=as_text(item, lookup(values, item.path)), errors=faults)


def as_text(item: Field, value: Any) -> Any:
    """How a config value is written in its input; `parse` reads it back to the same value."""
    if item.kind == "boolean":
        return bool(value)
    if item.kind == "choices":
        return [str(entry) for entry in value or []]
    if value is None:
        return ""
    if item.kind == "json":
        return written(value)
    return repr(value) if isinstance(value, float) else str(value)


def written(value: Any) -> str:
    """JSON for people: a list has an item a line."""
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json.dumps(entry, ensure_ascii=False)}" for entry in value) + "\n]"
    return json.dumps(value, indent=2, ensure_ascii=False)
