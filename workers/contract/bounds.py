"""Numbers that follow from a config: how much may be under way, and how old it will grow."""

from __future__ import annotations

from workers.contract.config import RunConfig


def expected_lag(config: RunConfig) -> int | None:
    """Versions published while the buffer and every slot drain ahead of a group: the lag of a balanced run at its oldest.

    None where nothing bounds what waits.
    """
    batch = config.batch
    unit = batch.group_size if config.buffer.unit == "sample" else 1
    waiting = {"none": 0, "double": 2 * batch.prompts, "bounded": config.buffer.depth // unit}.get(config.buffer.kind)
    if waiting is None:
        if config.buffer.ring is None:
            return None
        waiting = config.buffer.ring // unit
    in_flight = -(-config.rollout.max_running * config.rollout.engines // batch.group_size)
    ahead = waiting + in_flight
    limit = most_groups(config)
    if limit is not None:  # it counts the batch in training, too
        ahead = min(ahead, max(int(limit) - batch.prompts, 0))
    batches_ahead = -(-ahead // batch.prompts)
    return -(-batches_ahead // config.sync.every_steps)


def most_groups(config: RunConfig) -> float | None:
    """How many groups the depth bound lets be under way at once, None without one."""
    bound, batch = config.staleness.depth_bound, config.batch
    if bound is None:
        return None
    if bound.unit == "fraction":
        return (1 + bound.value) * batch.prompts * config.sync.every_steps
    return bound.value * (batch.prompts if bound.unit == "batches" else 1 / batch.group_size)
