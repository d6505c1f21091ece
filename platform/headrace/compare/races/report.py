"""What the page of a race and its report show: one context for both, so that neither says what the other does not."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.conf import settings
from django.template.loader import render_to_string
from django.utils import timezone
from django.utils.safestring import SafeString, mark_safe

from headrace.compare.races import drawing, plan, selectors
from headrace.compare.races.results import AXIS_WORDS, CURVE_WORDS
from headrace.experiments import guide
from headrace.experiments.models import Config
from workers.contract import axes

SHOWN_AXES = tuple(axis for axis in axes.AXES if axis != "rollout")
STYLES = ("tokens.css", "base.css", "components.css", "races.css")
LANES = {"engines": "Engines", "trainer": "Trainer"}


def context(whole: selectors.Whole) -> dict[str, Any]:
    """Everything of a race: grid, verdicts, table, charts, time, checklist."""
    live = selectors.live(whole)
    found = selectors.result(whole)
    return {
        "race": whole.race,
        "spec": whole.spec,
        "labels": whole.labels,
        "stop_words": plan.STOP_WORDS[whole.spec.stop.kind],
        "stop_value": f"{whole.spec.stop.value:,g}",
        "live": live,
        "grid": grid(whole, live),
        "result": found,
        "headlines": [_headline(row) for row in found["headlines"]],
        "rows": [_row(row, whole.labels) for row in (*found["headlines"], *found["rows"])],
        "pairs": [_pairs(row) for row in (*found["headlines"], *found["rows"]) if row["ranking"] and row["ranking"]["comparisons"]],
        "charts": [_charts(curve, found) for curve in CURVE_WORDS],
        "time": [_time(label, found["time"].get(label)) for label in whole.labels],
        "legend": _legend(found["time"]),
        "axes": _axes(whole),
        "fair": selectors.checklist_of(whole),
        "provenance": found["provenance"],
        "workload": _workload(whole),
    }


def page(whole: selectors.Whole, *, by: str) -> str:
    """The report: one HTML file, styles inside, no script and no address but those of the runs."""
    extra = {"styles": styles(), "made_at": timezone.now(), "made_by": by, "base_url": settings.BASE_URL}
    return render_to_string("races/report.html", {**context(whole), **extra})


def styles() -> SafeString:
    """The product's own style sheets as text; `</` cannot occur in them."""
    folder = Path(settings.FRONTEND) / "static" / "css"
    text = "\n".join((folder / name).read_text(encoding="utf-8") for name in STYLES)
    return mark_safe(text.replace("</", "<\\/"))


