"""What holds dispatch back: the pure question behind the loop that waits for room."""

from __future__ import annotations

from workers.contract.config import RunConfig
from workers.pool import Blocked


def blocked(
    config: RunConfig, *, steps_done: int, groups: int, unpublished: int, waiting: int, generating: int, slots: int
) -> Blocked | None:
    """Why no further group may be dispatched, None when one may.

    groups: under way in all, from dispatch until trained; unpublished: trained, their publish still to come;
    waiting: complete groups in the buffer or at its door; generating: samples that engines have and not yet returned.
    """
    if groups >= (config.budget.steps - steps_done) * config.batch.prompts:
        return "enough"
    bound = config.staleness.depth_bound
    if bound is not None:
        limit = bound.value * (config.batch.prompts if bound.unit == "batches" else 1 / config.batch.group_size)
        if groups + unpublished + 1 > limit + 1e-9:
            return "wait_depth_bound"
    if waiting >= config.buffer.depth:
        return "wait_buffer_full"
    return "slots_full" if generating >= slots else None
