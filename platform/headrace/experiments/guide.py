"""The help pages: axes, losses, presets, and how to add a kind. Made from the contract's tables; the last one from a text beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from django.conf import settings
from django.http import HttpRequest, HttpResponse
from django.shortcuts import render
from django.views.decorators.http import require_safe

from headrace.experiments import forms
from headrace.schema_form import fields_of, lookup, written
from workers.contract import axes, design, events, metrics, presets
from workers.contract.axes import INTERRUPTS, PAYLOADS
from workers.contract.formulas import DIFFERENCES, FORMULAS

PAGES = (
    ("async", "Asynchronous RL"),
    ("axes", "Axes"),
    ("losses", "Losses"),
    ("presets", "Presets"),
    ("add-a-kind", "Add your own"),
    ("api", "API"),
)
SHORT_AXES = {"orchestration": "Carrier", "rollout": "Engine"}


@dataclass(frozen=True)
class Piece:
    """One piece of a help text: a heading, a paragraph, or code (with the file it belongs to and what to do with it)."""

    kind: Literal["heading", "paragraph", "code"]
    text: str
    how: str = ""
    file: str = ""


def axis_title(axis: str) -> str:
    return forms.AXIS_TITLES.get(axis, axis.replace("_", " ").capitalize())


def design_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """A run's kind on every axis with its sentence and its numbers, for the run's page. A config of an older schema shows what it has."""
    found = []
    for axis, path in design.FIELDS.items():
        value = lookup(data, path)
        kinds = value if isinstance(value, list) else [value]
        words = [{"name": str(kind), "description": axes.DESCRIPTIONS[axis].get(str(kind), "")} for kind in kinds if kind is not None]
        found.append({"axis": axis, "title": axis_title(axis), "kinds": words, "facts": _facts(axis, data)})
    return found


def _facts(axis: str, data: dict[str, Any]) -> str:
    """What tells two runs of the same kind apart, in a few words."""
    bound = lookup(data, "staleness.depth_bound") or {}
    facts = {
        "buffer": {
            "bounded": f"{lookup(data, 'buffer.depth')} {lookup(data, 'buffer.unit')}s",
            "stream": f"ring {lookup(data, 'buffer.ring') or 'none'}",
        }.get(str(lookup(data, "buffer.kind")), ""),
        "transport": f"every {lookup(data, 'sync.every_steps')} steps" if (lookup(data, "sync.every_steps") or 1) > 1 else "every step",
        "interrupt": f"cache: {lookup(data, 'interrupt.kv_after')}" if lookup(data, "interrupt.kv_after") else "",
        "staleness": f"lag {lookup(data, 'staleness.max_lag')}" + (f", under way {bound['value']:g} {bound['unit']}" if bound else ""),
        "backend": f"{lookup(data, 'backend.ranks')} ranks" if (lookup(data, "backend.ranks") or 1) > 1 else "",
    }
    return facts.get(axis, "")


def preset_of(label: str) -> dict[str, Any] | None:
    """The preset a run began from, as described today; None where there was none or it is gone."""
    name = label.partition("@")[0]
    return presets.described(name) if name in presets.names() else None


@require_safe
def axes_page(request: HttpRequest) -> HttpResponse:
    """What each axis, option, combination, metric and event means: the contract's own tables."""
    known = fields_of(forms.schema())
    blocks = {block.name: block for section in forms.sections() for block in section.blocks}
    rows = []
    for axis, kinds in axes.AXES.items():
        path = design.FIELDS[axis]
        block = blocks.get(path.partition(".")[0])
        rows.append(
            {
                "name": axis,
                "title": axis_title(axis),
                "path": path,
                "help": block.description if block and block.name == axis else known[path].help,
                "kinds": [{"name": kind, "description": axes.DESCRIPTIONS[axis][kind]} for kind in kinds],
                "options": _options(axis, path),
            }
        )
    context = {
        "axes": rows,
        "interrupts": [
            {"kind": kind, "caches": [word for word in ("keep", "recompute", "flush") if word in caches], "partials": sorted(partials)}
            for kind, (caches, partials) in INTERRUPTS.items()
        ],
        "payloads": [{"lora": lora, "payloads": payloads} for lora, payloads in PAYLOADS.items()],
        "metrics": [*metrics.CATALOGUE.values(), *metrics.PATTERNS.values()],
        "events": events.DESCRIPTIONS.items(),
    }
    return page(request, "axes", context)


