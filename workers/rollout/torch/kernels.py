"""What stands around the matrix products: norms, attention of a decode step, the gated activation, drawing tokens. Plain torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch.nn import functional

from workers.rollout.torch.cache import SlotCache
from workers.rollout.torch.sampling import draw_plainly

_SPAN_STEP = 16  # attention reads positions up to the longest running sample, rounded up


@dataclass(frozen=True, slots=True)
class Step:
    """One decode step of the slots first..first + n: what every layer's attention needs. cosine, sine [n, 1, D]."""

    first: int
    positions: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor
    cache: SlotCache
    rows: torch.Tensor | None = None  # plain kernels only
    mask: torch.Tensor | None = None


class Kernels(Protocol):
    """The four operations, and what a decode step prepares once for all layers."""

    def step(self, first: int, positions: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, cache: SlotCache) -> Step: ...

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor: ...

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor: ...

    def attend(self, qkv: torch.Tensor, heads: int, layer: int, step: Step) -> torch.Tensor:
        """qkv [n, heads + 2 kv heads, D], not rotated yet -> [n, heads x D]; keys and values go into the cache."""
        ...

    def draw(self, logits: torch.Tensor, temperatures: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `sampling.Draw`."""
        ...


def rotated(rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    """Rotary embedding of [n, heads, D] with cos and signed sin [n, 1, D]."""
    return torch.addcmul(rows * cosine, rows.roll(rows.shape[-1] // 2, -1), sine)


class PlainKernels:
    """Torch's own operators: any number format, and the reference for the others."""

    def step(self, first: int, positions: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor, cache: SlotCache) -> Step:
        span = min(-(-(int(positions.max()) + 1) // _SPAN_STEP) * _SPAN_STEP, cache.positions)
        hidden = torch.arange(span) > positions.view(-1, 1)
        mask = torch.zeros(hidden.shape, dtype=cosine.dtype).masked_fill_(hidden, float("-inf")).view(-1, 1, 1, span)
        return Step(first, positions, cosine, sine, cache, cache.rows(first, positions), mask)

    def rms_norm(self, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        return functional.rms_norm(rows, (rows.shape[-1],), weight, eps)

    def silu_mul(self, gate_up: torch.Tensor) -> torch.Tensor:
        gate, up = gate_up.chunk(2, dim=-1)
        return functional.silu(gate).mul_(up)

    def attend(self, qkv: torch.Tensor, heads: int, layer: int, step: Step) -> torch.Tensor:
        count, rows, dim = qkv.shape
        kv_heads = (rows - heads) // 2
        turned = rotated(qkv[:, : heads + kv_heads], step.cosine, step.sine)
        keys_values = torch.cat((turned[:, heads:], qkv[:, heads + kv_heads :]), dim=1)
        assert step.rows is not None and step.mask is not None
        step.cache.write(layer, step.rows, keys_values.view(-1, dim))
        keys, values = step.cache.layers[layer][:, step.first : step.first + count, :, : step.mask.shape[-1]].unbind(0)
        # The query heads of one kv head stand as its query positions: nothing is repeated.
        query = turned[:, :heads].reshape(count, kv_heads, -1, dim)
        return functional.scaled_dot_product_attention(query, keys, values, attn_mask=step.mask).reshape(count, -1)

    def draw(self, logits: torch.Tensor, temperatures: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return draw_plainly(logits, temperatures, numbers)
