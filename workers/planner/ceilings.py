"""What no design can beat: the engines alone, the trainer alone, and one batch generated behind a barrier.

G: the same engines with every slot taken again as soon as it is free, output thrown away, no weight sync. T: the trainer from a buffer
that is full already. Overlap is a design's steps a second over the smaller of the two.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from workers.clock import VirtualClock, run_virtual
from workers.contract.config import RunConfig
from workers.ledger import TimeLedger
from workers.planner import assembly, design
from workers.planner.draws import Draws
from workers.planner.scenario import Scenario
from workers.planner.speeds import cost
from workers.pool import Pool
from workers.records import SampleRequest
from workers.rollout.leaps import EngineCost

BATCHES = 4  # whose mean is the generation of one batch behind a barrier
LEAST_BATCHES = 12  # of the engines alone, after as many again in which they reach their steady state


@dataclass(frozen=True)
class Ceilings:
    """generation_batch_s: seconds from the dispatch of a whole batch to idle engines until its last sample is back."""

    generation_steps_per_s: float
    training_steps_per_s: float
    generation_batch_s: float

    @property
    def least(self) -> float:
        return min(self.generation_steps_per_s, self.training_steps_per_s)


def ceilings(config: RunConfig, scenario: Scenario) -> Ceilings:
    """Of a scenario; the preset's part in it is how often it passes over a batch."""
    return Ceilings(_generating(config, scenario), _training(config, scenario), generation_batch_s(config, scenario))


def _training(config: RunConfig, scenario: Scenario) -> float:
    draws, batch = Draws(scenario), scenario.batch
    sizes = [
        sum(
            draws.cut(draws.tokens(draws.sample_key(config, step * batch.prompts + prompt + 1, index))) for index in range(batch.group_size)
        )
        for step in range(LEAST_BATCHES)
        for prompt in range(batch.prompts)
    ]
    tokens = sum(sizes) / LEAST_BATCHES
    return 1 / max(1e-12, scenario.training.batch_s + scenario.token_s * tokens * config.batch.epochs)


def _generating(config: RunConfig, scenario: Scenario) -> float:
    """Batches a second of the engines alone, once they have passed their start."""
    size = config.batch.prompts * config.batch.group_size
    slots = scenario.generation.slots * scenario.generation.replicas
    warm = max(2 * slots, size)
    wanted = warm + max(LEAST_BATCHES * size, 4 * slots)

    async def main() -> float:
        pool, queue, clock = _pool(config, scenario), _requests(config, scenario), VirtualClock()
        back, began = 0, 0.0
        done = asyncio.Event()

        async def slot() -> None:
            nonlocal back, began
            while back < wanted:
                await pool.generate(next(queue))
                back += 1
                if back == warm:
                    began = clock.now()
                if back == wanted:
                    done.set()

        workers = [asyncio.create_task(slot()) for _ in range(slots)]
        await done.wait()
        seconds = clock.now() - began
        for worker in workers:
            worker.cancel()
        return (wanted - warm) / size / max(seconds, 1e-12)

    return run_virtual(main())


def generation_batch_s(config: RunConfig, scenario: Scenario) -> float:
    """Seconds of a batch behind a barrier."""
    return batch_s(config, scenario, [Draws(scenario).grains])


def batch_s(config: RunConfig, scenario: Scenario, stages: list[Callable[[SampleRequest], int]]) -> float:
    """Seconds of a batch whose samples go through stages of these lengths, all of them waiting for one another after each."""
    size = config.batch.prompts * config.batch.group_size

    async def main() -> float:
        clock, queue = VirtualClock(), _requests(config, scenario)
        pools = [_pool(config, scenario, lengths) for lengths in stages]
        began = clock.now()
        for _ in range(BATCHES):
            requests = [next(queue) for _ in range(size)]
            for pool in pools:
                await asyncio.gather(*(pool.generate(request) for request in requests))
        return (clock.now() - began) / BATCHES

    return run_virtual(main())


def _pool(config: RunConfig, scenario: Scenario, lengths: Callable[[SampleRequest], int] | None = None) -> Pool:
    """The scenario's engines, and no trainer. The interrupt is never asked: nothing is published."""
    draws, clock = Draws(scenario), VirtualClock()
    names = [f"generator/{index}" for index in range(scenario.generation.replicas)]
    costs = design.costs(config, scenario)
    spent = engine_cost(scenario)
    engines = {name: assembly.engine(config, clock, name, lengths or draws.grains, spent, costs) for name in names}
    return Pool(assembly.carried(engines, clock, costs, draws), config.rollout.max_running, TimeLedger(clock, names))


def engine_cost(scenario: Scenario) -> EngineCost:
    generation = scenario.generation
    return cost(
        generation.speed,
        scenario.shape,
        generation.gpus_per_replica,
        grain=scenario.grain,
        prefill_s=generation.prefill_s,
        apply_s=scenario.sync.apply_s,
    )


def _requests(config: RunConfig, scenario: Scenario) -> Iterator[SampleRequest]:
    """The very samples that the flow would dispatch, in its order."""
    draws, number = Draws(scenario), 0
    prompt = [1] * scenario.prompt_tokens
    while True:
        number += 1
        for index in range(config.batch.group_size):
            yield SampleRequest(
                id=f"g{number}/{index}",
                group_id=f"g{number}",
                index=index,
                prompt_ids=prompt,
                key=draws.sample_key(config, number, index),
                max_new_tokens=config.sampling.max_new_tokens,
                temperature=1.0,
            )
