"""The `headrace` command: the server of this machine, and any server's runs.

headrace up, demo                     start everything here; launch the demo run too
headrace login, launch, watch, tail   talk to a server
headrace plan                         what a design would come to, before it runs
headrace --help                       the rest

Exit codes: 0 fine, 1 the run failed or the server refused, 2 wrong command line or config, 5 this machine lacks something (the
message says what and what to do).
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from headrace.client import commands, login, takeaway
from headrace.client.commands import AsJson, Server, TokenFile, connected
from headrace.supervisor import parts, pidfile
from headrace.supervisor.demo import DemoOptions, check_config, prepare_model, report, runs_table, sign_in_link, watch
from headrace.supervisor.demo import launch as launch_demo
from headrace.supervisor.layout import Layout, default_data_dir
from headrace.supervisor.progress import Console
from headrace.supervisor.up import Stopped, Supervisor
from workers.contract.errors import ConfigError, ExitCode, HeadraceError

PLANNING = ("plan", "race", "sweep", "forecast", "calibrate")
app = typer.Typer(
    name="headrace",
    help="Launch, watch and compare asynchronous RL post-training runs.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
DataDir = Annotated[Path | None, typer.Option("--data-dir", help="where database, runs and models lie (default: ~/.local/share/headrace)")]
Port = Annotated[int | None, typer.Option("--port", help="port of the web page on 127.0.0.1 (default: 8700)")]


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["manage"], ["migrate"]):
        return _manage(arguments[1:] if arguments[0] == "manage" else arguments)
    if arguments[:1] == ["plan"] and arguments[1:2] not in ([], ["--help"], ["-h"]):
        return _plan(arguments[1:])
    try:
        found: Any = app(arguments, standalone_mode=False)
    except ConfigError as error:
        for problem in error.problems:
            _complain(str(problem))
        return int(ExitCode.USAGE)
    except HeadraceError as error:
        _complain(str(error))
        return int(error.exit_code)
    except typer.Abort:
        return 130
    except typer.Exit as wish:
        return wish.exit_code
    except Exception as error:
        if not hasattr(error, "show"):  # a usage error of the command line shows itself
            raise
        error.show()
        return int(ExitCode.USAGE)
    return found if isinstance(found, int) else int(ExitCode.OK)


@app.command()
def up(data_dir: DataDir = None, port: Port = None) -> int:
    """Start everything on this machine and watch it."""
    return _up(Console(), _layout(data_dir, port), None, once=False)


@app.command()
def demo(
    data_dir: DataDir = None,
    port: Port = None,
    steps: Annotated[int | None, typer.Option(help="optimizer steps of the demo run (default: the preset's)")] = None,
    task: Annotated[str | None, typer.Option(help="a reasoning-gym dataset or a JSONL file (default: the preset's)")] = None,
    preset: Annotated[str | None, typer.Option(help="a preset's name (default: demo)")] = None,
    sets: Annotated[list[str] | None, typer.Option("--set", metavar="PATH=VALUE", help="any other value of the config")] = None,
    no_run: Annotated[bool, typer.Option("--no-run", help="start everything, launch nothing")] = False,
    once: Annotated[bool, typer.Option("--once", help="stop when the demo run is over; the exit code says how it ended")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="ask nothing")] = False,
) -> int:
    """Start everything, launch the demo run, show it live."""
    wanted = DemoOptions(steps=steps, task=task, preset=preset, sets=tuple(sets or ()))
    config = None if no_run else check_config(wanted)
    return _up(Console(), _layout(data_dir, port), config, once=once)


@app.command()
def runs(
    data_dir: DataDir = None,
    query: Annotated[str, typer.Argument(help="as in the runs table, for example 'reward>0.6 tag:baseline'")] = "",
    state: Annotated[str, typer.Option(help="only runs in this state")] = "",
    limit: Annotated[int, typer.Option(min=1, max=1000, help="how many")] = 20,
    server: Server = None,
    token_file: TokenFile = None,
    as_json: AsJson = False,
) -> None:
    """The newest runs: of the server you logged in to, else of this machine's data folder."""
    if data_dir is None and (server or os.environ.get("HEADRACE_SERVER") or login.read()):
        with connected(server, token_file) as client:
            for run in client.runs(query, state=state, limit=limit):
                line = f"{run.id}  {run.state:<10}  {run.created[:16].replace('T', ' ')}  {run.name}"
                typer.echo(run.model_dump_json() if as_json else line)
        return
    import django

    _settings(data_dir)
    django.setup()
    for line in runs_table(limit) or ["no runs yet; start one with `headrace demo` or in the browser"]:
        typer.echo(line)


