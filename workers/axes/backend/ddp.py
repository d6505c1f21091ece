"""ddp: every rank holds the model and trains its share of a batch's rows; gradients are summed, never averaged.

The denominators of a loss are those of the whole batch, so the sum of the ranks' gradients is the gradient of one process.
"""

from __future__ import annotations

import torch
from torch import Tensor

from workers.axes.backend.ranked import DealingTrainer
from workers.axes.backend.spread import Spread
from workers.axes.backend.together import Together, in_buckets, owners_of, total
from workers.contract.errors import EnvironmentMissing


class DataParallelTrainer(DealingTrainer):
    """With `backend.sharded_optimizer` each rank keeps and steps its share of the optimizer's state (ZeRO-1)."""

    def _lay_out(self) -> Spread:
        masters = self._adapters.masters
        if self._config.backend.sharded_optimizer and len(masters) < self._seat.count:
            raise EnvironmentMissing(
                f"the optimizer's state of {len(masters)} tensors cannot be dealt to more ranks than that",
                field="backend.ranks",
                value=self._seat.count,
                cure=f"set it to {len(masters)} or less, or backend.sharded_optimizer to false",
            )
        owners = owners_of(masters, self._seat.count) if self._config.backend.sharded_optimizer else None
        return Together(self._seat, self._leader, masters, {}, owners)

    def _heed(self) -> None:
        """The others learn of it where they next wait for this rank: every operation of a batch begins with the same question."""
        if self._interrupted.is_set():
            self._total(torch.zeros(1))

    def _total(self, values: Tensor) -> Tensor:
        if total(torch.tensor([float(self._interrupted.is_set())])).item():
            self._give_up()
        return total(values)

    def _combine(self, loss: float) -> float:
        whole = self._total(torch.tensor([loss], dtype=torch.float64)).item()
        masters = self._adapters.masters.values()
        for master in masters:
            if master.grad is None:
                master.grad = torch.zeros_like(master)
        in_buckets([master.grad for master in masters if master.grad is not None], _sum)
        return whole


def _sum(flat: Tensor) -> None:
    total(flat)
