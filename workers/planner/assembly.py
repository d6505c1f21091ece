"""From a config to the parts of a simulated run: policy axes by their real classes, the others by their twins."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from workers import registry
from workers.clock import Clock
from workers.contract.config import RunConfig
from workers.emit import Emitter
from workers.ledger import SampleLedger, TimeLedger
from workers.parts import TRAINER, Parts
from workers.planner.costs import Costs
from workers.planner.draws import Draws, Failing
from workers.planner.twins import Carried, EmulatedEnvironment, EmulatedScorer, EmulatedTrainer
from workers.pool import Pool
from workers.progress import Progress
from workers.records import Group, Rollout, SampleRequest
from workers.rollout.base import Generator
from workers.rollout.emulated import EmulatedEngine
from workers.rollout.leaps import EngineCost
from workers.scoring.base import Scorer


def engine(
    config: RunConfig, clock: Clock, name: str, lengths: Callable[[SampleRequest], int], cost: EngineCost, costs: Costs
) -> EmulatedEngine:
    """One emulated engine, driven by the config's real interrupt."""
    return EmulatedEngine(
        clock,
        name,
        config.rollout.max_running,
        registry.resolve("interrupt", config.interrupt.kind)(config.interrupt.kv_after),
        lengths,
        cost,
        lambda manifest: costs.transfer_s,
        parks="save_resume" in config.partial,
    )


def carried(engines: Mapping[str, Generator], clock: Clock, costs: Costs, draws: Draws | None = None) -> dict[str, Generator]:
    """Engines behind their carrier, where its messages take time; some requests fail, where `draws` says so."""
    made = dict(engines)
    if draws is not None and draws.any_fail:
        made = {name: Failing(inner, draws) for name, inner in made.items()}
    return {name: Carried(inner, clock, costs.message_s) for name, inner in made.items()} if costs.message_s else made


def assemble(
    config: RunConfig,
    clock: Clock,
    emit: Emitter,
    *,
    lengths: Callable[[SampleRequest], int],
    engine_cost: EngineCost,
    costs: Costs,
    reward: Callable[[Rollout], float | None] | None = None,
    engines: int | None = None,
    remembers: bool = False,
    scorer: Scorer | None = None,
    deadlines: bool = True,
    environment: EmulatedEnvironment | None = None,
    draws: Draws | None = None,
) -> Parts:
    """The parts of one simulated run, on the loop that runs. `engines`: how many, by default as the config says."""
    names = [f"generator/{index}" for index in range(engines or config.rollout.engines)]
    time = TimeLedger(clock, [*names, TRAINER])
    made = carried({name: engine(config, clock, name, lengths, engine_cost, costs) for name in names}, clock, costs, draws)

    async def save(under_way: dict[str, Group]) -> None:
        """A simulated run keeps nothing."""

    return Parts(
        config=config,
        clock=clock,
        environment=environment or EmulatedEnvironment(),
        scorer=scorer or EmulatedScorer(clock, reward),
        pool=Pool(
            made,
            config.rollout.max_running,
            time,
            route=config.rollout.route,
            deadline_s=config.rollout.deadline_s if deadlines else None,
        ),
        buffer=registry.resolve("buffer", config.buffer.kind)(config.buffer, config.batch.prompts),
        staleness=registry.resolve("staleness", config.staleness.over_limit)(config.staleness),
        partial=[registry.resolve("partial", kind)() for kind in config.partial],
        trainer=EmulatedTrainer(clock, config, costs, remembers),
        emit=emit,
        samples=SampleLedger(),
        time=time,
        progress=Progress(),
        save=save,
    )
