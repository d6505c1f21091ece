"""Presets: one design each, as data in `workers/presets/*.toml`. A `[preset]` table says what it is; the rest are config overrides.

Beneath a preset's own overrides lie, in this order: those sections of the demo that make every preset trainable on one small
machine (`workload = "demo"`), and for a variant the overrides of the preset that it varies. A key of the upper layer replaces
the same key of the layer below, section by section; lists are replaced whole.
"""

from __future__ import annotations

import copy
import difflib
import re
import tomllib
from dataclasses import asdict, dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from workers.contract.errors import ConfigError

DEFAULT = "demo"
FOLDER = Path(__file__).resolve().parent.parent / "presets"

# The sixteen libraries of the survey and TRL twice, in the order in which they are shown.
LIBRARIES = (
    "verl",
    "art",
    "slime",
    "areal",
    "verifiers-rl",
    "open-instruct",
    "roll",
    "tunix",
    "skyrl",
    "nemo-rl",
    "prime-rl",
    "miles",
    "atropos",
    "oat",
    "torchforge",
    "pipelinerl",
    "trl-sync",
    "trl-async",
)

# What `workload = "demo"` takes from the demo: the task and its size, never the design. All presets are compared on the same batch.
WORKLOAD = ("model", "environment", "batch", "sampling", "evaluation", "budget")

_TEXTS = ("name", "title", "description", "library", "project", "date", "survey", "signature")
_LISTS = ("provenance", "approximates")
_REQUIRED = frozenset({*_TEXTS, *_LISTS, "version"})
_OPTIONAL = frozenset({"variant_of", "workload"})
# A variant says what is different; these it has from the preset that it varies, if it does not say them itself.
_INHERITED = frozenset({"library", "project", "survey", "approximates", "workload"})
_SOURCE = frozenset({"option", "value", "file"})
_DATE = re.compile(r"\d{4}-\d{2}(-\d{2})?")


@dataclass(frozen=True)
class Preset:
    """What a preset says of itself.

    date: when the library's own files were read. survey: what the survey of March 2026 said of it. provenance: the library's
    own options, their values and files; of a variant only those that differ. approximates: where the published design is only
    approximated, and by what, one sentence each. signature: what a run of it must show. variant_of: the preset of the same
    library that this one varies.
    """

    name: str
    version: int
    title: str
    description: str
    library: str
    project: str
    date: str
    survey: str
    provenance: list[dict[str, str]]
    approximates: list[str]
    signature: str
    variant_of: str | None = None
    workload: str | None = None

    @property
    def label(self) -> str:
        """What `RunConfig.preset` stores."""
        return f"{self.name}@{self.version}"


def names() -> list[str]:
    """Every preset's name: the demo, the eighteen, then the variants, each beside its siblings. Called by the form, the CLI and the API."""
    order = {name: position for position, name in enumerate((DEFAULT, *LIBRARIES))}

    def place(name: str) -> tuple[int, int, str]:
        if name in order:
            return 0, order[name], name
        return 1, order.get(str(_tables(name)[0].get("variant_of")), len(order)), name

    return sorted((path.stem for path in FOLDER.glob("*.toml")), key=place)


def load(name: str) -> dict[str, Any]:
    """The preset called `name`: {"preset": {its metadata}, "config": {overrides of RunConfig}}.

    Raises ConfigError naming the presets there are. The result is the caller's own copy.
    """
    meta, config = read(name)
    return {"preset": asdict(meta), "config": config}


def describe() -> list[dict[str, Any]]:
    """Every preset as JSON, with `axes` = {axis: its kinds}. Called by `python -m workers presets`, the form and the API."""
    return [described(name) for name in names()]


def described(name: str) -> dict[str, Any]:
    """One preset as JSON. Raises ConfigError when there is none of that name."""
    from workers.contract import design, loading  # which read presets themselves

    return {**asdict(read(name)[0]), "axes": design.kinds(loading.resolve(preset=name))}