def _options(axis: str, path: str) -> list[dict[str, Any]]:
    """The other fields of an axis' block, with their words where they have some."""
    block = path.partition(".")[0]
    return [
        {
            "path": item.path,
            "title": item.title,
            "help": item.help,
            "limits": item.limits,
            "choices": item.choices,
            "explained": item.explained,
        }
        for section in forms.sections()
        for item in (*section.main, *section.more)
        if item.path.startswith(f"{block}.") and item.path not in design.FIELDS.values() and block == axis
    ]


@require_safe
def losses_page(request: HttpRequest) -> HttpResponse:
    """Every word of the loss block with its formula and source, named corrections, and why two libraries give two numbers."""
    known = {item.path: item for section in forms.sections() for item in (*section.main, *section.more)}
    parts = {part.path: part for item in known.values() for part in item.parts}

    def group(path: str) -> dict[str, str]:
        if path in parts:
            return {"title": f"{known[path.rpartition('.')[0]].title}: {parts[path].title.lower()}", "help": parts[path].help}
        if path in known:
            return {"title": known[path].title, "help": known[path].help}
        return {"title": "Corrections by name", "help": "What to write into `loss.corrections`."}

    groups = [
        {
            "path": path,
            "anchor": path.replace(".", "-"),
            **group(path),
            "entries": [{"name": name, **entry, "written": written(entry.get("corrections", []))} for name, entry in entries.items()],
        }
        for path, entries in FORMULAS.items()
    ]
    return page(request, "losses", {"groups": groups, "differences": DIFFERENCES})


@require_safe
def presets_page(request: HttpRequest) -> HttpResponse:
    """The published designs side by side, then each by itself under an anchor of its name."""
    catalogue = presets.catalogue()
    shown = [axis for axis in axes.AXES if axis != "rollout"]
    rows = [
        {
            **row,
            "cells": [
                {"kinds": row["axes"][axis], "differs": parent is not None and row["axes"][axis] != parent["axes"][axis]} for axis in shown
            ],
        }
        for head in catalogue
        for row, parent in [(head, None), *((variant, head) for variant in head["variants"])]
    ]
    columns = [{"name": axis, "title": SHORT_AXES.get(axis, axis_title(axis))} for axis in shown]
    return page(request, "presets", {"columns": columns, "rows": rows, "catalogue": catalogue})


@require_safe
def add_page(request: HttpRequest) -> HttpResponse:
    return page(request, "add-a-kind", {"pieces": pieces(text())})


def text() -> str:
    """The page's source; a test follows it to the letter."""
    return (Path(settings.TEMPLATES[0]["DIRS"][0]) / "help" / "add-a-kind.md").read_text(encoding="utf-8")


def pieces(source: str) -> list[Piece]:
    """A text of headings (##), paragraphs and fenced code whose first line says `how file`: new or change, then a path."""
    found: list[Piece] = []
    blocks = source.split("```")
    for number, block in enumerate(blocks):
        if number % 2:
            head, _, body = block.partition("\n")
            how, _, file = head.partition(" ")
            found.append(Piece("code", body.rstrip("\n"), how, file.strip()))
            continue
        for part in filter(None, (piece.strip() for piece in block.split("\n\n"))):
            heading = part.startswith("## ")
            found.append(Piece("heading" if heading else "paragraph", part.removeprefix("## ").replace("\n", " ")))
    return found


def page(request: HttpRequest, name: str, context: dict[str, Any]) -> HttpResponse:
    """A help page with the others beside it."""
    return render(request, f"help/{name}.html", {"section": "help", "page": name, "pages": PAGES, **context})
