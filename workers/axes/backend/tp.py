"""tp: each layer's matrices are split over the ranks (Megatron-LM, Shoeybi et al. 2019, arXiv:1909.08053), by PyTorch's
parallelize_module. Every rank sees every row and computes its share of the heads and of the feed-forward width.

q, k, v, gate and up are cut by their outputs, o and down by their inputs; what lies before and after is on every rank: embedding,
norms, head. Of an adapter pair (B A) the half that touches the cut side is cut with it: B of a matrix cut by outputs, A of one cut
by inputs. The other half is on every rank and gets the whole gradient there, for activations are summed where a cut begins or ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

from workers.axes.backend.ranked import RankedTrainer
from workers.axes.backend.spread import Spread
from workers.axes.backend.together import Together, cut_like, split_of
from workers.axes.lora.adapter_only import ADAPTER
from workers.contract.errors import Cancelled, EnvironmentMissing

BY_OUTPUT = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")
BY_INPUT = ("o_proj", "down_proj")


class TensorParallelTrainer(RankedTrainer):
    """Checkpoints and payloads are those of one process."""

    def _lay_out(self) -> Spread:
        check_shares(self._model, self._seat.count)
        mesh = init_device_mesh("cpu", (self._seat.count,))
        parallelize_module(self._model, mesh, dict(_plan(self._model)))
        self._adapters.lay_out(cut_like)
        splits = {name: split for name, part in self._adapters.parts().items() if (split := split_of(part)) is not None}
        bucket = int(self._config.transport.bucket_mb * 1e6)
        return Together(self._seat, self._leader, self._adapters.masters, splits, parts=self._adapters.parts, bucket_bytes=bucket)

    def _heed(self) -> None:
        """All stop before the same micro-batch: the one at which rank 0 has heard of it."""
        stop = torch.tensor([float(self._interrupted.is_set())])
        dist.broadcast(stop, src=0)
        if stop.item():
            self._interrupted.set()
            self._stepper.clear()
            raise Cancelled("training was interrupted between two micro-batches")


def _plan(model: torch.nn.Module) -> Iterator[tuple[str, ParallelStyle]]:
    """By module name: how it is cut."""
    for name, module in model.named_modules():
        kind = name.rpartition(".")[2]
        if kind not in (*BY_OUTPUT, *BY_INPUT):
            continue
        outputs = kind in BY_OUTPUT
        style = ColwiseParallel if outputs else RowwiseParallel
        if not hasattr(module, "base_layer"):
            yield name, style()
            continue
        yield f"{name}.base_layer", style()
        yield f"{name}.lora_{'B' if outputs else 'A'}.{ADAPTER}", style()


def check_shares(model: Any, ranks: int) -> None:
    """Raises EnvironmentMissing where the model cannot be cut into so many equal parts without changing what it computes."""
    config = model.config
    for what in ("num_attention_heads", "num_key_value_heads", "intermediate_size"):
        value = getattr(config, what, None)
        if value is None or value % ranks:
            raise EnvironmentMissing(
                f"the model's {what} of {value} cannot be shared by {ranks} ranks",
                field="backend.ranks",
                value=ranks,
                cure=f"choose a number of ranks that divides {value}, or set backend.kind to ddp",
            )
    known = {*BY_OUTPUT, *BY_INPUT}
    for name, module in model.named_modules():
        inner = name.split(".")
        inside = next((k for k, part in enumerate(inner) if part in ("self_attn", "mlp")), None)
        if inside is None or not any(True for _ in module.parameters(recurse=False)):
            continue
        if len(inner) < inside + 2 or inner[inside + 1] not in known:
            raise EnvironmentMissing(
                "tensor parallelism knows Llama-like layers, and this one has another part",
                field="backend.kind",
                value=name,
                cure="use a Llama-like model, or set backend.kind to fsdp2",
            )
