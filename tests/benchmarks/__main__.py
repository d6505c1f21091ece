"""Every benchmark, one after another, each in a process of its own, its tables under the machine, the date and the commit.

    python -m tests.benchmarks [--only sync decode] [--quick]

--quick: sizes that prove that each runs, in about two minutes; their figures say nothing. What a benchmark compares with (vLLM, TRL,
MLflow) is left out here, as the output says: name it to the benchmark itself. Start it when nothing else runs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.benchmarks.shown import ROOT, circumstances, table
from workers.tiny import make_tiny_model


@dataclass(frozen=True)
class Benchmark:
    """tells: what its figures are; small: its arguments under --quick; left_out: what it compares with only where that is named."""

    tells: str
    small: tuple[str, ...] = ("--quick",)
    left_out: str = ""


TINY = ("--set", "model.path={tiny}")
BENCHMARKS = {
    "decode": Benchmark("tokens a second of an engine", left_out="vLLM: --vllm PYTHON"),
    "vllm": Benchmark("tokens a second and milliseconds a publish of vLLM, the adapter merged and swapped"),
    "sync": Benchmark("milliseconds from publish to swap, by transport"),
    "train": Benchmark("seconds of an optimizer step", ("--groups", "1", "--size", "2", "--steps", "2", *TINY)),
    "run": Benchmark("the demo job: samples a second, steps and seconds until it has learnt", ("--steps", "2", *TINY)),
    "w1": Benchmark("the same job beside TRL's", ("--steps", "2", *TINY), left_out="TRL: --trl PYTHON"),
    "scaling": Benchmark(
        "samples a second by group size, completion length and engines",
        ("--steps", "2", "--groups", "4", "--tokens", "--engines", *TINY),
    ),
    "presets": Benchmark("each library's style on the same job", ("verl", "--steps", "2", *TINY)),
    "ingest": Benchmark("points a second into the control plane", ("--seconds", "1"), left_out="MLflow: --mlflow PYTHON"),
    "series": Benchmark("milliseconds until a chart has its data", ("--points", "20000", "--times", "3")),
    "planner": Benchmark("seconds to plan 100 steps of 1,024 GPUs"),
    "travel": Benchmark("milliseconds to a run as it was at a second", ("--looks", "5")),
    "outage": Benchmark("what it costs a run that the server is away", ("--away", "8", "--steps", "3", *TINY)),
    "viewers": Benchmark("milliseconds from emit to page", ("--viewers", "4", "--deaf", "1", "--seconds", "2")),
}


def run(name: str, *, quick: bool) -> str:
    """What the benchmark prints. Raises CalledProcessError where it fails; its errors go to stderr at once."""
    with tempfile.TemporaryDirectory(prefix="hr-bench-") as folder:
        tiny = make_tiny_model(Path(folder)) if quick else ""
        arguments = [word.format(tiny=tiny) for word in BENCHMARKS[name].small] if quick else []
        paths = os.pathsep.join([str(ROOT), str(ROOT / "platform")])
        done = subprocess.run(
            [sys.executable, "-m", f"tests.benchmarks.bench_{name}", *arguments],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": paths},
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return done.stdout.strip()


def laid_out(printed: str) -> str:
    """One JSON object becomes a table of its figures, nested ones under dotted names; all else is a table already."""
    try:
        figures = json.loads(printed)
    except ValueError:
        return printed
    return table(["figure", "value"], list(flat(figures)))


def flat(figures: dict[str, Any], above: str = "") -> Iterator[tuple[str, object]]:
    """Each figure by its dotted name; lists stay one cell."""
    for name, value in figures.items():
        if isinstance(value, dict):
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", json.dumps(value) if isinstance(value, list) else value


def main(given: Sequence[str] | None = None) -> int:
    """Returns how many failed; the others are run all the same."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=list(BENCHMARKS), default=list(BENCHMARKS))
    parser.add_argument("--quick", action="store_true")
    options = parser.parse_args(given)
    failed = []
    for name in options.only:
        benchmark, began = BENCHMARKS[name], time.monotonic()
        print(f"## {name}: {benchmark.tells}\n\n{circumstances()}", flush=True)
        if options.quick:
            print("Small sizes: that it runs, not how fast.")
        if benchmark.left_out:
            print(f"Not run beside it: {benchmark.left_out}")
        try:
            print(f"\n{laid_out(run(name, quick=options.quick))}\n\n({time.monotonic() - began:.0f} s)\n", flush=True)
        except subprocess.CalledProcessError as error:
            failed.append(name)
            print(f"\nFAILED with exit code {error.returncode}: see its error above\n", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
