"""Every benchmark runs, small: `python -m tests.benchmarks --quick`. Their figures are not looked at, only that there are some."""

from __future__ import annotations

import re

import pytest

from tests.benchmarks import __main__ as benchmarks
from tests.benchmarks import shown

QUICKEST = ("decode", "run", "series")  # one of each sort: an engine, a whole run, the web side


@pytest.mark.parametrize(
    "name", [name if name in QUICKEST else pytest.param(name, marks=pytest.mark.full) for name in benchmarks.BENCHMARKS]
)
def test_it_prints_its_table(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert benchmarks.main(["--quick", "--only", name]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(f"## {name}: ") and re.search(r"cores? of .+ UTC; commit ([0-9a-f]{7}|unknown)", printed)
    rules = [line for line in printed.splitlines() if re.fullmatch(r"\|( *-+:? *\|)+", line)]
    rows = [line for line in printed.splitlines() if line.startswith("|") and line not in heads_and_rules(printed)]
    assert rules and any(re.search(r"\d", row) for row in rows), printed
    left_out = benchmarks.BENCHMARKS[name].left_out
    assert (f"Not run beside it: {left_out}" in printed) == bool(left_out)


def heads_and_rules(printed: str) -> set[str]:
    """What stands over a rule, and the rule."""
    lines = printed.splitlines()
    ruled = [number for number, line in enumerate(lines) if re.fullmatch(r"\|( *-+:? *\|)+", line)]
    return {lines[at] for number in ruled for at in (number - 1, number)}


def test_one_that_fails_is_told_and_the_others_run(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    broken = benchmarks.Benchmark("nothing", ("--no-such-option",))
    monkeypatch.setattr(benchmarks, "BENCHMARKS", {"travel": broken, "sync": broken})
    assert benchmarks.main(["--quick"]) == 2
    said = capfd.readouterr()
    assert said.out.count("FAILED with exit code 2") == 2 and "failed: travel, sync" in said.err


def test_figures_become_a_table() -> None:
    assert benchmarks.laid_out('{"a": {"b": 1.2345, "c": [1]}, "d": null}').splitlines()[2:] == [
        "| a.b | 1.23 |",
        "| a.c | [1] |",
        "| d |  |",
    ]
    assert benchmarks.laid_out("| already |") == "| already |"
    assert shown.table(["x", "y"], [["a", 1234.5]]) == "| x | y |\n| --- | ---: |\n| a | 1234 |"
