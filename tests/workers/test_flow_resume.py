"""A stop at any moment and a resume, on a virtual clock: the books go on and close, the version bound holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, get_args

import pytest

from tests.workers.emulated import rig
from tests.workers.test_flow_policies import config, lags, rollout, uneven
from workers import resume
from workers.clock import run_virtual
from workers.contract import axes, loading
from workers.contract.config import RunConfig
from workers.emit import Emitter
from workers.folder import last_trained
from workers.ledger import SampleLedger
from workers.pipeline import Pipeline
from workers.progress import Progress, open_slots
from workers.records import Group, Prompt, Sample, to_wire

FAILING = {f"g{group}/{index}" for group in range(1, 400, 3) for index in range(group % 3 + 1)}


class Kept:
    """A checkpoint held in memory, through JSON as on disk."""

    folder = Path()

    def __init__(self, parts: Any, under_way: dict[str, Group]) -> None:
        self.text = json.dumps(resume.snapshot(parts, under_way))

    def driver_state(self) -> Any:
        return json.loads(self.text)


def interrupted(settings: RunConfig, stop_at: float) -> tuple[Any, Any]:
    """The parts of a run that was asked to stop at `stop_at` seconds, and those of its resume, which ran to the end."""

    async def attempt(stop_at: float, kept: Kept | None) -> tuple[Any, list[Kept]]:
        parts = rig(settings, lengths=uneven, train_s=0.3, failing=FAILING)
        saved: list[Kept] = []

        async def save(under_way: dict[str, Group]) -> None:
            saved.append(Kept(parts, under_way))

        parts.save = save
        parts.stop_requested = lambda: parts.clock.now() > stop_at
        if kept is not None:
            await resume.restore(parts, kept, ever_trained=0)  # type: ignore[arg-type]
        await Pipeline(parts).run()
        return parts, saved

    first, saved = run_virtual(attempt(stop_at, None))
    second, _ = run_virtual(attempt(float("inf"), saved[-1]))
    return first, second


@pytest.mark.parametrize("buffer", get_args(axes.BufferKind))
@pytest.mark.parametrize("unit", get_args(axes.BufferUnit))
@pytest.mark.parametrize("over_limit", get_args(axes.OverLimit))
def test_a_stop_and_a_resume_train_every_group_once(over_limit: str, unit: str, buffer: str) -> None:
    for stop_at, every in ((1.0, 1), (1.7, 2), (2.3, 3)):
        settings = config(
            buffer={"kind": buffer, "unit": unit, "depth": 16},
            staleness={"over_limit": over_limit, "max_lag": 1},
            sync={"every_steps": every},
            checkpoint={"every_steps": 2},
            rewards={"zero_variance": "drop"},
        )
        first, second = interrupted(settings, stop_at)
        assert first.progress.step < second.progress.step == 12
        second.samples.check()
        assert second.samples.in_flight == second.samples.buffered == 0
        both = [group.id for parts in (first, second) for batch in parts.trainer.batches for group in batch.groups]
        assert len(both) == len(set(both))
        if over_limit != "count_only":
            assert max(lags(first) + lags(second)) <= 1


def test_a_group_at_the_door_is_filled_again_without_the_samples_that_left_it() -> None:
    def member(index: int) -> Sample:
        return Sample(rollout(index), reward=1.0)

    prompt = Prompt("p:0", 0, "?", [1])
    assert open_slots(Group("g1", prompt, 0)) == []
    assert open_slots(Group("g1", prompt, 0, [member(3), member(0)])) == [0, 3]
    assert open_slots(Group("g1", prompt, 0, [member(3)], slots=[1])) == [1, 3]


def test_a_checkpoint_without_the_newer_accounts_is_read() -> None:
    samples = SampleLedger()
    saved = {name: value for name, value in samples.as_dict().items() if name != "effects"}
    samples.restore(saved)
    samples.effects["recycled"] += 1
    progress = Progress()
    progress.restore({"step": 3, "version": 2}, [{"id": "g4", "prompt": to_wire(Prompt("p:0", 0, "?", [1]))}])
    assert progress.take_unfinished()[0].slots == [] and progress.holes == 0


def test_a_whole_config_of_version_1_needs_no_preset() -> None:
    """Its preset may be gone by now, or be another one; the sections that came later stand at their defaults."""
    older = RunConfig().as_json() | {"schema_version": 1, "preset": "gone@9"}
    del older["curriculum"], older["replay"]
    assert loading.resolve(older).preset == "gone@9"


def test_two_resumes_from_one_checkpoint_count_all_that_was_undone(tmp_path: Path) -> None:
    """32 trained at the checkpoint; one attempt came to 48, the next to 40: 24 samples were trained in vain."""

    async def main() -> list[int]:
        settings, counts = config(), []
        at_checkpoint = rig(settings)
        at_checkpoint.samples.dispatch(32)
        at_checkpoint.samples.buffer(32)
        at_checkpoint.samples.train(32)
        kept = Kept(at_checkpoint, {})
        for trained_here in (16, 8, 0):
            parts = rig(settings)
            spool = Emitter(tmp_path / "spool")
            await resume.restore(parts, kept, last_trained(tmp_path))  # type: ignore[arg-type]
            if trained_here:
                parts.samples.dispatch(trained_here)
                parts.samples.buffer(trained_here)
                parts.samples.train(trained_here)
            parts.samples.check()
            counts.append(parts.samples.lost["rolled_back"])
            spool.emit("state", {"samples": parts.samples.as_dict()})
            assert spool.close()
        return counts

    assert run_virtual(main()) == [0, 16, 24]
