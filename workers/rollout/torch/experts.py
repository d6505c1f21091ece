"""Mixture of experts in the engine: who is chosen, the expert MLPs grouped by expert, and their record for replay.

Arithmetic as in Qwen3-MoE: softmax over all experts in float32, the k likeliest are chosen, and their probabilities weigh the
outputs, renormalised to a sum of one where the model says so (`norm_topk_prob`).
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch.nn import functional

from workers.contract.errors import EngineError
from workers.rollout.torch.adapter import Pair
from workers.rollout.torch.linear import Linear
from workers.rollout.torch.room import Room
from workers.rollout.torch.shape import ExpertShape


@dataclass(slots=True)
class Experts:
    """The MLP of one sparse layer. router (experts, hidden); gate_up, down: one linear an expert."""

    router: torch.Tensor
    gate_up: list[Linear]
    down: list[Linear]
    shape: ExpertShape

    def choose(self, rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Gates, in the rows' type, and expert ids, (n, k) each, the likeliest first."""
        chances = torch.softmax(functional.linear(rows, self.router), dim=-1, dtype=torch.float32)
        gates, ids = chances.topk(self.shape.chosen, dim=-1)
        if self.shape.gates_sum_to_one:
            gates = gates / gates.sum(dim=-1, keepdim=True)
        return gates.to(rows.dtype), ids

    def __call__(
        self,
        rows: torch.Tensor,
        gates: torch.Tensor,
        ids: torch.Tensor,
        pairs: Mapping[str, Pair],
        silu_mul: Callable[[torch.Tensor], torch.Tensor],
    ) -> torch.Tensor:
        """[n, hidden] -> [n, hidden]. Each expert reads its rows once, whatever their number; an expert nobody chose costs nothing."""
        order = ids.reshape(-1).argsort(stable=True)
        tokens = order.div(ids.shape[1], rounding_mode="floor")
        counts = torch.bincount(ids.reshape(-1), minlength=self.shape.count).tolist()
        out = torch.empty(len(order), rows.shape[1], dtype=rows.dtype)
        start = 0
        for expert, count in enumerate(counts):
            if not count:
                continue
            group = slice(start, start + count)
            inner = _adapted(self.gate_up[expert], pairs.get("experts_gate_up"), expert, rows[tokens[group]])
            out[group] = _adapted(self.down[expert], pairs.get("experts_down"), expert, silu_mul(inner))
            start += count
        out *= gates.reshape(-1)[order, None]
        return torch.zeros_like(rows).index_add_(0, tokens, out)


def _adapted(linear: Linear, pair: Pair | None, expert: int, rows: torch.Tensor) -> torch.Tensor:
    out = linear(rows)
    if pair is not None:
        pair.of(expert).add_to(out, rows)
    return out


def read_experts(
    take: Callable[[str], torch.Tensor], maybe: Callable[[str], torch.Tensor | None], mlp: str, shape: ExpertShape, room: Room
) -> Experts:
    """The experts under the name `mlp`, from one tensor an expert and projection, as model files hold them, or from two stacked
    ones, `experts.gate_up_proj` (experts, 2 x intermediate, hidden) and `experts.down_proj`, as transformers 5 holds them."""

    def linears(projection: str, parts: Iterable[Sequence[torch.Tensor]]) -> list[Linear]:
        return [Linear(given, (), room, f"{mlp}.experts.{expert}.{projection}") for expert, given in enumerate(parts)]

    router = room.copy(f"{mlp}.gate", take(f"{mlp}.gate.weight"))
    gate_up = maybe(f"{mlp}.experts.gate_up_proj")
    if gate_up is not None:
        down = take(f"{mlp}.experts.down_proj")
        return Experts(router, linears("gate_up", ((one,) for one in gate_up)), linears("down", ((one,) for one in down)), shape)
    names = [f"{mlp}.experts.{expert}" for expert in range(shape.count)]
    return Experts(
        router,
        linears("gate_up", ((take(f"{name}.gate_proj.weight"), take(f"{name}.up_proj.weight")) for name in names)),
        linears("down", ((take(f"{name}.down_proj.weight"),) for name in names)),
        shape,
    )


class RoutingRecord:
    """The experts of one sample's input tokens, prompt included, each as it was when the token's successor was drawn."""

    def __init__(self, encoded: str | None = None, positions: int = 0) -> None:
        """encoded: the record of a sample taken up again, of so many positions."""
        self._parts: list[torch.Tensor] = []
        self._positions = 0
        if encoded and positions:
            data = torch.frombuffer(bytearray(base64.b64decode(encoded)), dtype=torch.uint8)
            self._parts, self._positions = [data.view(positions, -1)], positions

    @property
    def positions(self) -> int:
        return self._positions

    def add(self, first: int, ids: torch.Tensor) -> None:
        """ids (n, layers, k) of the positions first..first + n. What is recorded stays: a cache computed again under other weights
        changes neither the tokens drawn nor what drew them."""
        if first > self._positions:
            raise EngineError("recorded routing has a hole", field="replay.routing", value=f"{self._positions} to {first}")
        fresh = ids[self._positions - first :]
        if len(fresh):
            self._parts.append(fresh.reshape(len(fresh), -1))
            self._positions += len(fresh)

    def encode(self) -> str:
        """Rollout.routing: base64 of uint8 (positions, layers, k)."""
        return base64.b64encode(torch.cat(self._parts).contiguous().numpy().tobytes()).decode("ascii") if self._parts else ""
