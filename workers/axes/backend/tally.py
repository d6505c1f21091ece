"""What one batch gathers while it is trained, and the figures made of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from workers.axes.backend.layout import Item, MicroBatch
from workers.axes.backend.objective import Known, Share
from workers.axes.backend.prepare import Prepared
from workers.contract.config import Loss
from workers.learn.diagnostics import masked_mean, mismatch


@dataclass
class Tally:
    """By item index: the trainer's log-probs before the update, entropies, its choice of experts where that is kept, what became of each
    token in the last optimizer step that read it (`objective.FATES`), and other models' log-probs by their name.

    clipped, rejected: loss tokens, over all optimizer steps, of `judged` ones; from_reference, from_teacher: sums over the same of the
    distance to another model; losses: of each optimizer step that was taken; stepped: what the last one said of itself.
    """

    logprobs: dict[int, Tensor] = field(default_factory=dict)
    entropy: dict[int, Tensor] = field(default_factory=dict)
    others: dict[str, dict[int, Tensor]] = field(default_factory=dict)
    routing: dict[int, Tensor] = field(default_factory=dict)
    fate: dict[int, Tensor] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    clipped: int = 0
    rejected: int = 0
    judged: int = 0
    from_reference: float = 0.0
    from_teacher: float = 0.0
    stepped: dict[str, float] = field(default_factory=dict)
    # What each rank keeps for its own rows: put together, or added up, at the end of a batch.
    BY_ITEM: ClassVar[tuple[str, ...]] = ("logprobs", "entropy", "fate")
    SUMMED: ClassVar[tuple[str, ...]] = ("clipped", "rejected", "from_reference", "from_teacher")

    def remember(self, micro: MicroBatch, flat: Tensor, entropy: Tensor) -> None:
        """Called when the trainer's own pass meets a micro-batch for the first time. flat, entropy (N,)."""
        self.logprobs.update(by_item(micro, flat))
        self.entropy.update(by_item(micro, entropy))

    def add(self, micro: MicroBatch, share: Share) -> None:
        """Called after the loss of each micro-batch."""
        if share.fate is not None:
            self.fate.update(by_item(micro, share.fate.flatten()[micro.place].cpu()))
        self.clipped += share.clipped
        self.rejected += share.rejected
        self.from_reference += share.from_reference
        self.from_teacher += share.from_teacher

    def masks(self, items: Sequence[Item]) -> dict[str, list[int]]:
        """By sample id, for each token its fate; 1 where no step had to read it, for its advantage is 0."""
        return {item.id: self.fate[item.index].tolist() if item.index in self.fate else [1] * len(item.tokens) for item in items}

    def known(self, prepared: Prepared, micro: MicroBatch) -> Known:
        """What the loss of a micro-batch that was remembered reads beside today's log-probs."""

        def gathered(values: Mapping[int, Tensor]) -> Tensor:
            return micro.spread(torch.cat([values[item.index] for item in micro.items]))

        versions = torch.tensor([version for item in micro.items for version in prepared.versions[item.index]])
        others = {name: gathered(values) for name, values in self.others.items()}
        return Known(gathered(self.logprobs), others.get("reference"), others.get("teacher"), micro.spread(versions), prepared.version)

    def metrics(self, items: Sequence[Item], loss: Loss) -> dict[str, float]:
        """Named as in workers.contract.metrics. What was not measured is left out."""
        values = dict(self.stepped)
        if self.losses:
            values["loss/policy"] = sum(self.losses) / len(self.losses)
        if not items:
            return values
        pad = torch.nn.utils.rnn.pad_sequence
        trainer = pad([self.logprobs[item.index] for item in items], batch_first=True)
        entropy = pad([self.entropy[item.index] for item in items], batch_first=True)
        engine = pad([torch.tensor(item.rollout, dtype=torch.float64) for item in items], batch_first=True)
        lengths = torch.tensor([len(item.tokens) for item in items])
        mask = torch.arange(trainer.shape[1]) < lengths[:, None]
        values.update({f"loss/{name}": value for name, value in mismatch(trainer, engine, mask).items()})
        mean_entropy = masked_mean(entropy, mask)
        if mean_entropy is not None:
            values["loss/entropy"] = mean_entropy
        values["loss/clip_share"] = self.clipped / self.judged
        values["loss/rejected_share"] = self.rejected / self.judged
        if "reference" in self.others:
            values["loss/kl_reference"] = self.from_reference / self.judged
        if loss.distillation is not None:
            values["loss/teacher_gap"] = self.from_teacher / self.judged
        return values


def by_item(micro: MicroBatch, flat: Tensor) -> dict[int, Tensor]:
    """(N,) token values, by item index."""
    parts = torch.split(flat, [len(item.tokens) for item in micro.items])
    return {item.index: part for item, part in zip(micro.items, parts, strict=True)}
