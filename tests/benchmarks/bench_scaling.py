"""How W1 on Headrace goes as the work grows: group size, completion length, engines, one of them at a time.

    python -m tests.benchmarks.bench_scaling [--steps 4] [--groups 4 8 16] [--tokens 24 64 128] [--engines 1 2] [--set PATH=VALUE ...]

Every line is a run of its own (see bench_w1); its first step is left out of samples/s and tokens/s. Lengths are the model's own: with more
than 24 tokens it is asked to explain. Why a line is not in proportion stands in its last columns: a pool that is busy all the
time is the limit; where neither is, they wait for one another.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

from tests.benchmarks.bench_w1 import headrace
from tests.benchmarks.shown import circumstances, table

COLUMNS = [
    "what grows",
    "value",
    "samples/s",
    "tokens a sample",
    "tokens/s",
    "of the first line",
    "trainer busy",
    "engines busy",
    "both busy",
]
TALK = "environment.system_prompt=Explain your answer step by step."


def plan(given: argparse.Namespace) -> list[tuple[str, int, int, list[str]]]:
    """What grows, its value, samples a step, settings."""
    groups = [("completions a prompt", size, 8 * size, [f"batch.group_size={size}"]) for size in given.groups]
    tokens = [
        ("new tokens at most", most, 64, [f"sampling.max_new_tokens={most}", *([TALK] if most > 24 else [])]) for most in given.tokens
    ]
    engines = [("engines", count, 64, [f"rollout.engines={count}"]) for count in given.engines]
    return [*groups, *tokens, *engines]


def row(what: str, value: int, samples: int, run: dict[str, Any], first: float | None) -> tuple[list[Any], float]:
    """A line of the table, and its tokens a second."""
    ends = run["ends"]
    rate = samples * (len(ends) - 1) / (ends[-1] - ends[0])
    tokens = rate * run["tokens_a_sample"]
    busy = [run["train_busy"], run["generate_busy"], run["both_busy"]]
    share = f"{tokens / (first or tokens):.2f}x"
    return [what, value, f"{rate:.1f}", f"{run['tokens_a_sample']:.1f}", f"{tokens:.0f}", share, *(f"{part:.2f}" for part in busy)], tokens


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--steps", type=int, default=4)
    for name, values in {"groups": [4, 8, 16], "tokens": [24, 64, 128], "engines": [1, 2]}.items():
        options.add_argument(f"--{name}", type=int, nargs="*", default=values)
    options.add_argument("--set", dest="sets", action="append", default=[])
    given = options.parse_args()
    lines: list[list[Any]] = []
    first: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="hr-scaling-") as folder:
        for number, (what, value, samples, sets) in enumerate(plan(given)):
            run = headrace(Path(folder) / str(number), given.steps, 7, [*sets, *given.sets])
            line, tokens = row(what, value, samples, run, first.get(what))
            first.setdefault(what, tokens)
            lines.append(line)
    print(f"{circumstances()}\n\n{table(COLUMNS, lines)}")


if __name__ == "__main__":
    main()
