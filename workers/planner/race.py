"""Several designs at one scenario, side by side: rows of plans, a table, and a page."""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from typing import Any

from workers.contract import presets
from workers.contract.errors import ConfigError, HeadraceError
from workers.parts import TRAINER
from workers.planner import ceilings as limits
from workers.planner import design
from workers.planner.measure import GENERATORS
from workers.planner.plan import dominant_wait, plan
from workers.planner.scenario import Scenario

Tell = Callable[[str], None]  # a line of progress
COLUMNS = (
    "preset",
    "samples a second",
    "step s",
    "overlap",
    "lag mean",
    "lag p95",
    "buffer",
    "dropped",
    "engines wait for",
    "trainer waits for",
)


def chosen(which: str) -> list[str]:
    """Preset names from "all" (the eighteen libraries) or "a,b". Raises ConfigError naming those there are."""
    given = list(presets.LIBRARIES) if which == "all" else [name.strip() for name in which.split(",") if name.strip()]
    if not given:
        raise ConfigError("names no preset", field="presets", value=which, cure="give all, or names with commas between them")
    for name in given:
        presets.read(name)
    return given


def race(names: Sequence[str], scenario: Scenario, sets: Sequence[str] = (), tell: Tell = lambda line: None) -> dict[str, Any]:
    """{"scenario", "rows": plans, the fastest first, "failed": errors by preset}. Called by the command line and the API.

    A design that cannot be configured at this scenario, or trains nothing, is a row of `failed` and ends nothing.
    """
    rows: list[dict[str, Any]] = []
    failed: dict[str, Any] = {}
    ceilings: dict[int, limits.Ceilings] = {}  # by passes over a batch: the preset's only part in them
    for place, name in enumerate(names, start=1):
        try:
            config = design.configured(name, scenario, sets)
            if config.batch.epochs not in ceilings:
                ceilings[config.batch.epochs] = limits.ceilings(config, scenario)
            row = plan(name, scenario, sets, ceilings[config.batch.epochs])
        except HeadraceError as error:
            failed[name] = error.as_dict()
            tell(f"[{place}/{len(names)}] {name}: {error}")
            continue
        rows.append(row)
        tell(f"[{place}/{len(names)}] {name}: {row['samples_per_s']:.4g} samples/s, overlap {row['overlap']:.3f}")
    rows.sort(key=lambda row: (-row["samples_per_s"], row["preset"]))
    return {"scenario": scenario.model_dump(mode="json"), "rows": rows, "failed": failed}


def cells(row: dict[str, Any]) -> list[str]:
    """One plan as a row of the table."""
    return [
        row["preset"].partition("@")[0],
        f"{row['samples_per_s']:.4g}",
        f"{row['step_s']:.4g}",
        f"{row['overlap']:.3f}",
        _number(row["lag"]["mean"], ".2f"),
        _number(row["lag"]["p95"], "d"),
        f"{row['buffer_depth']['batches']:.2f} batches",
        _number(row["dropped_share"], ".1%"),
        *(_wait(row, lane) for lane in (GENERATORS, TRAINER)),
    ]


def _number(value: float | None, shape: str) -> str:
    return "-" if value is None else format(value, shape)


def _wait(row: dict[str, Any], lane: str) -> str:
    wait = dominant_wait(row, lane)
    return "-" if wait is None else f"{wait[0].removeprefix('wait_').replace('_', ' ')} {wait[1]:.0%}"


def page(result: dict[str, Any]) -> str:
    """The race as one HTML file that needs nothing else: Plotly's JavaScript is in it."""
    from plotly.offline import get_plotlyjs
    from plotly.subplots import make_subplots

    rows, scenario = result["rows"], result["scenario"]
    names = [row["preset"].partition("@")[0] for row in rows]
    figure = make_subplots(
        rows=1, cols=4, shared_yaxes=True, subplot_titles=("samples a second", "engines' time", "trainer's time", "lag: mean, p95")
    )
    figure.add_bar(y=names, x=[row["samples_per_s"] for row in rows], orientation="h", name="samples a second", row=1, col=1)
    for column, lane in ((2, GENERATORS), (3, TRAINER)):
        causes = sorted({cause for row in rows for cause in row["time"].get(lane, {})})
        for cause in causes:
            shares = [row["time"].get(lane, {}).get(cause, 0.0) for row in rows]
            figure.add_bar(y=names, x=shares, orientation="h", name=f"{lane}: {cause}", row=1, col=column)
    for key in ("mean", "p95"):
        values = [row["lag"][key] for row in rows]
        figure.add_scatter(y=names, x=values, mode="markers", name=f"lag {key}", row=1, col=4)
    figure.update_layout(barmode="stack", height=160 + 34 * max(1, len(rows)), margin={"l": 10, "r": 10})
    figure.update_yaxes(autorange="reversed", automargin=True)
    chart = figure.to_html(full_html=False, include_plotlyjs=False)
    return _PAGE.format(
        title=html.escape(scenario["title"] or scenario["name"]),
        notes="".join(f"<p>{html.escape(note)}</p>" for note in scenario["notes"]),
        script=get_plotlyjs(),
        chart=chart,
        table=_table([list(COLUMNS), *map(cells, rows)]),
        failed="".join(f"<p>{html.escape(name)}: {html.escape(error['message'])}</p>" for name, error in result["failed"].items()),
    )


def _table(rows: list[list[str]]) -> str:
    head, *body = rows
    lines = ["<tr>" + "".join(f"<th>{html.escape(cell)}</th>" for cell in head) + "</tr>"]
    lines += ["<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in row) + "</tr>" for row in body]
    return f"<table>{''.join(lines)}</table>"


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>{title}</title>
<style>body{{font:15px/1.5 system-ui,sans-serif;margin:2rem;max-width:110rem}}table{{border-collapse:collapse;margin:1rem 0}}
th,td{{border-bottom:1px solid #ccc;padding:.3rem .8rem;text-align:left}}td:nth-child(n+2){{font-variant-numeric:tabular-nums}}</style>
<script>{script}</script></head>
<body><h1>{title}</h1>{notes}{chart}{table}{failed}</body></html>
"""
