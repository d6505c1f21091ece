"""`python -m workers`: train, check, resume and ship, with no web at all."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from workers.console import LiveLine
from workers.contract import compat, loading, presets
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, ExitCode, HeadraceError
from workers.planner import cli as planning

EXIT_CODES = """exit codes:
  0  done
  1  the run started and failed; its first cause is in summary.json and the spool
  2  wrong command line, config, preset or data; nothing was started
  3  cancelled; the last complete checkpoint stands
  4  a newer attempt of the same run has taken over
  5  the machine lacks something: a package, disk space, a model, a cluster
"""


def say(*lines: str) -> None:
    sys.stdout.write("\n".join(lines).encode(sys.stdout.encoding or "utf-8", "replace").decode(sys.stdout.encoding or "utf-8") + "\n")


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="python -m workers", description=__doc__, epilog=EXIT_CODES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = top.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train, from a spec, a preset, or both")
    check = commands.add_parser("check", help="say what is wrong with a config, and start nothing")
    for command in (run, check):
        command.add_argument("spec", nargs="?", type=Path, help="JSON or TOML file; may be partial. Default: the preset alone")
        command.add_argument("--preset", help="where the config begins (default: demo)")
        command.add_argument(
            "--set", dest="sets", action="append", default=[], metavar="PATH=VALUE", help="override one option, e.g. budget.steps=5"
        )
    check.add_argument("--json", action="store_true", help="print the resolved config")
    run.add_argument("--out", type=Path, required=True, help="the attempt's folder: spool, checkpoints, config.json, summary.json")
    run.add_argument("--attempt-file", type=Path, help="written by the server that launches the run")
    run.add_argument("--quiet", action="store_true", help="no live line")
    listing = commands.add_parser("presets", help="list the presets: eighteen published designs and their variants")
    listing.add_argument("--json", action="store_true", help="the eighteen as JSON: axes, provenance, approximations, variants")
    listing.add_argument("--all", action="store_true", help="the demo, too")
    resume = commands.add_parser("resume", help="go on from the last complete checkpoint of a folder")
    resume.add_argument("dir", type=Path)
    resume.add_argument(
        "--set", dest="sets", action="append", default=[], metavar="PATH=VALUE", help="budget, evaluation and checkpoint may change"
    )
    resume.add_argument("--out", type=Path, help="go on in another folder (default: the same)")
    resume.add_argument("--attempt-file", type=Path, help="written by the server that launches the run")
    resume.add_argument("--quiet", action="store_true", help="no live line")
    ship = commands.add_parser("ship", help="send a folder's events to a server, exactly once")
    ship.add_argument("dir", type=Path)
    ship.add_argument("--attempt-file", type=Path, help="where to send them (default: attempt.json in the folder)")
    ship.add_argument("--server", help="upload a run that was trained with no server, as a new run of this server")
    ship.add_argument("--token-file", type=Path, help="file holding the API token for --server")
    ship.add_argument("--name", help="name of the uploaded run")
    probe = commands.add_parser("probe", help="what a checkpoint answers to a prompt, beside its base model")
    probe.add_argument("spec", type=Path, help="JSON: model, checkpoint or null, prompts, max_new_tokens, sampling, system_prompt, out")
    export = commands.add_parser("export", help="a checkpoint as a folder that PEFT or transformers loads, with its model card")
    export.add_argument("checkpoint", type=Path, help="a folder step-... of a run's checkpoints")
    export.add_argument("--out", type=Path, required=True, help="a folder that is not there yet, or is empty")
    prepare = commands.add_parser("prepare-model", help="make the built-in model ready, once")
    prepare.add_argument("--out", type=Path, help="folder for models (default: $HEADRACE_MODELS or ~/.cache/headrace/models)")
    engine = commands.add_parser("install-engine", help="install another engine beside Headrace's own, in the build that fits this machine")
    engine.add_argument("engine", choices=["vllm"])
    planning.add_parsers(commands)
    selftest = commands.add_parser("selftest", help="prove on this machine that carriers and transports change no bit")
    selftest.add_argument("--json", action="store_true", help="print the checks as JSON")
    return top


def main(argv: list[str] | None = None) -> int:
    arguments = parser().parse_args(argv)
    try:
        return int(COMMANDS[arguments.command](arguments))
    except ConfigError as error:
        for problem in error.problems:
            sys.stderr.write(f"error: {problem}\n")
        return int(error.exit_code)
    except HeadraceError as error:
        sys.stderr.write(f"error: {error}\n")
        return int(error.exit_code)
    except BrokenPipeError:  # whoever read the output has gone, as `| head` does; the run itself is done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return int(ExitCode.OK)


def _config(arguments: argparse.Namespace) -> RunConfig:
    spec = loading.read(arguments.spec) if arguments.spec else None
    return loading.resolve(spec, arguments.preset, arguments.sets)


def _check(arguments: argparse.Namespace) -> int:
    config = _config(arguments)
    for warning in compat.warnings(config):
        sys.stderr.write(f"note: {warning}\n")
    say(json.dumps(config.as_json(), indent=1) if arguments.json else f"this config can run (digest {config.digest()[:12]})")
    return ExitCode.OK


def _presets(arguments: argparse.Namespace) -> int:
    rows = presets.catalogue(everything=arguments.all)
    if arguments.json:
        say(json.dumps(rows, indent=1, ensure_ascii=False))
        return ExitCode.OK
    shown = ("orchestration", "buffer", "transport", "payload", "interrupt", "staleness", "partial", "lora", "backend")
    table = [["preset", "read", *shown]]
    for row in rows:
        for each in (row, *row["variants"]):
            name = f"  {each['name']}" if each["variant_of"] else each["name"]
            table.append([name, each["date"], *("+".join(each["axes"][axis]) for axis in shown)])
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    say(*("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in table))
    return ExitCode.OK


def _run(arguments: argparse.Namespace) -> int:
    return _drive(_config(arguments), arguments.out, arguments, resume_from=None)


def _resume(arguments: argparse.Namespace) -> int:
    saved = arguments.dir / "config.json"
    if not saved.is_file():
        raise ConfigError("there is no run in this folder", field="DIR", value=str(arguments.dir), cure="name the --out folder of a run")
    config = loading.resolve(loading.read(saved), None, arguments.sets)
    return _drive(config, arguments.out or arguments.dir, arguments, resume_from=arguments.dir)


def _drive(config: RunConfig, out: Path, arguments: argparse.Namespace, resume_from: Path | None) -> int:
    from workers.driver import Driver
    from workers.ship import AttemptFile

    attempt = AttemptFile.read(arguments.attempt_file) if arguments.attempt_file else None
    line = None if arguments.quiet else LiveLine(sys.stdout)

    async def drive() -> dict[str, Any]:
        return await Driver(config, out, attempt=attempt, resume_from=resume_from, on_events=line).run()

    summary = asyncio.run(drive())
    first, last = summary["reward_first"], summary["reward_last"]
    learnt = "" if first is None else f", reward {first:.3f} -> {last:.3f}"
    say(f"done: {summary['steps']} steps{learnt}; see {out / 'summary.json'}")
    return ExitCode.OK


def _ship(arguments: argparse.Namespace) -> int:
    from workers.ship import AttemptFile, Shipper
    from workers.upload import register

    if arguments.server:
        attempt = register(arguments.dir, arguments.server, arguments.token_file, arguments.name)
    else:
        attempt = AttemptFile.read(arguments.attempt_file or arguments.dir / "attempt.json")
    shipper = Shipper(attempt, arguments.dir / "spool", replay=True)
    say(f"{shipper.ship_all()} events sent; the server holds everything up to {shipper.through}")
    return ExitCode.OK


def _probe(arguments: argparse.Namespace) -> int:
    from workers import probe

    def line(text: str) -> None:
        say(f"probe: {text}")
        sys.stdout.flush()

    found = probe.run(arguments.spec, line)
    say(f"done: {len(found['answers'])} prompt(s) in {found['seconds']:.1f} s")
    return ExitCode.OK


def _export(arguments: argparse.Namespace) -> int:
    from workers import export

    for name in export.run(arguments.checkpoint, arguments.out):
        say(str(arguments.out / name))
    return ExitCode.OK


def _prepare(arguments: argparse.Namespace) -> int:
    from workers import models

    folder = models.prepare(arguments.out / models.BUILT_IN) if arguments.out else models.locate(models.BUILT_IN)
    say(f"{models.BUILT_IN} is ready in {folder}")
    return ExitCode.OK


def _install_engine(arguments: argparse.Namespace) -> int:
    from workers.rollout.vllm import install

    say(f"{arguments.engine} is installed, at the versions of {install.install()}")
    return ExitCode.OK


def _selftest(arguments: argparse.Namespace) -> int:
    from workers import selftest

    words = {True: "PASS", False: "FAIL", None: "NOT RUN"}

    def line(check: selftest.Check) -> None:
        say(f"{words[check.passed]:8}{check.name}: {check.detail}")
        sys.stdout.flush()

    checks = selftest.run() if arguments.json else selftest.run(line)
    if arguments.json:
        say(selftest.as_json(checks))
    return ExitCode.FAILED if any(check.passed is False for check in checks) else ExitCode.OK


def _planner(arguments: argparse.Namespace) -> int:
    return planning.run(arguments, say)


COMMANDS = {
    "run": _run,
    "check": _check,
    "presets": _presets,
    "resume": _resume,
    "ship": _ship,
    "probe": _probe,
    "export": _export,
    "prepare-model": _prepare,
    "install-engine": _install_engine,
    "selftest": _selftest,
    **dict.fromkeys(("plan", "race", "sweep", "forecast", "calibrate"), _planner),
}

if __name__ == "__main__":
    sys.exit(main())
