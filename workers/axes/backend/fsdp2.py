"""fsdp2: parameters, gradients and optimizer state are sharded over the ranks by PyTorch's fully_shard (FSDP2; its idea: ZeRO-3,
Rajbhandari et al. 2020, arXiv:1910.02054; Zhao et al. 2023, arXiv:2304.11277). Ranks share the rows of a batch.

Each layer's weights are gathered for its forward and backward pass and let go again; embedding, last norm and head stay gathered
between the two. Every rank must make the same number of passes: who has fewer micro-batches makes empty ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from workers.axes.backend.layout import MicroBatch, Row, micro_batches, rows_of
from workers.axes.backend.prepare import Prepared
from workers.axes.backend.ranked import DealingTrainer
from workers.axes.backend.spread import Spread
from workers.axes.backend.together import Together, cut_like, split_of, total
from workers.contract.errors import EnvironmentMissing


class _Pass(torch.nn.Module):
    """The forward pass with its head: fully_shard gathers weights where the forward method of a module begins."""

    def __init__(self, model: torch.nn.Module, run: Callable[[MicroBatch], tuple[Tensor, Tensor]]) -> None:
        super().__init__()
        self.model = model
        self._run = run

    def forward(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        return self._run(micro)


class FullyShardedTrainer(DealingTrainer):
    """Checkpoints and payloads are those of one process."""

    def _lay_out(self) -> Spread:
        body: Any = self._model.base_model
        if not isinstance(getattr(body, "layers", None), torch.nn.ModuleList):
            raise EnvironmentMissing(
                "this architecture has no list of layers to shard by",
                field="backend.kind",
                value="fsdp2",
                cure="use a Llama-like model, or set backend.kind to ddp",
            )
        mesh = init_device_mesh("cpu", (self._seat.count,))
        # Sums of rounded numbers: in float32, whatever the model's type.
        precision = MixedPrecisionPolicy(reduce_dtype=torch.float32)
        self._gathered: Any = _Pass(self._model, super()._pass)
        for module in [*body.layers, self._gathered]:
            sharded: FSDPModule = fully_shard(module, mesh=mesh, mp_policy=precision)
            # The denominators are those of the whole batch: gradients are summed. Gloo has no scaled sum.
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
        self._adapters.lay_out(cut_like)
        splits = {name: split for name, part in self._adapters.parts().items() if (split := split_of(part)) is not None}
        bucket = int(self._config.transport.bucket_mb * 1e6)
        return Together(self._seat, self._leader, self._adapters.masters, splits, parts=self._adapters.parts, bucket_bytes=bucket)

    def _pass(self, micro: MicroBatch) -> tuple[Tensor, Tensor]:
        found: tuple[Tensor, Tensor] = self._gathered(micro)
        return found

    def _deal(self, prepared: Prepared, plan: list[list[int]]) -> None:
        super()._deal(prepared, plan)
        shortest = min((item for group in prepared.groups for item in group), key=lambda item: len(item.prompt) + len(item.tokens))
        self._filler = rows_of([shortest], 1)

    def _micro_batches(self, rows: Sequence[Row], learn: bool = False) -> Iterator[MicroBatch]:
        """In step with the other ranks; a cancel is agreed upon before each micro-batch."""
        rounds = torch.tensor([len(micro_batches(rows, self._config.batch.micro_tokens))])
        dist.all_reduce(rounds, op=dist.ReduceOp.MAX)
        own = self._built(rows)
        for _ in range(int(rounds)):
            if total(torch.tensor([float(self._interrupted.is_set())])).item():
                self._give_up()
            micro = next(own, None)
            if micro is not None:
                yield micro
            else:
                self._idle(learn)

    def _heed(self) -> None:
        """Micro-batches of other models are no one else's concern; those of this one ask together."""

    def checkpoint(self, folder: Path, restore: bool = False) -> dict[str, Any]:
        """See the door."""
        self._gathered.reshard()
        return super().checkpoint(folder, restore)

    def _combine(self, loss: float) -> float:
        # After a pass without a backward pass embedding and head are still gathered, and would stay as they were before the step.
        self._gathered.reshard()
        return self._total(torch.tensor([loss], dtype=torch.float64)).item()  # gradients were summed in each backward pass

    def _idle(self, learn: bool) -> None:
        """A pass that another rank needs and this one has no rows for: a loss of zero."""
        micro = next(self._built(self._filler))
        with torch.set_grad_enabled(learn):
            flat, _ = self._pass(micro)
        if learn:
            (flat.sum() * 0).backward()  # type: ignore[no-untyped-call]
            self._adapters.gather()
