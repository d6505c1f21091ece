"""Library styles on the real model: two in every suite, all eighteen in the full one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.bench_presets import run
from workers.contract import presets

ONE = ("pipelinerl",)  # streams; on tiny models every style shows its design, see test_signatures


@pytest.mark.model
@pytest.mark.parametrize("name", [name if name in ONE else pytest.param(name, marks=pytest.mark.full) for name in presets.LIBRARIES])
def test_a_preset_trains_the_real_model(name: str, tmp_path: Path) -> None:
    row = run(name, tmp_path / name, steps=2, sets=("evaluation.prompts=8",))
    assert row["outcome"] == "succeeded" and row["steps"] == 2
    assert row["samples_per_s"] > 0 and row["megabytes"] > 1
    assert 0.0 <= row["held_out_first"] <= 1.0
