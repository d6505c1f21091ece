"""Charts read what was ingested: against a plain numpy reference, at every level, across attempts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headrace.telemetry import series
from headrace.telemetry.columns import CHUNK_ROWS, FANOUT, Rows, bucket, concatenate, from_points, next_level, pack, reduce_at, unpack
from headrace.telemetry.models import SeriesChunk
from tests.platform_tests.telemetry_rig import Rig, metric, new_rig, push

VALUES = hnp.arrays(np.float64, st.integers(1, 200), elements=st.floats(-1e9, 1e9) | st.sampled_from([np.nan, np.inf, -np.inf]))


def points(values: np.ndarray, first: int = 1) -> Rows:
    n = len(values)
    seq = np.arange(first, first + n, dtype=np.int64)
    return from_points(seq, seq / 4.0, seq * 2, values.astype(np.float64))


def same(one: Rows, other: Rows) -> bool:
    return all(np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True) for name in one.__slots__)


@settings(deadline=None)
@given(values=VALUES)
def test_packing_keeps_every_bit(values: np.ndarray) -> None:
    rows = points(values)
    for compress in (True, False):
        back = unpack(pack(rows, 0, compress))
        assert back.first.tobytes() == rows.first.tobytes() and same(back, rows)
    wide = reduce_at(rows, np.arange(0, len(rows), 7))
    assert same(unpack(pack(wide, 1)), wide)


@settings(deadline=None)
@given(values=VALUES, size=st.integers(1, 40))
def test_a_bucket_equals_the_numpy_reference(values: np.ndarray, size: int) -> None:
    rows = points(values)
    starts = np.arange(0, len(rows), size)
    got = reduce_at(rows, starts)
    for place, start in enumerate(starts):
        part = values[start : start + size]
        finite = part[np.isfinite(part)]
        assert got.count[place] == len(part) and got.nonfinite[place] == len(part) - len(finite)
        assert np.array_equal([got.first[place], got.last[place]], [part[0], part[-1]], equal_nan=True)
        assert got.step0[place] == (start + 1) * 2 and got.step1[place] == (start + len(part)) * 2
        if len(finite):
            assert (got.low[place], got.high[place]) == (finite.min(), finite.max())
            assert got.mean[place] == pytest.approx(finite.mean(), rel=1e-9, abs=1e-6)
        else:
            assert np.isnan([got.low[place], got.high[place], got.mean[place]]).all()


@settings(deadline=None, max_examples=30)
@given(seed=st.integers(0, 2**32 - 1))
def test_levels_agree_with_the_points_below(seed: int) -> None:
    generator = np.random.default_rng(seed)
    values = generator.normal(size=CHUNK_ROWS)
    values[generator.random(CHUNK_ROWS) < 0.05] = np.nan
    twice = next_level(next_level(points(values)))
    direct = reduce_at(points(values), np.arange(0, CHUNK_ROWS, FANOUT**2))
    for name in ("low", "high", "first", "last", "count", "nonfinite", "step0", "step1", "t0", "t1", "seq"):
        assert np.array_equal(getattr(twice, name), getattr(direct, name), equal_nan=True)
    np.testing.assert_allclose(twice.mean, direct.mean, rtol=1e-9, atol=1e-12)


@settings(deadline=None)
@given(n=st.integers(1, 500), buckets=st.integers(2, 100))
def test_bucketing_keeps_every_point_and_the_limit(n: int, buckets: int) -> None:
    rows = points(np.arange(n, dtype=np.float64))
    got = bucket(rows, rows.step1.astype(float), buckets)
    assert len(got) <= buckets and got.count.sum() == n and got.high.max() == n - 1


def test_values_whose_sum_overflows_keep_a_finite_mean() -> None:
    got = reduce_at(points(np.array([1.7e308, 1.7e308, 1.7e308])), np.array([0]))
    assert got.mean[0] == 1.7e308
    assert len(concatenate([])) == 0


@pytest.fixture
def rig(db: None) -> Rig:
    return new_rig()


def dense(n: int, first_step: int = 0) -> tuple[str, dict[str, Any]]:
    steps = list(range(first_step, first_step + n))
    return "points", {"name": "a", "t": [float(step) for step in steps], "step": steps, "value": [np.sin(step / 50) for step in steps]}


def test_a_long_series_is_read_from_a_coarse_level_and_its_tail(rig: Rig) -> None:
    n, batch, seq = 40_000, 1000, 1
    for start in range(0, n, batch):
        push(rig.attempt, [dense(batch, start)], first=seq)
        seq += 1
    got = series.read(rig.run, ["a"], buckets=300)["a"]
    values = np.sin(np.arange(n) / 50)
    assert got["level"] == 1 and len(got["value"]) <= 300
    assert sum(got["count"]) == n and got["step"][-1] == n - 1
    assert min(got["min"]) == values.min() and max(got["max"]) == values.max()
    assert np.average(got["value"], weights=got["count"]) == pytest.approx(values.mean(), abs=1e-9)
    sealed = SeriesChunk.unscoped.filter(level=0, sealed=True)
    assert sealed.count() == n // CHUNK_ROWS and set(sealed.values_list("n", flat=True)) == {CHUNK_ROWS}
    narrow = series.read(rig.run, ["a"], lo=20_000, hi=20_099, buckets=500)["a"]
    assert narrow["level"] == 0 and narrow["step"] == list(range(20_000, 20_100))
    assert narrow["value"] == values[20_000:20_100].tolist()
    by_time = series.read(rig.run, ["a"], x="time", lo=39_990.0, hi=1e9)["a"]
    assert by_time["t"] == [float(t) for t in range(39_990, 40_000)]


def test_small_batches_merge_and_keep_their_order(rig: Rig) -> None:
    for seq in range(1, 101):
        push(rig.attempt, [metric(float(seq), "a")], first=seq)
    assert series.read(rig.run, ["a"])["a"]["value"] == [float(seq) for seq in range(1, 101)]
    assert SeriesChunk.unscoped.count() < 40


def test_no_data_is_a_gap_not_a_zero(rig: Rig) -> None:
    push(rig.attempt, [metric("NaN", "a"), metric(2.0, "a"), metric("Infinity", "a")])
    got = series.read(rig.run, ["a", "never"])
    assert got["a"]["value"] == [None, 2.0, None] and got["a"]["nonfinite"] == [1, 0, 1]
    assert "never" not in got


def test_after_a_resume_older_points_stay_faint(rig: Rig) -> None:
    push(rig.attempt, [("started", {"resumed_from": None}), *[metric(float(step), "a") for step in range(2, 11)]])
    second = rig.resume(2)
    push(second, [("started", {"resumed_from": {"step": 6, "version": 6}})], step=6)
    push(second, [metric(-float(step), "a") for step in range(7, 9)], first=2, step=7)
    got = series.read(rig.run, ["a"])["a"]
    first = [(step, faint) for number, step, faint in zip(got["attempt"], got["step"], got["faint"], strict=True) if number == 1]
    assert first == [(step, step > 6) for step in range(2, 11)]
    assert [faint for number, faint in zip(got["attempt"], got["faint"], strict=True) if number == 2] == [False, False]


def test_the_lag_histogram_adds_up(rig: Rig) -> None:
    push(rig.attempt, [("lag", {"counts": {"0": 10, "2": 5}}), ("lag", {"counts": {"1": 7}}), ("lag", {"counts": {"0": 1, "999": 2}})])
    got = series.lag_histogram(rig.run)
    assert got["steps"] == [1, 2, 3] and got["lags"] == [0, 1, 2, 255]
    assert got["tokens"] == [[10, 0, 1], [0, 7, 0], [5, 0, 0], [0, 0, 2]]
    assert series.lag_histogram(new_rig().run) == {"steps": [], "lags": [], "tokens": []}
    assert series.names(rig.run) == []
