"""What holds dispatch back: the pure question behind the loop that waits for room."""

from __future__ import annotations

from dataclasses import dataclass

from workers.contract.bounds import most_groups
from workers.contract.config import RunConfig
from workers.pool import Blocked


@dataclass(frozen=True)
class Load:
    """What is under way.

    groups: from dispatch until trained, and places of the next batch that stay empty; groups_left: that the budget has use for;
    unpublished: groups trained, their publish still to come; units: in the buffer or at its door, of `capacity`, if there is one;
    generating: samples that engines have, of `slots`; swapping: engines are between two versions and must run empty;
    delayed: a publish waits for groups to be trained; pausing: the run is, or is about to be, paused.
    """

    groups_left: int
    groups: int
    unpublished: int
    units: int
    capacity: int | None
    generating: int
    slots: int
    swapping: bool = False
    delayed: bool = False
    pausing: bool = False


def blocked(config: RunConfig, load: Load) -> Blocked | None:
    """Why no further group may be dispatched, None when one may."""
    prompts = config.batch.prompts
    if load.pausing:
        return "paused"
    if load.groups >= load.groups_left:
        return "enough"
    # While a publish waits, only what is missing for a batch is dispatched: more would make it wait for ever.
    if load.swapping or (load.delayed and load.groups >= prompts):
        return "wait_sync"
    limit = most_groups(config)
    if limit is not None and load.groups + (0 if load.delayed else load.unpublished) + 1 > limit + 1e-9:
        return "wait_depth_bound"
    if load.capacity is not None and load.units >= max(load.capacity, 1):
        return "wait_buffer_full"
    return "slots_full" if load.generating >= load.slots else None
