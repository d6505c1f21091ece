"""`plan`, `race`, `sweep`, `forecast` and `calibrate` of `python -m workers`: arguments in, tables or JSON out."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from workers.contract import loading
from workers.contract.errors import ConfigError, ExitCode
from workers.contract.lesson import KNOBS

Say = Callable[..., None]
NICE = 10  # a forecast steps back behind runs on the same machine


def add_parsers(commands: Any) -> None:
    """Called by `python -m workers` for its list of commands."""
    plan = commands.add_parser("plan", help="what a design would come to on hardware that is not there yet")
    plan.add_argument("--preset", help="the design")
    plan.add_argument("--list", action="store_true", help="the scenarios there are")
    race = commands.add_parser("race", help="several designs at one scenario, planned side by side")
    race.add_argument("--presets", default="all", help="all, or names with commas between them (default: all)")
    race.add_argument("--out", type=Path, help="write a page that needs nothing else")
    sweep = commands.add_parser("sweep", help="one knob through its values: where more of it stops paying")
    sweep.add_argument("--preset", required=True, help="the design")
    sweep.add_argument("--over", required=True, help="staleness.depth_bound, buffer.depth, staleness.max_lag, sync.every_steps or split")
    sweep.add_argument("--values", help="numbers with commas between them (default: the knob's own)")
    for command in (plan, race, sweep):
        command.add_argument("--scenario", help="a name (see plan --list), or a TOML or JSON file")
        command.add_argument(
            "--set", dest="sets", action="append", default=[], metavar="PATH=VALUE", help="override a field of the scenario or of the run"
        )
        command.add_argument("--json", action="store_true", help="print JSON")
    lesson = commands.add_parser("lesson", help="asynchronous RL in one small simulation, as JSON: what the help page draws")
    for knob in KNOBS:
        lesson.add_argument(f"--{knob.name.replace('_', '-')}", type=float, help=knob.says)
    forecast = commands.add_parser("forecast", help="a run of your own before it runs, at the costs that another run has measured")
    forecast.add_argument("spec", type=Path, help="JSON or TOML file, as `run` takes it")
    forecast.add_argument("--scenario", required=True, help="what `calibrate` wrote")
    forecast.add_argument("--json", action="store_true", help="print JSON")
    calibrate = commands.add_parser("calibrate", help="a scenario fitted on runs of your own")
    calibrate.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folders of runs: spool, config.json, summary.json")
    calibrate.add_argument("--out", type=Path, help="write the scenario, as JSON (default: print it)")
    calibrate.add_argument("--name", default="calibrated", help="the scenario's name")


def run(arguments: argparse.Namespace, say: Say) -> int:
    """Called with a command of `add_parsers`. Ctrl-C ends it without a result."""
    try:
        return COMMANDS[arguments.command](arguments, say)
    except KeyboardInterrupt:
        tell("stopped; nothing was written")
        return int(ExitCode.CANCELLED)


def tell(line: str) -> None:
    """Progress, beside the result."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


def _plan(arguments: argparse.Namespace, say: Say) -> int:
    from workers.planner import scenarios
    from workers.planner.plan import plan
    from workers.planner.words import told

    if arguments.list:
        rows = scenarios.describe()
        say(json.dumps(rows, indent=1) if arguments.json else "\n".join(f"{row['name']:24}{row['title']}" for row in rows))
        return ExitCode.OK
    if arguments.preset is None:
        raise ConfigError("a plan is of a design", field="preset", cure="name one with --preset; `python -m workers presets` lists them")
    scenario, others = _scenario(arguments)
    result = plan(arguments.preset, scenario, others)
    say(as_json(result) if arguments.json else told(result))
    return ExitCode.OK


