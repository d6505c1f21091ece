"""Library styles on the real model, all eighteen, in the full suite. In every suite the demo trains it (tests/e2e/test_up.py), and every
style shows its design on a tiny one (test_signatures.py)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.benchmarks.bench_presets import run
from workers.contract import presets

pytestmark = [pytest.mark.full, pytest.mark.model]


@pytest.mark.parametrize("name", presets.LIBRARIES)
def test_a_preset_trains_the_real_model(name: str, tmp_path: Path) -> None:
    row = run(name, tmp_path / name, steps=2, sets=("evaluation.prompts=8",))
    assert row["outcome"] == "succeeded" and row["steps"] == 2
    assert row["samples_per_s"] > 0 and row["megabytes"] > 1
    assert 0.0 <= row["held_out_first"] <= 1.0
