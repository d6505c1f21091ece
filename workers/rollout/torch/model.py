"""The decoder's arithmetic: a prefill of whole prompts and a decode step of one token a slot. No state but the weights.

Shapes: n slots, H heads, K kv heads, D head dim, L prompt positions. Hidden states are rows [n, hidden].
"""

from __future__ import annotations

import torch
from torch.nn import functional

from workers.rollout.torch.adapter import Adapter, Pair
from workers.rollout.torch.cache import SlotCache
from workers.rollout.torch.linear import Linear
from workers.rollout.torch.shape import Shape, rotary_tables
from workers.rollout.torch.weights import LayerWeights, Weights

_SPAN_STEP = 16  # attention reads positions up to the longest running sample, rounded up


class Model:
    """A Llama-family decoder."""

    def __init__(self, shape: Shape, weights: Weights, dtype: torch.dtype) -> None:
        self.shape = shape
        self.dtype = dtype
        self._weights = weights
        self._cosine, self._sine = rotary_tables(shape, min(shape.max_positions, 2048), dtype)

    def prefill(self, sequences: list[list[int]], adapter: Adapter) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Keys and values [layer, 2, K, L_i, D] of each sequence and the hidden state of its last token, [n, hidden].

        Sequences are padded on the right: under a causal mask no real position sees the padding.
        """
        lengths = [len(sequence) for sequence in sequences]
        count, longest = len(sequences), max(lengths)
        tokens = torch.zeros(count, longest, dtype=torch.int64)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
        positions = torch.arange(longest).repeat(count)
        hidden = self._weights.embedding[tokens.view(-1)]
        cosine, sine = self._rotary(positions)
        kept = torch.empty(self.shape.layers, 2, count, self.shape.kv_heads, longest, self.shape.head_dim, dtype=self.dtype)
        for number, (layer, pairs) in enumerate(zip(self._weights.layers, adapter.layers, strict=True)):
            query, keys_values = self._project(hidden, layer, pairs, cosine, sine)
            kept[number] = keys_values.view(count, longest, 2, self.shape.kv_heads, -1).permute(2, 0, 3, 1, 4)
            query = query.view(count, longest, self.shape.heads, -1).transpose(1, 2)
            grouped = self.shape.heads != self.shape.kv_heads
            seen = functional.scaled_dot_product_attention(query, kept[number, 0], kept[number, 1], is_causal=True, enable_gqa=grouped)
            hidden = self._finish(hidden, seen.transpose(1, 2).reshape(count * longest, -1), layer, pairs)
        last = torch.tensor([row * longest + length - 1 for row, length in enumerate(lengths)])
        prompts = [kept[:, :, row, :, :length].contiguous() for row, length in enumerate(lengths)]
        return prompts, self._norm(hidden[last], self._weights.norm)

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, first: int, cache: SlotCache, adapter: Adapter) -> torch.Tensor:
        """One token in each of the slots `first`..: writes its key and value at `positions`, returns hidden rows."""
        count, shape = tokens.shape[0], self.shape
        span = min(-(-(int(positions.max()) + 1) // _SPAN_STEP) * _SPAN_STEP, cache.positions)
        visible = torch.arange(span) <= positions.view(-1, 1)
        mask = torch.zeros(count, span, dtype=self.dtype).masked_fill_(~visible, float("-inf")).view(count, 1, 1, span)
        rows = cache.rows(first, positions)
        hidden = self._weights.embedding[tokens]
        cosine, sine = self._rotary(positions)
        for number, (layer, pairs) in enumerate(zip(self._weights.layers, adapter.layers, strict=True)):
            query, keys_values = self._project(hidden, layer, pairs, cosine, sine)
            cache.write(number, rows, keys_values)
            keys, values = cache.layers[number][:, first : first + count, :, :span].unbind(0)
            # The query heads of one kv head stand as its query positions: nothing is repeated.
            query = query.view(count, shape.kv_heads, -1, shape.head_dim)
            seen = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
            hidden = self._finish(hidden, seen.reshape(count, -1), layer, pairs)
        return self._norm(hidden, self._weights.norm)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, vocabulary] from rows that `prefill` or `decode` returned."""
        return self._weights.head(hidden)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return functional.rms_norm(hidden, (hidden.shape[-1],), weight, self.shape.norm_eps)

    def _rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin [n, 1, D] at the positions; the tables grow when longer sequences come."""
        while int(positions.max()) >= self._cosine.shape[0]:
            self._cosine, self._sine = rotary_tables(self.shape, 2 * self._cosine.shape[0], self.dtype)
        return self._cosine[positions].unsqueeze(1), self._sine[positions].unsqueeze(1)

    def _project(
        self, hidden: torch.Tensor, layer: LayerWeights, pairs: dict[str, Pair], cosine: torch.Tensor, sine: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Rotated queries [n, H, D], and rotated keys beside values [n x 2 x K, D]."""
        shape = self.shape
        qkv = _linear(layer.qkv, pairs.get("qkv"), self._norm(hidden, layer.input_norm)).view(
            -1, shape.heads + 2 * shape.kv_heads, shape.head_dim
        )
        turned = qkv[:, : shape.heads + shape.kv_heads]
        if layer.query_norm is not None and layer.key_norm is not None:
            turned[:, : shape.heads] = self._norm(turned[:, : shape.heads], layer.query_norm)
            turned[:, shape.heads :] = self._norm(turned[:, shape.heads :], layer.key_norm)
        rotated = torch.addcmul(turned * cosine, turned.roll(shape.head_dim // 2, -1), sine)
        turned[:, shape.heads :] = rotated[:, shape.heads :]
        return rotated[:, : shape.heads], qkv[:, shape.heads :].reshape(-1, shape.head_dim)

    def _finish(self, hidden: torch.Tensor, seen: torch.Tensor, layer: LayerWeights, pairs: dict[str, Pair]) -> torch.Tensor:
        """The output projection and the MLP, both added to the residual stream."""
        hidden = _linear_added(layer.output, pairs.get("output"), hidden, seen)
        gate, up = _linear(layer.gate_up, pairs.get("gate_up"), self._norm(hidden, layer.mlp_norm)).chunk(2, dim=-1)
        return _linear_added(layer.down, pairs.get("down"), hidden, functional.silu(gate).mul_(up))


def _linear(linear: Linear, pair: Pair | None, rows: torch.Tensor) -> torch.Tensor:
    out = linear(rows)
    if pair is not None:
        pair.add_to(out, rows)
    return out


def _linear_added(linear: Linear, pair: Pair | None, residual: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    out = linear.added_to(residual, rows)
    if pair is not None:
        pair.add_to(out, rows)
    return out
