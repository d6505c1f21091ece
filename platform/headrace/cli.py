"""The `headrace` command.

headrace up       start everything on this machine and watch it
headrace demo     the same, then launch the demo run and show it live
headrace runs     the newest runs
headrace migrate  bring the database up to date
headrace manage   any Django management command

Exit codes: 0 fine, 2 wrong command line or config, 5 this machine lacks something (the message says what and what to do).
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from headrace.supervisor import parts, pidfile
from headrace.supervisor.demo import DemoOptions, check_config, launch, prepare_model, report, runs_table, sign_in_link, watch
from headrace.supervisor.layout import Layout, default_data_dir
from headrace.supervisor.progress import Console
from headrace.supervisor.up import Stopped, Supervisor
from workers.contract.errors import ConfigError, ExitCode, HeadraceError


def main(argv: Sequence[str] | None = None) -> int:
    """Entry of the console script."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if arguments[:1] in (["manage"], ["migrate"]):
        return _manage(arguments[1:] if arguments[0] == "manage" else arguments)
    options = _parser().parse_args(arguments)
    console = Console()
    try:
        if options.command == "runs":
            return _runs(console, options.data_dir)
        return _up(console, options)
    except ConfigError as error:
        for problem in error.problems:
            console.plain(f"headrace: {problem}")
        return int(ExitCode.USAGE)
    except HeadraceError as error:
        console.plain(f"headrace: {error}")
        return int(error.exit_code)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="headrace", description="Launch, watch and compare asynchronous RL post-training runs.")
    commands = parser.add_subparsers(dest="command", required=True)
    shared = argparse.ArgumentParser(add_help=False)
    shared.add_argument("--data-dir", type=Path, help="where database, runs and models live (default: ~/.local/share/headrace)")
    serving = argparse.ArgumentParser(add_help=False, parents=[shared])
    serving.add_argument("--port", type=int, help="port of the web page on 127.0.0.1 (default: 8700)")
    commands.add_parser("up", parents=[serving], help="start everything on this machine and watch it")
    demo = commands.add_parser("demo", parents=[serving], help="start everything, launch the demo run, show it live")
    demo.add_argument("--steps", type=int, help="optimizer steps of the demo run (default: the preset's)")
    demo.add_argument("--task", help="a reasoning-gym dataset or a JSONL file (default: the preset's)")
    demo.add_argument("--preset", help="a preset's name (default: demo)")
    demo.add_argument("--set", dest="sets", action="append", default=[], metavar="PATH=VALUE", help="any other value of the config")
    demo.add_argument("--no-run", action="store_true", help="start everything, launch nothing")
    demo.add_argument("--once", action="store_true", help="stop when the demo run is over; the exit code says how it ended")
    demo.add_argument("--yes", action="store_true", help="ask nothing")
    commands.add_parser("runs", parents=[shared], help="the newest runs")
    commands.add_parser("migrate", help="bring the database up to date")
    commands.add_parser("manage", help="any Django management command")
    return parser


def _layout(data_dir: Path | None, port: int | None) -> Layout:
    data = data_dir.expanduser().resolve() if data_dir else default_data_dir()
    return Layout(data=data, port=port or int(os.environ.get("HEADRACE_PORT") or 8700))


def _up(console: Console, options: argparse.Namespace) -> int:
    wanted = None
    if options.command == "demo":
        wanted = DemoOptions(steps=options.steps, task=options.task, preset=options.preset, sets=tuple(options.sets))
    config = check_config(wanted) if wanted and not options.no_run else None
    supervisor = Supervisor(_layout(options.data_dir, options.port), console.say)
    code = int(ExitCode.OK)
    try:
        supervisor.start()
        supervisor.use_django()
        if config:
            prepare_model(supervisor, config)
        link = sign_in_link(console)
        console.plain(f"\n    Headrace runs at {link}\n    Ctrl-C stops everything.\n")
        if config:
            run = launch(config)
            console.say(f"launched run {run.public_id}: {supervisor.layout.base_url}/runs/{run.public_id}/")
            reading = watch(supervisor, console, run)
            report(console, reading)
            if options.once:
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


def _runs(console: Console, data_dir: Path | None) -> int:
    import django

    _settings(data_dir)
    django.setup()
    for line in runs_table() or ["no runs yet; start one with `headrace demo` or in the browser"]:
        console.plain(line)
    return int(ExitCode.OK)


def _manage(arguments: list[str]) -> int:
    from django.core.management import execute_from_command_line

    _settings(None)
    execute_from_command_line(["headrace manage", *arguments])
    return int(ExitCode.OK)


if __name__ == "__main__":
    sys.exit(main())