def grid(whole: selectors.Whole, live: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Contenders by seeds: {label, preset, cells in the order of the seeds}."""
    cells = {(cell["contender"], cell["seed"]): cell for cell in live["entries"]}
    return [
        {
            "label": contender.label,
            "preset": contender.preset,
            "changes": contender.changes,
            "color": number % drawing.COLORS + 1,
            "cells": [_shown_cell(cells[number, seed]) for seed in whole.spec.seeds],
        }
        for number, contender in enumerate(whole.spec.contenders)
    ]


def _shown_cell(cell: Mapping[str, Any]) -> dict[str, Any]:
    over = cell["state"] in ("failed", "lost", "cancelled")
    value = cell["heldout"] if cell["heldout"] is not None else cell["reward"]
    return {**cell, "again": over, "value": value, "percent": round(100 * (cell["share"] or 0), 1)}


def number(value: float | None, unit: str, like: float | None = None) -> str:
    """A figure as it is written; no data is a dash. `like`: the figure beside which it stands, whose digits it takes."""
    if value is None:
        return "–"
    size = abs(value if like is None else like)
    if unit == "share":
        return f"{100 * value:.{1 if size >= 0.01 else 2}f} %"
    if unit == "s":
        return f"{1000 * value:.1f} ms" if size < 1 else f"{value:,.1f} s"
    if unit in ("samples", "tokens") or size >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3f}" if size < 10 else f"{value:.1f}"


def _headline(row: Mapping[str, Any]) -> dict[str, Any]:
    ranking = row["ranking"]
    at = number(row["at"], row["at_unit"]) + ("" if row["at_unit"] == "s" else f" {row['at_unit']}") if row["at"] is not None else ""
    return {
        "title": row["title"],
        "words": ranking["words"] if ranking else "No data yet.",
        "winner": ranking["winner"] if ranking else None,
        "at": at,
    }


def _row(row: Mapping[str, Any], labels: list[str]) -> dict[str, Any]:
    winner = row["ranking"]["winner"] if row["ranking"] else None
    cells = []
    for label in labels:
        cell = row["cells"].get(label)
        seeds = "; ".join(f"seed {seed}: {number(value, row['unit'])}" for seed, value in cell["seeds"].items()) if cell else ""
        half = number(cell["half"], row["unit"], cell["mean"]) if cell and cell["half"] is not None else ""
        cells.append({"text": number(cell["mean"] if cell else None, row["unit"]), "half": half, "best": label == winner, "seeds": seeds})
    unit = row["unit"] if row["unit"] not in ("share", "s", "samples", "tokens") else ""
    return {"title": row["title"], "text": row["text"], "unit": unit, "cells": cells, "headline": "at" in row}


def _pairs(row: Mapping[str, Any]) -> dict[str, Any]:
    unit = row["unit"]
    found = [
        {
            **pair,
            "difference": _signed(pair["difference"], unit),
            "interval": f"{_signed(pair['lo'], unit)} to {_signed(pair['hi'], unit)}" if pair["lo"] is not None else "–",
            "p": _probability(pair["p"]),
            "p_holm": _probability(pair["p_holm"]),
            "how": {"paired": "paired by seed", "welch": "Welch", "none": pair["why"]}[pair["method"]],
            "verdict": "differ" if pair["significant"] else pair["why"] or "cannot be told apart",
        }
        for pair in row["ranking"]["comparisons"]
    ]
    return {"title": row["title"], "words": row["ranking"]["words"], "pairs": found}


def _signed(value: float | None, unit: str) -> str:
    if value is None:
        return "–"
    return ("+" if value > 0 else "−" if value < 0 else "") + number(abs(value), unit)


def _probability(value: float | None) -> str:
    if value is None:
        return "–"
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def _charts(curve: str, found: Mapping[str, Any]) -> dict[str, Any]:
    drawn = [
        {"axis": axis, "drawing": drawing.chart(CURVE_WORDS[curve], _axis_title(axis), found["curves"][curve][axis])} for axis in AXIS_WORDS
    ]
    return {"key": curve, "title": CURVE_WORDS[curve], "drawn": drawn, "bare": not any(item["drawing"].lines for item in drawn)}


def _axis_title(axis: str) -> str:
    return "seconds since the start" if axis == "wall_s" else "samples trained"


def _time(label: str, told: Mapping[str, Mapping[str, float]] | None) -> dict[str, Any]:
    lanes = [{"title": LANES[kind], "pieces": drawing.bars(shares)} for kind, shares in (told or {}).items()]
    return {"label": label, "lanes": lanes}


def _legend(told: Mapping[str, Mapping[str, Mapping[str, float]]]) -> list[dict[str, str]]:
    seen = {cause for lanes in told.values() for shares in lanes.values() for cause in shares}
    return [{"cause": item["cause"], "words": item["words"]} for item in drawing.bars(dict.fromkeys(sorted(seen), 0.0))]


def _axes(whole: selectors.Whole) -> list[dict[str, Any]]:
    """The axes side by side: every contender's kind with its sentence; what is unlike the first contender's is marked."""
    first: dict[int, Config] = {}
    for entry in whole.entries:
        first.setdefault(entry.contender, entry.config)
    designs = [guide.design_of(first[number].data) for number in range(len(whole.spec.contenders))]
    rows = []
    for position, head in enumerate(designs[0]):
        cells = []
        for one in designs:
            kinds = [kind["name"] for kind in one[position]["kinds"]]
            cells.append({"kinds": kinds, "facts": one[position]["facts"]})
        different = [cell != cells[0] for cell in cells]
        rows.append(
            {
                "title": head["title"],
                "cells": [{**cell, "differs": unlike} for cell, unlike in zip(cells, different, strict=True)],
                "differs": any(different),
            }
        )
    return rows


def _workload(whole: selectors.Whole) -> list[tuple[str, str]]:
    data = whole.entries[0].config.data
    batch, sampling = data["batch"], data["sampling"]
    return [
        ("Model", str(data["model"]["path"])),
        ("Task", str(data["environment"]["dataset"])),
        ("Batch", f"{batch['prompts']} prompts × {batch['group_size']} completions"),
        ("New tokens at most", str(sampling["max_new_tokens"])),
        ("Held-out test", f"{data['evaluation']['prompts']} prompts, {_how_often(data['evaluation']['every_steps'])}"),
    ]


def _how_often(steps: int) -> str:
    return f"every {steps} steps" if steps else "at the start and the end only"
