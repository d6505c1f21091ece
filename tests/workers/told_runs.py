"""A simulated run that tells its events into a folder, as a real one does: what calibration is tested on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from workers.clock import VirtualClock, run_virtual
from workers.contract import loading
from workers.contract.config import RunConfig
from workers.emit import Emitter
from workers.folder import write_json
from workers.pipeline import Pipeline
from workers.planner.assembly import assemble
from workers.planner.costs import Costs
from workers.planner.twins import spread_lengths
from workers.rollout.leaps import EngineCost
from workers.summary import summarise

QUIET = ["evaluation.every_steps=0", "evaluation.at_start=false", "evaluation.at_end=false", "checkpoint.every_steps=0"]


def told_run(
    folder: Path, cost: EngineCost, costs: Costs, *, steps: int = 12, preset: str = "trl-sync", sets: tuple[str, ...] = ()
) -> RunConfig:
    """config.json, summary.json and the spool of a run whose completions have 20 to 200 tokens."""
    chosen = [*QUIET, f"budget.steps={steps}", "sampling.max_new_tokens=512", *sets]
    config = loading.resolve(preset=preset, sets=chosen)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "config.json", config.as_json())

    async def main() -> Any:
        clock = VirtualClock()
        emit = Emitter(folder / "spool", clock)
        parts = assemble(config, clock, emit, lengths=spread_lengths(config.seed, 20, 200), engine_cost=cost, costs=costs)
        await Pipeline(parts).run()
        emit.close()
        return parts

    parts = run_virtual(main())
    write_json(folder / "summary.json", summarise(config, parts.progress, parts.samples, parts.time, "done"))
    return config