def _race(arguments: argparse.Namespace, say: Say) -> int:
    from workers.planner import race

    scenario, others = _scenario(arguments)
    began = time.monotonic()
    names = race.chosen(arguments.presets)
    result = race.race(names, scenario, others, tell)
    tell(f"{len(result['rows'])} of {len(names)} planned in {time.monotonic() - began:.0f} s")
    if arguments.out is not None:
        arguments.out.write_text(race.page(result), encoding="utf-8")
        tell(f"written: {arguments.out}")
    say(as_json(result) if arguments.json else columns([race.COLUMNS, *map(race.cells, result["rows"])]))
    return ExitCode.OK if result["rows"] else ExitCode.FAILED


def _sweep(arguments: argparse.Namespace, say: Say) -> int:
    from workers.planner.sweep import sweep

    scenario, others = _scenario(arguments)
    began = time.monotonic()
    result = sweep(arguments.preset, scenario, arguments.over, _numbers(arguments.values), others, tell)
    tell(f"{len(result['cells'])} cells in {time.monotonic() - began:.0f} s")
    if arguments.json:
        say(as_json(result))
        return ExitCode.OK
    rows = [[result["says"], "samples a second", "step s", "overlap", "lag mean"]]
    for cell in result["cells"]:
        told = cell.get("plan")
        if told is None:
            rows.append([f"{cell['value']:g}", cell["error"]["message"], "", "", ""])
            continue
        lag = told["lag"]["mean"]
        figures = [f"{told['samples_per_s']:.4g}", f"{told['step_s']:.4g}", f"{told['overlap']:.3f}", "-" if lag is None else f"{lag:.2f}"]
        rows.append([f"{cell['value']:g}", *figures])
    say(columns(rows), f"knee: {result['knee']['value']:g} ({result['knee']['words']})")
    return ExitCode.OK


def _forecast(arguments: argparse.Namespace, say: Say) -> int:
    from workers.planner import scenarios
    from workers.planner.forecast import forecast
    from workers.planner.words import told

    if hasattr(os, "nice"):
        os.nice(NICE)
    config = loading.resolve(loading.read(arguments.spec), None)
    result = forecast(config, scenarios.load(arguments.scenario))
    say(as_json(result) if arguments.json else told(result))
    return ExitCode.OK


def _calibrate(arguments: argparse.Namespace, say: Say) -> int:
    from workers.planner.calibrate import calibrate

    result = calibrate(arguments.runs, arguments.name)
    text = json.dumps(result["scenario"], indent=1)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")
        tell(f"written: {arguments.out}")
    else:
        say(text)
    for line in result["fit"]:
        tell(line)
    return ExitCode.OK


def _lesson(arguments: argparse.Namespace, say: Say) -> int:
    from workers.planner.lesson import lesson

    say(as_json(lesson(**{knob.name: value for knob in KNOBS if (value := getattr(arguments, knob.name)) is not None})))
    return ExitCode.OK


COMMANDS = {"lesson": _lesson, "plan": _plan, "race": _race, "sweep": _sweep, "forecast": _forecast, "calibrate": _calibrate}


def _scenario(arguments: argparse.Namespace) -> tuple[Any, list[str]]:
    """The scenario with its overrides, and those of the run."""
    from workers.planner import scenarios

    if arguments.scenario is None:
        known = ", ".join(scenarios.names())
        raise ConfigError("a plan is made for a scenario", field="scenario", cure=f"name one with --scenario: {known}; or give a file")
    ours, others = scenarios.parted(arguments.sets)
    return scenarios.load(arguments.scenario, ours), others


def _numbers(text: str | None) -> list[float]:
    try:
        return [float(item) for item in text.split(",")] if text else []
    except ValueError:
        raise ConfigError("is no list of numbers", field="values", value=text, cure="for example 1,2,4") from None


def as_json(result: Any) -> str:
    """The same result, the same bytes."""
    return json.dumps(result, indent=1, sort_keys=True)


def columns(rows: Any) -> str:
    """Rows of texts under one another, aligned."""
    rows = [list(row) for row in rows]
    widths = [max(len(row[place]) for row in rows) for place in range(len(rows[0]))]
    return "\n".join("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows)
