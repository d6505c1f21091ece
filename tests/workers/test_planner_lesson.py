"""The teaching page's simulation shows what the page says beside it."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from workers.__main__ import main
from workers.contract.errors import ConfigError
from workers.contract.lesson import KNOBS
from workers.planner.lesson import ENGINES, SHOWN_STEPS, lesson


def shares(told: dict[str, Any], lanes: str) -> dict[str, float]:
    return dict(told["time"][lanes])


def test_in_turns_with_equal_lengths_each_pool_works_half_the_time() -> None:
    told = lesson(ahead=0, spread=1, sync_s=0)
    assert shares(told, "generators") == pytest.approx({"generate": 0.5, "wait_depth_bound": 0.5}, abs=0.01)
    assert shares(told, "trainer") == pytest.approx({"train": 0.5, "wait_buffer_empty": 0.5}, abs=0.01)
    assert told["figures"]["lag"] == 0 and told["figures"]["dropped_share"] == 0


def test_a_long_tail_makes_turns_worse_and_a_buffer_makes_them_good_at_the_price_of_lag() -> None:
    rows = [lesson(ahead=ahead)["figures"] for ahead in range(5)]
    assert rows[0]["samples_per_s"] < 0.4 * lesson(ahead=0, spread=1, sync_s=0)["figures"]["samples_per_s"]
    assert [row["samples_per_s"] for row in rows] == sorted(row["samples_per_s"] for row in rows)
    assert rows[4]["samples_per_s"] > 3 * rows[0]["samples_per_s"]
    assert [row["lag"] for row in rows] == sorted(row["lag"] for row in rows) and rows[4]["lag"] > 2


def test_a_tight_bound_drops_what_was_written_for_nothing() -> None:
    loose, tight = lesson(ahead=4, max_lag=8), lesson(ahead=4, max_lag=1)
    assert loose["figures"]["dropped_share"] < 0.05 < 0.3 < tight["figures"]["dropped_share"]
    assert tight["figures"]["samples_per_s"] < 0.8 * loose["figures"]["samples_per_s"]


def test_a_dear_sync_stops_the_engines() -> None:
    cheap, dear = lesson(ahead=3, sync_s=0), lesson(ahead=3, sync_s=8)
    assert "sync_pause" not in shares(cheap, "generators") and shares(dear, "generators")["sync_pause"] > 0.15
    assert dear["figures"]["samples_per_s"] < 0.85 * cheap["figures"]["samples_per_s"]


@pytest.mark.parametrize("ahead", [0, 2])
def test_the_timeline_covers_every_lane_without_holes(ahead: int) -> None:
    told = lesson(ahead=ahead)
    assert len(told["steps_at"]) == SHOWN_STEPS
    for lane in [*(f"generator/{number}" for number in range(ENGINES)), "trainer"]:
        own = sorted((began, ended) for of, _, began, ended in told["spans"] if of == lane)
        assert own[0][0] == 0 and own[-1][1] == pytest.approx(told["steps_at"][-1], abs=1e-3)
        assert all(after[0] == pytest.approx(before[1], abs=1e-3) for before, after in pairwise(own))


@pytest.mark.parametrize("name", [knob.name for knob in KNOBS])
def test_a_number_out_of_range_is_named(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        lesson(**{name: 99})
    assert caught.value.field == name and caught.value.cure
    assert main(["lesson", f"--{name.replace('_', '-')}", "99"]) == 2
    assert name in capsys.readouterr().err
