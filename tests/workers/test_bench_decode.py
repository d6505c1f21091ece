"""The decode benchmark runs, and compares each round with the fastest of its rivals."""

from __future__ import annotations

import re
import sys

import pytest

from tests.benchmarks import bench_decode
from tests.benchmarks.bench_decode import ADAPTED, PLAIN, VLLM, report


def test_its_short_form_prints_a_rate_for_each_engine(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_decode", "--quick", "--threads", "1"])
    bench_decode.main()
    told = capsys.readouterr().out
    for name in (ADAPTED, PLAIN):
        rate = re.search(rf"^\| {name} \| 8 \| ([\d.]+) \|", told, re.MULTILINE)
        assert rate and float(rate[1]) > 0
    assert "8 sequences, 1 threads" in told and "commit" in told


def test_rounds_are_compared_with_the_fastest_binding() -> None:
    def rounds(*rates: float) -> list[dict[str, float]]:
        return [{"tokens": rate, "seconds": 1.0} for rate in rates]

    told = report(
        {(PLAIN, 24): rounds(400, 900, 600), (f"{VLLM}, a", 24): rounds(100, 100, 100), (f"{VLLM}, b", 24): rounds(200, 300, 150)}
    )
    cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in told.splitlines()}
    assert cells[PLAIN][4:6] == ["3", "2"], "the ratios are 2, 3 and 4, all to b"
    assert cells[f"{VLLM}, a"][4] == "0.5"
