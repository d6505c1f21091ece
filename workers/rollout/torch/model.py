"""The decoder's arithmetic: a prefill of whole prompts and a decode step of one token a slot. No state but the weights, and the
routing of passes whose caller has not fetched it yet.

Shapes: n slots, H heads, K kv heads, D head dim, L prompt positions. Hidden states are rows [n, hidden].
"""

from __future__ import annotations

import torch
from torch.nn import functional

from workers.rollout.torch.adapter import Adapter, Pair
from workers.rollout.torch.cache import SlotCache
from workers.rollout.torch.kernels import Kernels, rotated
from workers.rollout.torch.shape import Shape, rotary_tables
from workers.rollout.torch.weights import LayerWeights, Weights


class Model:
    """A Llama-family decoder. keep_routing: experts chosen are kept for `take_routing`; without sparse layers there are none."""

    def __init__(self, shape: Shape, weights: Weights, dtype: torch.dtype, kernels: Kernels, keep_routing: bool = False) -> None:
        self.shape = shape
        self.dtype = dtype
        self._weights = weights
        self._kernels = kernels
        self._keep_routing = keep_routing and shape.experts is not None
        self._chosen: list[torch.Tensor] = []  # by sparse layer of the pass under way: (rows, k)
        self._routing: list[torch.Tensor] = []
        self._cosine, self._sine = rotary_tables(shape, min(shape.max_positions, 2048), dtype)

    @property
    def weights(self) -> Weights:
        return self._weights

    def install(self, weights: Weights) -> Weights:
        """Called between two passes: the next one computes with `weights`. Returns those that did so far."""
        before, self._weights = self._weights, weights
        return before

    def prefill(self, sequences: list[list[int]], adapter: Adapter) -> tuple[list[torch.Tensor], torch.Tensor]:
        """Keys and values [layer, 2, K, L_i, D] of each sequence and the hidden state of its last token, [n, hidden].

        Sequences are padded on the right: under a causal mask no real position sees the padding.
        """
        lengths = [len(sequence) for sequence in sequences]
        count, longest = len(sequences), max(lengths)
        heads, kv_heads = self.shape.heads, self.shape.kv_heads
        tokens = torch.zeros(count, longest, dtype=torch.int64)
        for row, sequence in enumerate(sequences):
            tokens[row, : len(sequence)] = torch.tensor(sequence)
        positions = torch.arange(longest).repeat(count)
        hidden = self._weights.embedding[tokens.view(-1)]
        cosine, sine = self._rotary(positions)
        kept = torch.empty(self.shape.layers, 2, count, kv_heads, longest, self.shape.head_dim, dtype=self.dtype)
        for number, (layer, pairs) in enumerate(zip(self._weights.layers, adapter.layers, strict=True)):
            qkv = self._project(hidden, layer, pairs)
            turned = rotated(qkv[:, : heads + kv_heads], cosine, sine).view(count, longest, -1, self.shape.head_dim).transpose(1, 2)
            query, kept[number, 0] = turned[:, :heads], turned[:, heads:]
            kept[number, 1] = qkv[:, heads + kv_heads :].view(count, longest, kv_heads, -1).transpose(1, 2)
            keys, values = kept[number]
            seen = functional.scaled_dot_product_attention(query, keys, values, is_causal=True, enable_gqa=heads != kv_heads)
            hidden = self._finish(hidden, seen.transpose(1, 2).reshape(count * longest, -1), layer, pairs)
        last = torch.tensor([row * longest + length - 1 for row, length in enumerate(lengths)])
        prompts = [kept[:, :, row, :, :length].contiguous() for row, length in enumerate(lengths)]
        if self._keep_routing:
            table = self._drain().view(count, longest, *self._routing_size())
            self._routing += [table[row, :length] for row, length in enumerate(lengths)]
        return prompts, self._norm(hidden[last], self._weights.norm)

    def decode(self, tokens: torch.Tensor, positions: torch.Tensor, first: int, cache: SlotCache, adapter: Adapter) -> torch.Tensor:
        """One token in each of the slots `first`..: writes its key and value at `positions`, returns hidden rows."""
        hidden = self._weights.embedding[tokens]
        step = self._kernels.step(first, positions, *self._rotary(positions), cache)
        for number, (layer, pairs) in enumerate(zip(self._weights.layers, adapter.layers, strict=True)):
            qkv = self._project(hidden, layer, pairs)
            hidden = self._finish(hidden, self._kernels.attend(qkv, self.shape.heads, number, step), layer, pairs)
        if self._keep_routing:
            self._routing += torch.split(self._drain(), 1)
        return self._norm(hidden, self._weights.norm)

    def take_routing(self) -> list[torch.Tensor]:
        """Called after passes, where routing is recorded: one tensor (positions, sparse layers, k) of uint8 expert ids for each
        sequence prefilled or slot decoded since the last call, in the order of the passes. Empty where nothing is recorded."""
        taken, self._routing = self._routing, []
        return taken

    def draw(self, logits: torch.Tensor, temperatures: torch.Tensor, numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """See `sampling.Draw`."""
        return self._kernels.draw(logits, temperatures, numbers)

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[n, vocabulary] from rows that `prefill` or `decode` returned."""
        return self._weights.head(hidden)

    def _norm(self, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return self._kernels.rms_norm(hidden, weight, self.shape.norm_eps)

    def _rotary(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin [n, 1, D] at the positions; the tables grow when longer sequences come."""
        while int(positions.max()) >= self._cosine.shape[0]:
            self._cosine, self._sine = rotary_tables(self.shape, 2 * self._cosine.shape[0], self.dtype)
        return self._cosine[positions].unsqueeze(1), self._sine[positions].unsqueeze(1)

    def _project(self, hidden: torch.Tensor, layer: LayerWeights, pairs: dict[str, Pair]) -> torch.Tensor:
        """Queries, keys and values [n, H + 2 K, D], normalised where the model does so, not rotated yet."""
        heads, both = self.shape.heads, self.shape.heads + self.shape.kv_heads
        qkv = layer.qkv(self._norm(hidden, layer.input_norm), pairs.get("qkv"))
        qkv = qkv.view(-1, both + self.shape.kv_heads, self.shape.head_dim)
        if layer.query_norm is not None and layer.key_norm is not None:
            qkv[:, :heads] = self._norm(qkv[:, :heads], layer.query_norm)
            qkv[:, heads:both] = self._norm(qkv[:, heads:both], layer.key_norm)
        return qkv

    def _finish(self, hidden: torch.Tensor, seen: torch.Tensor, layer: LayerWeights, pairs: dict[str, Pair]) -> torch.Tensor:
        """The output projection and the MLP, both added to the residual stream."""
        hidden = layer.output.added_to(hidden, seen, pairs.get("output"))
        if layer.experts is not None:
            rows = self._norm(hidden, layer.mlp_norm)
            gates, ids = layer.experts.choose(rows)
            if self._keep_routing:
                self._chosen.append(ids)
            return hidden + layer.experts(rows, gates, ids, pairs, self._kernels.silu_mul)
        assert layer.gate_up is not None and layer.down is not None
        gate_up = layer.gate_up(self._norm(hidden, layer.mlp_norm), pairs.get("gate_up"))
        return layer.down.added_to(hidden, self._kernels.silu_mul(gate_up), pairs.get("down"))

    def _routing_size(self) -> tuple[int, int]:
        assert self.shape.experts is not None
        return len(self.shape.experts.layers), self.shape.experts.chosen

    def _drain(self) -> torch.Tensor:
        """The ids of the pass just made, (rows, sparse layers, k)."""
        chosen, self._chosen = self._chosen, []
        return torch.stack(chosen, dim=1).to(torch.uint8)