@app.command("login")
def log_in(
    server: Annotated[str | None, typer.Argument(help="for example http://127.0.0.1:8700")] = None,
    token_file: TokenFile = None,
    here: Annotated[bool, typer.Option("--here", help="the server of this machine: its data folder makes the token")] = False,
    data_dir: DataDir = None,
) -> None:
    """Remember a server and an API token, which the page /account/ makes."""
    if here:
        commands.log_in(*_own_token(data_dir))
        return
    if server is None:
        raise typer.BadParameter("no server named -> headrace login http://127.0.0.1:8700, or headrace login --here")
    commands.log_in(server, login.read_secret(token_file) if token_file else typer.prompt("API token", hide_input=True).strip())


@app.command()
def migrate() -> None:
    """Bring the database up to date."""
    raise AssertionError("main() answers this before the parser")


@app.command()
def manage() -> None:
    """Any Django management command."""
    raise AssertionError("main() answers this before the parser")


@app.command(context_settings={"help_option_names": ["--help", "-h"]})
def plan() -> None:
    """What designs and runs would come to, before they run: arguments go to the engine's planner as they are.

    \b
    headrace plan --list                             the scenarios there are
    headrace plan --preset NAME --scenario NAME      one design
    headrace plan race --scenario NAME               every design, side by side
    headrace plan sweep --preset NAME --over KNOB --scenario NAME
    headrace plan calibrate RUN... --out FILE        a scenario fitted on own runs
    headrace plan forecast SPEC --scenario FILE      an own run, as the form does it

    `headrace plan race --help`, and so on, lists the options of each.
    """
    raise typer.BadParameter("nothing to plan -> headrace plan --list, or headrace plan --help")


commands.register(app)
takeaway.register(app)


def _layout(data_dir: Path | None, port: int | None) -> Layout:
    data = data_dir.expanduser().resolve() if data_dir else default_data_dir()
    return Layout(data=data, port=port or int(os.environ.get("HEADRACE_PORT") or 8700))


def _up(console: Console, layout: Layout, config: dict[str, Any] | None, *, once: bool) -> int:
    supervisor = Supervisor(layout, console.say)
    code = int(ExitCode.OK)
    try:
        supervisor.start()
        supervisor.use_django()
        if config:
            prepare_model(supervisor, config)
        link = sign_in_link(console)
        console.plain(f"\n    Headrace runs at {link}\n    Ctrl-C stops everything.\n")
        if config:
            run = launch_demo(config)
            console.say(f"launched run {run.public_id}: {supervisor.layout.base_url}/runs/{run.public_id}/")
            reading = watch(supervisor, console, run)
            report(console, reading)
            if once:
                code = int(ExitCode.OK if reading.state == "succeeded" else ExitCode.FAILED)
                raise Stopped
        while True:
            supervisor.watch(3600)
    except Stopped:
        console.say("stopping")
    finally:
        left = supervisor.stop()
        if left:
            console.say(f"processes that could not be ended: {', '.join(map(str, left))}")
            code = int(ExitCode.FAILED)
    return code


def _settings(data_dir: Path | None) -> Layout:
    """Settings for a command that starts nothing, on the same data folder and signing key as `up`."""
    layout = _layout(data_dir, None)
    layout.data.mkdir(parents=True, exist_ok=True, mode=0o700)
    layout.write_signing_key()
    running = pidfile.running(layout)
    parts.export_settings(layout, parts.Outside.from_environment(), serving=running is not None)
    return layout


def _own_token(data_dir: Path | None) -> tuple[str, str]:
    """Who may read the data folder owns the server: a token of its first administrator. Raises NotLoggedIn before the first sign-in."""
    import django

    layout = _settings(data_dir)
    django.setup()
    from headrace.teams.models import User
    from headrace.teams.selectors import current_team
    from headrace.teams.services import issue_api_token

    admin = User.objects.filter(is_superuser=True, is_active=True).order_by("pk").first()
    team = current_team(admin) if admin else None
    if admin is None or team is None:
        raise login.NotLoggedIn("nobody has signed in yet", field="user", cure="open the link that `headrace up` prints, then log in here")
    _, secret = issue_api_token(user=admin, team=team, name="command line", scope="write")
    running = pidfile.running(layout)
    return f"http://127.0.0.1:{running['port'] if running else layout.port}", secret


def _manage(arguments: list[str]) -> int:
    from django.core.management import execute_from_command_line

    _settings(None)
    execute_from_command_line(["headrace manage", *arguments])
    return int(ExitCode.OK)


def _plan(arguments: list[str]) -> int:
    """The planner is the engine's: this side asks it as a process, on the same terminal."""
    words = arguments if arguments[0] in PLANNING else ["plan", *arguments]
    try:
        return subprocess.run([sys.executable, "-m", "workers", *words], check=False).returncode
    except KeyboardInterrupt:
        return int(ExitCode.CANCELLED)


def _complain(text: str) -> None:
    typer.echo(f"headrace: {text}", err=True)


if __name__ == "__main__":
    sys.exit(main())
