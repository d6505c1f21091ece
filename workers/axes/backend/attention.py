"""Attention of the trainer on a CPU in bfloat16: torch's flash kernel forwards, matrix products backwards.

torch's own backward pass of that kernel takes several times as long as the products that it consists of. With
P = softmax(Q K^T * scale + mask) and G the gradient of the output:
    dV = P^T G;    dS = P * (G V^T - rowsum(P * G V^T));    dQ = dS K * scale;    dK = dS^T Q * scale.
P is made again, row by row of the micro-batch, so memory grows with a row's length and not with layers times its square.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

NAME = "headrace"
MOST = 16 * 1024 * 1024  # scores of one row, heads x length x length: beyond, torch's own backward pass, which needs none of them


class _Attention(torch.autograd.Function):
    """query (R, H, L, D), key and value (R, K, L, D), K a divisor of H; mask (R, 1, L, L) added to the scores."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, mask)
        return scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale, enable_gqa=True)

    @staticmethod
    def backward(ctx: Any, *upstream: Any) -> Any:
        query, key, value, mask = ctx.saved_tensors
        down = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        rows, heads, length, width = query.shape
        groups = key.shape[1]
        for row in range(rows):  # one at a time: its scores stay in the processor's cache
            q, g = (part[row].reshape(groups, -1, width) for part in (query, upstream[0]))
            k, v = key[row], value[row]
            scores = torch.bmm(q, k.transpose(1, 2)).view(heads, length, length).mul_(ctx.scale).add_(mask[row])
            chances = scores.softmax(-1).view(groups, -1, length)
            slope = torch._softmax_backward_data(torch.bmm(g, v.transpose(1, 2)), chances, -1, query.dtype).mul_(ctx.scale)
            down[0][row] = torch.bmm(slope, k).view(heads, length, width)
            down[1][row] = torch.bmm(slope.transpose(1, 2), q)
            down[2][row] = torch.bmm(chances.transpose(1, 2), g)
        return *down, None, None


def attend(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, scaling: float | None = None, **others: Any
) -> tuple[Tensor, None]:
    """As transformers calls it; returns (R, L, H, D). Whatever does not fit `_Attention` goes to torch's own."""
    rows, heads, length, width = query.shape
    fits = (
        attention_mask is not None
        and attention_mask.dtype == torch.bool
        and attention_mask.shape == (rows, 1, length, length)
        and query.dtype == torch.bfloat16
        and query.device.type == "cpu"
        and key.shape[2] == length
        and heads * length * length <= MOST
        and torch.is_grad_enabled()
        and query.requires_grad
        and not others.get("dropout")
    )
    if not fits or attention_mask is None:
        plain: tuple[torch.Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
        return plain
    added = torch.zeros(attention_mask.shape, dtype=query.dtype).masked_fill_(~attention_mask, float("-inf"))
    scale = width**-0.5 if scaling is None else scaling
    out: Tensor = _Attention.apply(query, key, value, added, scale)  # type: ignore[no-untyped-call]
    return out.transpose(1, 2).contiguous(), None


def install() -> str:
    """Called before a model is made: the name to load it with."""
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)
    return NAME
