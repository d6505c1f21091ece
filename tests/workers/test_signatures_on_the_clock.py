"""Every preset and variant on the virtual clock, with completions of very different lengths: what only a long tail brings out."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from tests.workers import signature as sign
from tests.workers.emulated import MemoryEmitter, rig
from workers.clock import run_virtual
from workers.contract import loading, presets
from workers.pipeline import Pipeline
from workers.summary import summarise

STEPS = 24
# A group in 16 has a sample of two thousand tokens; a batch trains in a second, about as long as a usual group takes.
SETS = (
    f"budget.steps={STEPS}",
    "sampling.max_new_tokens=3000",
    "batch.micro_tokens=4096",
    "evaluation.at_start=false",
    "evaluation.at_end=false",
    "evaluation.every_steps=0",
    "checkpoint.every_steps=0",
)
NAMED: dict[str, tuple[Callable[[sign.Story], None], ...]] = {
    "nemo-rl": (sign.drops_by_age, sign.drains_first),
    "roll": (sign.loses_what_was_running,),
    "prime-rl": (sign.gives_up_old_groups, sign.several_versions_in_a_sample),
    "trl-sync": (sign.never_overlaps,),
    "trl-async": (sign.overlaps, sign.several_versions_in_a_sample),
    "pipelinerl": (sign.overlaps, sign.several_versions_in_a_sample),
    "verl": (sign.publishes_every(4), sign.goes_on_from_its_prefix),
    "atropos": (sign.publishes_every(3),),
    "slime-fully-async": (sign.begins_again,),
}


class Recorder(MemoryEmitter):
    """Keeps the step of every event, as a spool does."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[sign.Event] = []

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        self.told.append({"kind": kind, "step": self.step, "data": data})


def length(identity: str) -> int:
    group, _, index = identity.partition("/")
    long = int(group.removeprefix("g")) % 16 == 5 and index == "0"
    return 2000 if long else random.Random(identity).randint(10, 60)


def simulated(name: str) -> sign.Story:
    config = loading.resolve(preset=name, sets=SETS)
    recorder = Recorder()

    async def main() -> Any:
        parts = rig(config, lengths=length, token_s=0.02, train_s=1.0)
        parts.emit = recorder
        await Pipeline(parts).run()
        return parts

    parts = run_virtual(main())
    return sign.Story(config, recorder.told, summarise(config, parts.progress, parts.samples, parts.time, "succeeded"))


@pytest.mark.parametrize("name", [name for name in presets.names() if name != presets.DEFAULT])
def test_a_simulated_run_keeps_its_promises(name: str) -> None:
    told = simulated(name)
    assert told.summary["steps"] == STEPS
    for check in (*sign.CHECKS, *NAMED.get(name, ())):
        check(told)
