"""Going on from a checkpoint: which one, whether this config may, and what is put back."""

from __future__ import annotations

from pathlib import Path

from workers.checkpoint import Checkpoint, Checkpoints
from workers.contract.config import RunConfig
from workers.contract.errors import CheckpointError
from workers.contract.loading import diff, upgraded
from workers.folder import last_trained
from workers.parts import Parts
from workers.records import Group, from_wire

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
    "backend.threads",
)


def find(folder: Path, config: RunConfig) -> tuple[Checkpoint, list[CheckpointError]]:
    """The newest complete checkpoint of a run's folder, and what was wrong with newer ones. Called before anything is written.

    Raises CheckpointError where there is none, or where the config differs in what a resume may not change.
    """
    found, faults = Checkpoints(folder / "checkpoints", 1).latest()
    if found is None:
        raise CheckpointError(
            "there is no complete checkpoint to resume from", field="resume", value=str(folder), cure="start the run anew"
        )
    before = RunConfig.model_validate(upgraded(found.driver_state()["config"]))
    changed = {path: pair for path, pair in diff(before, config).items() if not path.startswith(MAY_DIFFER)}
    if changed:
        path, (old, new) = next(iter(changed.items()))
        raise CheckpointError(
            f"the checkpoint was made with {old!r}", field=path, value=new, cure="resume with the same value, or start anew"
        )
    return found, faults


async def restore(parts: Parts, found: Checkpoint, folder: Path) -> None:
    """Puts weights, optimizer, cursor, buffer, ledger and version back. Called before the flow starts."""
    state = found.driver_state()
    await parts.trainer.checkpoint(found.folder, restore=True)
    parts.progress.restore(state["progress"], state["under_way"])
    parts.emit.step = parts.progress.step
    parts.samples.restore(state["samples"])
    parts.progress.trained_before = parts.samples.trained
    parts.environment.source.restore(state["source"])
    parts.buffer.restore([from_wire(Group, item) for item in state["buffer"]])
    undone = last_trained(folder) - parts.samples.trained - parts.samples.lost["rolled_back"]
    if undone > 0:
        parts.samples.roll_back(undone)
    parts.samples.check()
    await serve(parts)


async def serve(parts: Parts) -> None:
    """Engines begin with the model as it is. Called where the trainer's weights are others: they are published under their version."""
    manifest = await parts.trainer.publish(parts.progress.version, sorted(parts.pool.engines))
    await parts.pool.update(manifest)
