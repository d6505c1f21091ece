"""Random streams by name."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from workers.requests import stream_key, stream_keys


@given(st.integers(), st.lists(st.text()), st.lists(st.integers(min_value=0)))
def test_keys_drawn_together_are_those_drawn_one_by_one(seed: int, names: list[str], last: list[int]) -> None:
    assert stream_keys(seed, *names, last=last) == [stream_key(seed, *names, one) for one in last]


def test_a_key_is_the_one_it_always_was() -> None:
    """Runs that were recorded are replayed by it."""
    assert stream_key(7, "sample", "g1", "p:0", 3) == 6732306094513494337
