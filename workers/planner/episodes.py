"""Chained agents: how the tail of an episode grows, and what barriers between the agents cost."""

from __future__ import annotations

import statistics
from typing import Any

from workers.contract.config import RunConfig
from workers.planner import ceilings as limits
from workers.planner.draws import Draws
from workers.planner.lengths import Chain
from workers.planner.scenario import Scenario
from workers.records import SampleRequest
from workers.summary import percentile

SEEN = 20_000


def episodes(config: RunConfig, scenario: Scenario) -> dict[str, Any] | None:
    """The tail of one agent and of the chain (90th percentile over median, before any cut), and seconds of a batch of episodes:
    with a barrier after each agent, with one at the end, and without any. None where samples are no chains.

    Without a barrier a batch takes what the engines need for as many episodes when every free slot is taken again at once: that is
    what a buffer of episodes gives. The waits are what the barriers add to it, as a share of the batch.
    """
    if not isinstance(scenario.lengths, Chain):
        return None
    draws, agents = Draws(scenario), len(scenario.lengths.parts)
    seen = [draws.agents(key) for key in range(SEEN)]
    stages = [_stage(scenario, draws, agent) for agent in range(agents)]
    each, end = limits.batch_s(config, scenario, stages), limits.generation_batch_s(config, scenario)
    free = 1 / limits.ceilings(config, scenario).generation_steps_per_s
    return {
        "agents": agents,
        "tail_of_agents": [_tail([row[agent] for row in seen]) for agent in range(agents)],
        "tail_of_episode": _tail([sum(row) for row in seen]),
        "batch_s": {"barrier_after_each_agent": each, "barrier_at_the_end": end, "no_barrier": free},
        "wait_share": {"barrier_after_each_agent": 1 - free / each, "barrier_at_the_end": 1 - free / end, "no_barrier": 0.0},
    }


def _stage(scenario: Scenario, draws: Draws, agent: int) -> Any:
    def grains(request: SampleRequest) -> int:
        return max(1, round(draws.cut(draws.agents(request.key)[agent]) / scenario.grain))

    return grains


def _tail(values: list[float]) -> float:
    return (percentile(values, 0.9) or 0.0) / statistics.median(values)
