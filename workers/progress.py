"""How far a run is: step, version, the batch being gathered, and what a resume has to dispatch again."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workers.contract.config import RunConfig
from workers.records import Batch, Group, Prompt, from_wire, to_wire
from workers.told import Told


@dataclass
class Progress:
    """`step` counts batches trained, `version` publishes; `batch` holds groups taken from the buffer for the next step."""

    step: int = 0
    version: int = 0
    groups_dispatched: int = 0
    tokens_trained: int = 0
    batch: list[Group] = field(default_factory=list)
    holes: int = 0  # places of the next batch that dropped groups leave empty
    refills: int = 0  # groups replaced for the next batch
    rewards: list[float] = field(default_factory=list)  # mean reward of every step so far
    lag_tokens: int = 0
    lag_sum: int = 0
    lag_max: int = 0
    pauses: list[float] = field(default_factory=list)
    sync_bytes: int = 0
    sync_count: int = 0
    last_sync: dict[str, float] = field(default_factory=dict)
    step_rate: float | None = None  # samples a second over the last step
    evaluations: list[dict[str, float]] = field(default_factory=list)
    trained_before: int = 0  # samples trained by earlier attempts: rates are of this one
    unfinished: list[Group] = field(default_factory=list)
    told: Told = field(default_factory=Told)

    def next_group_id(self) -> str:
        self.groups_dispatched += 1
        return f"g{self.groups_dispatched}"

    def take_unfinished(self) -> list[Group]:
        """Groups that were in flight at the checkpoint: dispatched again under the same ids, at today's version."""
        groups, self.unfinished = self.unfinished, []
        return [Group(id=group.id, prompt=group.prompt, dispatched_version=self.version, slots=group.slots) for group in groups]

    def stepped(self, batch: Batch) -> None:
        self.step = batch.step
        self.batch = []
        self.refills = 0

    def as_dict(self) -> dict[str, Any]:
        """For a checkpoint; `restore` is its inverse."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name not in ("batch", "unfinished", "told")}
        return {**plain, "batch": to_wire(self.batch), "told": self.told.saved()}

    def restore(self, saved: dict[str, Any], under_way: list[dict[str, Any]]) -> None:
        """`under_way` holds id, prompt and open slots of every group that was in flight."""
        self.told.restore(saved.get("told", {}))
        for name, value in saved.items():
            if name == "told":
                continue
            setattr(self, name, [from_wire(Group, item) for item in value] if name == "batch" else value)
        self.unfinished = [
            Group(item["id"], from_wire(Prompt, item["prompt"]), self.version, slots=item.get("slots", [])) for item in under_way
        ]


def open_slots(group: Group) -> list[int]:
    """The slots of a group in flight that a resume fills again: those being filled, and those it holds already. Empty: all.

    One that waits for room in the buffer holds only the samples that stayed; those that left it are counted and done with.
    """
    return sorted({*group.slots, *(sample.rollout.index for sample in group.samples)})


def slots_of(config: RunConfig, group: Group) -> list[int]:
    """Every completion slot that a group in flight or in the buffer accounts for."""
    return open_slots(group) or list(range(config.batch.group_size))
