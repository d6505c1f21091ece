"""Presets: one design each, as data in `workers/presets/*.toml`. A `[preset]` table says what it is; the rest are config overrides."""

from __future__ import annotations

import difflib
import tomllib
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from workers.contract.errors import ConfigError

DEFAULT = "demo"
FOLDER = Path(__file__).resolve().parent.parent / "presets"
_REQUIRED = ("name", "version", "title", "description", "provenance", "approximates")


@dataclass(frozen=True)
class Preset:
    """What a preset says of itself. `approximates`: where the published design is only approximated, one sentence each."""

    name: str
    version: int
    title: str
    description: str
    provenance: str
    approximates: list[str]

    @property
    def label(self) -> str:
        """What `RunConfig.preset` stores."""
        return f"{self.name}@{self.version}"


def names() -> list[str]:
    """Every preset's name, the default first. Called by the form, the CLI and the API."""
    found = sorted(path.stem for path in FOLDER.glob("*.toml"))
    return sorted(found, key=lambda name: name != DEFAULT)


def load(name: str) -> dict[str, Any]:
    """The preset called `name`: {"preset": {its metadata}, "config": {overrides of RunConfig}}.

    Raises ConfigError naming the presets there are. The result is the caller's own copy.
    """
    meta, config = read(name)
    return {"preset": asdict(meta), "config": config}


def describe() -> list[dict[str, Any]]:
    """Metadata of every preset, for lists. Called by `python -m workers presets`, the form and the API."""
    return [load(name)["preset"] for name in names()]


def read(name: str) -> tuple[Preset, dict[str, Any]]:
    """Metadata and overrides of one preset. Raises ConfigError when there is none of that name."""
    known = names()
    if name not in known:
        close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {close[0]}? " if close else ""
        raise ConfigError("no such preset", field="preset", value=name, cure=f"{hint}choose one of: {', '.join(known)}")
    table = tomllib.loads(_text(name))
    meta = table.pop("preset", {})
    missing = [key for key in _REQUIRED if key not in meta]
    if missing or meta.get("name") != name or len(meta) != len(_REQUIRED):
        raise ConfigError(
            "the preset's [preset] table must hold exactly " + ", ".join(_REQUIRED) + ", its name being that of the file",
            field="preset",
            value=name,
            cure=f"correct {FOLDER / (name + '.toml')}",
        )
    return Preset(**meta), table


@cache
def _text(name: str) -> str:
    return (FOLDER / f"{name}.toml").read_text(encoding="utf-8")