def catalogue(*, everything: bool = False) -> list[dict[str, Any]]:
    """The eighteen, each with its `variants`; `everything` puts the demo before them. Called by `python -m workers presets --json`."""
    rows = {row["name"]: row for row in describe()}
    heads = [*((DEFAULT,) if everything else ()), *LIBRARIES]
    return [{**rows[head], "variants": [row for row in rows.values() if row["variant_of"] == head]} for head in heads]


def read(name: str) -> tuple[Preset, dict[str, Any]]:
    """Metadata and overrides of one preset, both the caller's own. Raises ConfigError when there is none of that name."""
    known = names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError("no such preset", field="preset", value=name, cure=f"{hint}choose one of: {', '.join(known)}")
    table, config = _tables(name)
    parent = table.get("variant_of")
    if parent is None:
        return Preset(**_valid(name, table)), _workload(name, table.get("workload"), config)
    if parent not in known or parent == name or "variant_of" in _tables(parent)[0]:
        raise _broken(name, f"variant_of must name a preset that is no variant itself, not {parent!r}")
    base, below = read(parent)
    inherited = {key: value for key, value in asdict(base).items() if key in _INHERITED}
    return Preset(**_valid(name, {**inherited, **table})), merged(below, config)


def merged(lower: dict[str, Any], upper: dict[str, Any]) -> dict[str, Any]:
    """`upper` over `lower`, table by table; every other value is replaced whole."""
    result = dict(lower)
    for key, value in upper.items():
        below = result.get(key)
        result[key] = merged(below, value) if isinstance(below, dict) and isinstance(value, dict) else value
    return result


def _workload(name: str, workload: Any, config: dict[str, Any]) -> dict[str, Any]:
    if workload is None:
        return config
    if workload != DEFAULT:
        raise _broken(name, f"workload must be {DEFAULT!r} or left out, not {workload!r}")
    demo = _tables(DEFAULT)[1]
    base = {section: demo[section] for section in WORKLOAD} | {"lora": {"rank": demo["lora"]["rank"]}}
    return merged(base, config)


def _valid(name: str, table: dict[str, Any]) -> dict[str, Any]:
    """The [preset] table, every key of it checked. Raises ConfigError."""
    table = {key: value for key, value in table.items() if value is not None or key not in _OPTIONAL}
    missing, unknown = _REQUIRED - table.keys(), table.keys() - _REQUIRED - _OPTIONAL
    if missing or unknown:
        raise _broken(
            name, "; ".join(f"{what} {', '.join(sorted(keys))}" for what, keys in (("missing", missing), ("unknown", unknown)) if keys)
        )
    wrong = [key for key in _TEXTS if not isinstance(table[key], str)] + [key for key in _LISTS if not isinstance(table[key], list)]
    if wrong or type(table["version"]) is not int or table["version"] < 1:
        raise _broken(name, f"wrong type: {', '.join(wrong) or 'version'}")
    if table["name"] != name:
        raise _broken(name, f"its name is that of the file, not {table['name']!r}")
    if not _DATE.fullmatch(table["date"]):
        raise _broken(name, f"date is written 2026-03 or 2026-03-31, not {table['date']!r}")
    for row in table["provenance"]:
        if not isinstance(row, dict) or row.keys() != _SOURCE or not all(isinstance(value, str) and value for value in row.values()):
            raise _broken(name, "each row of provenance holds the texts option, value and file")
    if not all(isinstance(sentence, str) and sentence.endswith(".") for sentence in table["approximates"]):
        raise _broken(name, "approximates holds sentences")
    return {key: value for key, value in table.items() if key in {field.name for field in fields(Preset)}}


def _broken(name: str, message: str) -> ConfigError:
    return ConfigError(f"the preset's [preset] table is wrong: {message}", field="preset", value=name, cure=f"correct {FOLDER / name}.toml")


def _tables(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The [preset] table and the overrides of one file, a copy for each caller."""
    table = copy.deepcopy(_parsed(name))
    meta = table.pop("preset", {})
    if not isinstance(meta, dict):
        raise _broken(name, "it is no table")
    return meta, table


@cache
def _parsed(name: str) -> dict[str, Any]:
    return tomllib.loads((FOLDER / f"{name}.toml").read_text(encoding="utf-8"))
