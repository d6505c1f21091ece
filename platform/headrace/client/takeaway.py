"""The commands that bring something home: tables, adapters, answers of the weights, reports of races."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.client.commands import AsJson, RunId, Server, TokenFile, connected, inert
from workers.contract.errors import HeadraceError

FORMATS = (".parquet", ".csv", ".jsonl")


def register(app: typer.Typer) -> None:
    """Called once by `headrace.cli`."""
    for command in (export, download, ask, races, race):
        app.command(command.__name__)(command)


def export(
    run: RunId,
    out: Annotated[Path | None, typer.Option(help="file to write (default: RUN-WHAT.FORMAT here)")] = None,
    what: Annotated[str, typer.Option(help="series, samples, logs or events")] = "series",
    form: Annotated[str | None, typer.Option("--format", help="parquet, csv or jsonl (default: as --out ends, else parquet)")] = None,
    names: Annotated[str, typer.Option(help="these series alone, by comma")] = "",
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """A whole table of a run as a file for other tools."""
    form = form or (out.suffix[1:] if out is not None and out.suffix in FORMATS else "parquet")
    target = _fresh(out or Path(f"{run}-{what}.{form}"))
    with connected(server, token_file) as client:
        written = client.export(run, target, what=what, form=form, names=[name for name in names.split(",") if name])
    typer.echo(f"{target}: {written:,} bytes")


def download(
    run: RunId,
    step: Annotated[int | None, typer.Option(help="the checkpoint of this step (default: the newest)")] = None,
    out: Annotated[Path | None, typer.Option(help="file to write (default: RUN-adapter.zip here)")] = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """The adapter a run learned, in the layout of PEFT, with a model card."""
    target = _fresh(out or Path(f"{run}-adapter.zip"))
    with connected(server, token_file) as client:
        chosen = client.adapter(run, target, step=step)
    typer.echo(f"{target}: zip with the adapter of step {chosen.step}, {target.stat().st_size:,} bytes")


def ask(
    run: RunId,
    prompts: Annotated[list[str], typer.Argument(metavar="PROMPT...", help="up to four")],
    step: Annotated[int | None, typer.Option(help="the checkpoint of this step (default: the newest)")] = None,
    checkpoint: Annotated[str | None, typer.Option(help="public id of a checkpoint, instead of its step")] = None,
    base: Annotated[bool, typer.Option("--base", help="the base model alone")] = False,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """The base model and a checkpoint answer a prompt of yours."""
    with connected(server, token_file) as client:
        chosen = checkpoint if checkpoint or base else client.checkpoint(run, step=step).id
        found = client.ask(run, prompts, checkpoint=chosen)
        if as_json:
            typer.echo(found.model_dump_json())
        elif found.state != "done":
            told = found.problem or {}
            raise HeadraceError(f"{found.state}: {told.get('message') or 'no cause was reported'}", cure=told.get("cure") or "ask again")
        for answer in [] if as_json else (found.result or {}).get("answers", []):
            typer.echo(inert(f"> {answer.get('prompt')}"))
            for side in ("base", "trained"):
                if answer.get(side):
                    typer.echo(inert(f"  {side:<8}{answer[side].get('completion')}"))


def races(server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """The newest races."""
    with connected(server, token_file) as client:
        for row in client.races():
            line = f"{row.id}  {row.state:<10}  {row.over}/{row.total}  {row.name}: {', '.join(row.contenders)}"
            typer.echo(row.model_dump_json() if as_json else inert(line))


def race(
    race: Annotated[str, typer.Argument(metavar="RACE", help="public id of the race")],
    report: Annotated[Path | None, typer.Option(help="write the report to this file: .html or .csv")] = None,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """A race as it stands; with --report its whole report."""
    with connected(server, token_file) as client:
        found = client.race(race)
        if report is not None:
            typer.echo(f"{report}: {client.report(race, _fresh(report)):,} bytes")
        elif as_json:
            typer.echo(found.model_dump_json())
        else:
            typer.echo(inert(f"{found.name}: {found.state}, {found.live['over']} of {found.live['total']} entries are over"))
            typer.echo(f"{client.server}/races/{found.id}/")


def _fresh(target: Path) -> Path:
    if target.exists():
        raise typer.BadParameter(f"{target} exists -> choose another name", param_hint="--out")
    return target
