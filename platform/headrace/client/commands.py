"""The commands that talk to a server: launch, watch, tail, compare, export and the buttons of a run."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.client import login
from headrace.client.connection import OVER, Client
from headrace.supervisor.progress import Console, describe
from workers.contract.errors import ExitCode

Server = Annotated[str | None, typer.Option("--server", help="address of the server (default: HEADRACE_SERVER, or where you logged in)")]
TokenFile = Annotated[
    Path | None, typer.Option("--token-file", help="file that holds an API token (default: HEADRACE_TOKEN_FILE, or the login)")
]
AsJson = Annotated[bool, typer.Option("--json", help="print the server's answer as JSON")]
RunId = Annotated[str, typer.Argument(metavar="RUN", help="public id of the run, as its page shows it")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="any value of the config; may be repeated")]
MOST_NAME = 32


@contextmanager
def connected(server: str | None, token_file: Path | None) -> Iterator[Client]:
    found = login.find(server, token_file)
    with Client(found.server, found.token) as client:
        yield client


def register(app: typer.Typer) -> None:
    """Called once by `headrace.cli`, which holds the commands of this machine."""
    for command in (log_out, whoami, launch, show, watch, tail, compare, presets, check):
        app.command(command.__name__.replace("log_", "log").replace("_", "-"))(command)
    for action, text in ACTIONS.items():
        app.command(action, help=text)(_action(action))
    app.command("extend")(extend)


def log_in(server: str, token: str) -> None:
    """Remember a server and a token, once they have been seen to work together."""
    with Client(server, token) as client:
        me = client.me()
    path = login.store(login.Login(server.rstrip("/"), token))
    typer.echo(f"{me.email}, {me.role} of {me.team}, token may {me.scope}; stored in {path}")


def log_out() -> None:
    """Forget the stored server and token. The token itself lives on until it is revoked on /account/."""
    typer.echo("forgotten" if login.forget() else "nothing was stored")


def whoami(server: Server = None, token_file: TokenFile = None) -> None:
    """Whose token this is, and what it may do."""
    with connected(server, token_file) as client:
        me = client.me()
        typer.echo(f"{me.email}, {me.role} of {me.team} at {client.server}, token may {me.scope}")


def launch(
    preset: Annotated[str | None, typer.Option(help="a preset's name (default: demo)")] = None,
    config: Annotated[Path | None, typer.Option(help="JSON or TOML file laid over the preset")] = None,
    sets: Sets = None,
    name: Annotated[str | None, typer.Option(help="what the run is called (default: the preset)")] = None,
    project: Annotated[str | None, typer.Option(help="public id of a project (default: the team's first)")] = None,
    group: Annotated[str, typer.Option(help="runs of one group are compared together")] = "",
    seeds: Annotated[str | None, typer.Option(help="one run for each seed, by comma")] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="may be repeated")] = None,
    key: Annotated[str | None, typer.Option(help="idempotency key: the same one never starts a second run")] = None,
    follow: Annotated[bool, typer.Option("--watch", help="stay and show the run's progress")] = False,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Queue a run, or one for each seed."""
    from workers.contract import loading

    spec = loading.read(config) if config else {}
    called = name or preset or "demo"
    with connected(server, token_file) as client:
        runs = []
        for seed in _integers(seeds) if seeds else [None]:
            given = [*(sets or []), *([] if seed is None else [f"seed={seed}"])]
            own_key = None if key is None else key if seed is None else f"{key}-{seed}"
            title = called if seed is None else f"{called}, seed {seed}"
            more = {"project": project, "group": group, "tags": tags or []}
            runs.append(client.launch(title, preset=preset, config=spec, set=given, key=own_key, **more))
        for run in runs:
            typer.echo(run.model_dump_json() if as_json else f"{run.id}  {client.server}/runs/{run.id}/")
        if follow:
            raise typer.Exit(max(_watch(client, run.id) for run in runs))


def show(run: RunId, server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """A run: state, progress, attempts and why it ended."""
    with connected(server, token_file) as client:
        found = client.run(run)
        if as_json:
            typer.echo(found.model_dump_json())
            return
        rows = {
            "state": f"{found.state} since {found.state_since}",
            "progress": describe(next(iter(client.watch(run)))),
            "preset": f"{found.preset or 'none'}, seed {found.seed}",
            "config": found.config_digest,
            "attempts": str(len(found.attempts)),
            "page": f"{client.server}/runs/{found.id}/",
        }
        typer.echo(inert(f"{found.id}  {found.name}"))
        for title, value in rows.items():
            typer.echo(inert(f"  {title:<9}{value}"))
        if found.outcome_cause:
            typer.echo(
                f"  cause    {found.outcome_cause.get('message')}\n  to do    {found.outcome_cause.get('cure') or 'nothing is known'}"
            )


def watch(run: RunId, server: Server = None, token_file: TokenFile = None) -> None:
    """The run's progress until it is over. Ends with 0 if it succeeded, 1 if not."""
    with connected(server, token_file) as client:
        raise typer.Exit(_watch(client, run))


def tail(
    run: RunId,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="go on until the run is over")] = False,
    level: Annotated[str, typer.Option(help="debug, info, warning or error: this and worse")] = "info",
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """The run's log."""
    ranks = ["debug", "info", "warning", "error"]
    if level not in ranks:
        raise typer.BadParameter(f"not a level: {level} -> one of {', '.join(ranks)}", param_hint="--level")
    with connected(server, token_file) as client:
        for line in client.tail(run, follow=follow):
            if ranks.index(line["level"]) >= ranks.index(level) if line["level"] in ranks else True:
                moment = datetime.fromtimestamp(line["t"]).strftime("%H:%M:%S")
                source = f" {line['source']}:" if line.get("source") else ""
                typer.echo(inert(f"{moment} {line['level']:<7}{source} {line['message']}"))


