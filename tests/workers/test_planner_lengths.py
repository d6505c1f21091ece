"""Distributions are what they say: their quantiles, and draws that hang on seed and key alone."""

from __future__ import annotations

import math
import statistics
from statistics import NormalDist

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from workers.planner.lengths import Chain, Empirical, Fixed, Lognormal, drawn, share_of
from workers.summary import percentile

SHARES = st.floats(0.001, 0.999)
SIZES = st.floats(1, 1e5)


@given(SIZES, st.floats(1, 50), SHARES)
def test_a_lognormal_has_the_median_and_the_ninth_decile_it_was_given(median: float, ratio: float, share: float) -> None:
    made = Lognormal(median=median, p90=median * ratio)
    assert made.quantile(0.5) == pytest.approx(median)
    assert made.quantile(0.9) == pytest.approx(median * ratio)
    sigma = math.log(ratio) / NormalDist().inv_cdf(0.9)
    assert Lognormal(median=median, sigma=sigma).quantile(share) == pytest.approx(made.quantile(share))


@given(st.lists(SIZES, min_size=1, max_size=50).map(sorted), SHARES, SHARES)
def test_an_empirical_one_draws_what_was_seen_and_never_falls(values: list[float], low: float, high: float) -> None:
    made = Empirical(values=values)
    assert made.quantile(low) in values
    assert made.quantile(min(low, high)) <= made.quantile(max(low, high))
    assert made.quantile(low) == percentile(values, low)


@given(st.integers(0, 2**31), st.text(max_size=20))
def test_a_share_lies_within_and_is_the_same_every_time(seed: int, key: str) -> None:
    assert 0 < share_of(seed, "length", key) < 1
    assert share_of(seed, "length", key) == share_of(seed, "length", key)


def test_draws_follow_the_distribution_and_agents_draw_apart() -> None:
    made = Chain(parts=[Lognormal(median=100, p90=500), Fixed(value=7)])
    rows = [drawn(made, 7, "length", key) for key in range(4000)]
    assert {row[1] for row in rows} == {7.0}
    firsts = [row[0] for row in rows]
    assert statistics.median(firsts) == pytest.approx(100, rel=0.1)
    assert percentile(firsts, 0.9) == pytest.approx(500, rel=0.1)
    both = Chain(parts=[Lognormal(median=100, p90=500)] * 2)
    pairs = [drawn(both, 7, "length", key) for key in range(4000)]
    logs = [[math.log(value) for value in column] for column in zip(*pairs, strict=True)]
    assert abs(statistics.correlation(*logs)) < 0.05


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Lognormal(median=10),
        lambda: Lognormal(median=10, p90=20, sigma=1.0),
        lambda: Lognormal(median=10, p90=5),
        lambda: Empirical(values=[2, 1]),
        lambda: Empirical(values=[0.0, 1]),
        lambda: Fixed(value=0),
    ],
)
def test_what_is_no_distribution_is_refused(wrong: object) -> None:
    with pytest.raises(ValidationError):
        wrong()  # type: ignore[operator]
