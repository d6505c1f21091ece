"""The decode benchmark runs, and compares each round with the fastest of its rivals."""

from __future__ import annotations

import re
import sys
from pathlib import Path

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


def test_a_rival_plays_the_same_waves_and_ends(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """A double speaks vllm_player's protocol, as vLLM itself need not be here; each binding gets a player of its own."""
    player = tmp_path / "player.py"
    player.write_text(
        "import json, os, sys\nprint(json.dumps({'vllm': 'a double'}), flush=True)\n"
        "for line in sys.stdin:\n    given = json.loads(line)\n    assert len(given['prompts']) == len(given['new'])\n"
        "    rate = {'slow': 10, 'fast': 20}[os.environ['VLLM_CPU_OMP_THREADS_BIND']]\n"
        "    print(json.dumps({'tokens': sum(given['new']), 'seconds': sum(given['new']) / rate}), flush=True)\n"
    )
    monkeypatch.setattr(bench_decode, "PLAYER", player)
    arguments = ["bench_decode", "--quick", "--threads", "1", "--vllm", sys.executable, "--bind", "slow", "fast"]
    monkeypatch.setattr(sys, "argv", arguments)
    bench_decode.main()
    told = capfd.readouterr().out
    assert re.search(rf"^\| {VLLM}, bind slow \| 8 \| 10 \|.*\| 0.5 \| 0.5 \|", told, re.MULTILINE), told
    assert re.search(rf"^\| {VLLM}, bind fast \| 8 \| 20 \|.*\| 1 \| 1 \|", told, re.MULTILINE), told


def test_rounds_are_compared_with_the_fastest_binding() -> None:
    def rounds(*rates: float) -> list[dict[str, float]]:
        return [{"tokens": rate, "seconds": 1.0} for rate in rates]

    told = report(
        {(PLAIN, 24): rounds(400, 900, 600), (f"{VLLM}, a", 24): rounds(100, 100, 100), (f"{VLLM}, b", 24): rounds(200, 300, 150)}
    )
    cells = {line.split(" | ")[0].removeprefix("| "): line.split(" | ") for line in told.splitlines()}
    assert cells[PLAIN][4:6] == ["3", "2"], "the ratios are 2, 3 and 4, all to b"
    assert cells[f"{VLLM}, a"][4] == "0.5"
