"""Going on from a checkpoint: which one, whether this config may, and what is put back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from workers import report
from workers.checkpoint import Checkpoint, Checkpoints
from workers.contract.config import RunConfig
from workers.contract.errors import CheckpointError
from workers.contract.loading import diff, upgraded
from workers.parts import Parts
from workers.progress import open_slots
from workers.records import Group, from_wire, to_wire

# evaluation.prompts may not: it decides which questions are held out, and so what was trained on.
MAY_DIFFER = (
    "budget.",
    "evaluation.every_steps",
    "evaluation.at_",
    "evaluation.temperature",
    "checkpoint.",
    "preset",
    "orchestration.",
    "transport.",
    "rollout.threads",
    "rollout.deadline_s",
    "backend.threads",
)


ATTEMPT_NOTE = "attempt.json"  # what a server's launcher leaves in the folder of an attempt


def find(folder: Path, config: RunConfig) -> tuple[Checkpoint, list[CheckpointError]]:
    """The newest complete checkpoint of a run's folder, and what was wrong with newer ones. Called before anything is written.

    Raises CheckpointError where there is none, or where the config differs in what a resume may not change.
    """
    lineage = read_lineage(folder)

    def ours(found: Checkpoint) -> None:
        theirs = found.driver_state().get("lineage")
        if lineage and theirs and theirs != lineage:
            raise CheckpointError("it is another run's", field="checkpoint", value=str(found.folder), cure="the one before is used")

    found, faults = Checkpoints(folder / "checkpoints", 1).latest(ours)
    if found is None:
        passed = f"; passed over: {'; '.join(map(str, faults))}" if faults else ""
        raise CheckpointError(
            f"there is no complete checkpoint to resume from{passed}", field="resume", value=str(folder), cure="start the run anew"
        )
    before = RunConfig.model_validate(upgraded(found.driver_state()["config"]))
    changed = {path: pair for path, pair in diff(before, config).items() if not path.startswith(MAY_DIFFER)}
    if changed:
        path, (_, new) = next(iter(changed.items()))
        lines = "; ".join(f"{path} {old!r} -> {new!r}" for path, (old, new) in changed.items())
        raise CheckpointError(
            f"the checkpoint was made with other settings: {lines}",
            field=path,
            value=new,
            cure="resume with the same values, or start anew",
        )
    return found, faults


def read_lineage(folder: Path) -> str | None:
    """What all attempts of a run share, as its folder says: a checkpoint that somebody put there from elsewhere has another. None: not
    known, as in folders that are older."""
    try:
        found = json.loads((folder / "provenance.json").read_text()).get("lineage")
    except (OSError, ValueError, AttributeError):
        return None
    return str(found) if found else None


def own_id(folder: Path) -> str | None:
    """The id that a run from the command line had from its first attempt on. None: not known, or a server gave it its id."""
    return read_lineage(folder) if not (folder / ATTEMPT_NOTE).exists() else None


def snapshot(parts: Parts, under_way: dict[str, Group]) -> dict[str, Any]:
    """The flow's share of a checkpoint, as JSON; `restore` reads it. Called between two awaits, so that it is of one instant."""
    report.groups(parts)
    return {
        "told_through": parts.emit.last_seq,  # what is told later is undone by a resume from here
        "progress": parts.progress.as_dict(),
        "samples": parts.samples.as_dict(),
        "source": parts.environment.source.state(),
        "buffer": to_wire(parts.buffer.contents()),
        "under_way": [{"id": group.id, "prompt": to_wire(group.prompt), "slots": open_slots(group)} for group in under_way.values()],
    }


def origin(found: Checkpoint) -> dict[str, int | None]:
    """For the first event of an attempt. told_through: the last event of the attempt before that still counts; None: not known."""
    return {"step": found.step, "version": found.version, "told_through": found.driver_state().get("told_through")}


async def restore(parts: Parts, found: Checkpoint, ever_trained: int) -> None:
    """Puts weights, optimizer, cursor, buffer, ledger and version back. Called before the flow starts.

    ever_trained: samples that attempts so far have trained, see `folder.last_trained`; those beyond the checkpoint were in vain.
    """
    state = found.driver_state()
    await parts.trainer.checkpoint(found.folder, restore=True)
    parts.progress.restore(state["progress"], state["under_way"])
    parts.emit.step = parts.progress.step
    parts.samples.restore(state["samples"])
    parts.progress.trained_before = parts.samples.trained
    parts.environment.source.restore(state["source"])
    parts.buffer.restore([from_wire(Group, item) for item in state["buffer"]])
    undone = ever_trained - parts.samples.trained - parts.samples.lost["rolled_back"]
    if undone > 0:
        parts.samples.roll_back(undone)
    parts.samples.check()
    await serve(parts)


async def serve(parts: Parts) -> None:
    """Engines begin with the model as it is. Called where the trainer's weights are others: they are published under their version."""
    manifest = await parts.trainer.publish(parts.progress.version, sorted(parts.pool.engines))
    await parts.pool.update(manifest)