def compare(
    runs: Annotated[list[str], typer.Argument(metavar="RUN...", help="2 to 32 runs")],
    metrics: Annotated[str | None, typer.Option(help="series by comma (default: the results)")] = None,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Runs side by side: what differs in their configs and where they stand."""
    with connected(server, token_file) as client:
        found = client.compare(runs, metrics.split(",") if metrics else None)
        if as_json:
            typer.echo(found.model_dump_json())
            return
        table = [
            ["run", *(run.id for run in found.runs)],
            ["name", *(run.name[:MOST_NAME] for run in found.runs)],
            ["state", *(run.state for run in found.runs)],
        ]
        table += [
            [path, *(json.dumps(value) if value is not None else "-" for value in values)] for path, values in found.differences.items()
        ]
        for name in found.runs[0].results:
            table.append([name, *("no data" if run.results[name] is None else f"{run.results[name]:.4g}" for run in found.runs)])
        widths = [min(MOST_NAME, max(len(row[place]) for row in table)) for place in range(len(table[0]))]
        for row in table:
            typer.echo(inert("  ".join(text[:MOST_NAME].ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()))
        typer.echo(f"{client.server}/compare/?runs={','.join(run.id for run in found.runs)}")


def presets(server: Server = None, token_file: TokenFile = None, as_json: AsJson = False) -> None:
    """The published designs this server knows."""
    with connected(server, token_file) as client:
        for row in client.presets():
            typer.echo(json.dumps(row) if as_json else f"{row['name']:<24} {row.get('title', '')}")


def check(
    preset: Annotated[str | None, typer.Option(help="a preset's name")] = None,
    config: Annotated[Path | None, typer.Option(help="JSON or TOML file laid over the preset")] = None,
    sets: Sets = None,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """Resolve a config without starting it; every fault names field, value and cure."""
    from workers.contract import loading

    with connected(server, token_file) as client:
        found = client.check(preset=preset, config=loading.read(config) if config else {}, set=sets)
        typer.echo(found.model_dump_json() if as_json else f"fine: {found.digest}")
        for row in [] if as_json else found.warnings:
            typer.echo(f"warning: {row.get('field')}: {row.get('message')}")


def extend(
    run: RunId,
    steps: Annotated[int | None, typer.Option(help="steps in all")] = None,
    wall_s: Annotated[float | None, typer.Option(help="seconds in all")] = None,
    server: Server = None,
    token_file: TokenFile = None,
) -> None:
    """Give a run a larger or smaller budget."""
    with connected(server, token_file) as client:
        found = client.extend(run, steps=steps, wall_s=wall_s)
        typer.echo(f"{found.id}: {found.state}, {found.control.get('steps') or found.steps_total} steps")


ACTIONS = {
    "cancel": "Stop a run; its last complete checkpoint stays.",
    "pause": "Hold a run at the end of its step; nothing is lost.",
    "continue": "Go on with a paused run.",
    "resume": "A new attempt from the last complete checkpoint.",
    "stop": "End a run, as succeeded, after the step it is in.",
    "checkpoint": "Write a checkpoint at the end of the step.",
}


def _action(action: str) -> Any:
    def act(run: RunId, server: Server = None, token_file: TokenFile = None) -> None:
        with connected(server, token_file) as client:
            typer.echo(f"{run}: {client.act(run, action).state}")

    return act


def _watch(client: Client, run: str) -> int:
    """Shows the run until it is over; the exit code says how it ended."""
    console, shown = Console(), ""
    console.plain(f"{client.server}/runs/{run}/")
    for progress in client.watch(run):
        now = f"{progress.state} {progress.step}" if progress.step else describe(progress)
        console.line(inert(describe(progress)), lasting=now != shown)
        shown = now
        if progress.state in OVER:
            cause = progress.cause or {}
            console.plain(
                f"{run} {progress.state}" + (f": {inert(str(cause.get('message')))}" if progress.state != "succeeded" and cause else "")
            )
            return int(ExitCode.OK if progress.state == "succeeded" else ExitCode.FAILED)
    return int(ExitCode.FAILED)


def inert(text: str) -> str:
    """What a run wrote, without the control characters that a terminal obeys, and in what the terminal can show."""
    shown = "".join(character if character.isprintable() or character == "\t" else "\N{REPLACEMENT CHARACTER}" for character in text)
    encoding = sys.stdout.encoding or "utf-8"
    return shown.encode(encoding, "replace").decode(encoding)


def _integers(text: str) -> list[int | None]:
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise typer.BadParameter(f"not whole numbers: {text} -> for example 1,2,3", param_hint="--seeds") from None
