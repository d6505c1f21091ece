"""The four numbers of the teaching simulation (`workers.planner.lesson`): its command line and its page offer the same ones."""

from __future__ import annotations

from typing import NamedTuple


class Knob(NamedTuple):
    """One number: values from `least` to `most`, of which a slider shows those `step` apart and begins at `first`."""

    name: str
    title: str
    says: str
    least: float
    most: float
    step: float
    first: float


KNOBS = (
    Knob("ahead", "Batches ahead", "How many batches may be under way beyond the one being trained. 0: both pools take turns.", 0, 4, 1, 1),
    Knob("max_lag", "Lag bound", "How many versions a sample may be behind the weights it trains. Older ones are dropped.", 0, 8, 1, 4),
    Knob("sync_s", "Weight sync", "Seconds for which the engines stand still for new weights.", 0, 10, 0.5, 1),
    Knob("spread", "Length spread", "The length that one sample in ten exceeds, in medians. 1: all are equally long.", 1, 6, 0.5, 3),
)
