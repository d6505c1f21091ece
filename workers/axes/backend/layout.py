"""The shared-prefix layout: one row holds a prompt once and all completions of its group, [prompt | c1 | c2 | ... | cG].

Position ids restart after the prompt for every completion, and a completion sees the prompt and itself alone, so each
token's log-prob is what it would be in a row of its own, while the prompt is computed once. A completion's first token is
predicted at the prompt's last position, its last token predicts nothing and is left out of the row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from workers.axes.backend.logprobs import Support


@dataclass(frozen=True)
class Item:
    """One completion with loss tokens. rollout: the engine's log-probs; index: its place in the batch's list of items.

    support: by token, the ids it was drawn from, an empty list for the whole vocabulary; routing: expert ids of every input
    token, prompt first, (prompt + tokens - 1, layers x experts a token), uint8. None where nothing is replayed.
    """

    id: str
    index: int
    prompt: Sequence[int]
    tokens: Sequence[int]
    rollout: Sequence[float]
    advantage: float
    support: Sequence[Sequence[int]] | None = None
    routing: Tensor | None = None


@dataclass(frozen=True)
class Row:
    """A prompt and some completions of it."""

    prompt: Sequence[int]
    items: tuple[Item, ...]

    @property
    def length(self) -> int:
        return len(self.prompt) + sum(len(item.tokens) - 1 for item in self.items)


@dataclass(frozen=True)
class MicroBatch:
    """Tensors of some rows. R rows of padded width L, B completions of padded width T, N completion tokens.

    input_ids, position_ids (R, L); attention (R, 1, L, L) bool, True where the query (dim 2) may see the key (dim 3);
    source (N,): position in the flattened (R * L) whose hidden state predicts the token; targets (N,): the token;
    place (N,): the token's position in the flattened (B * T); mask (B, T) bool; rollout, advantages (B, T), (B, 1) float;
    support: of the N tokens; routing (R * L, layers x experts a token) int16, -1 where the model chooses itself.
    """

    items: tuple[Item, ...]
    input_ids: Tensor
    position_ids: Tensor
    attention: Tensor
    source: Tensor
    targets: Tensor
    place: Tensor
    mask: Tensor
    rollout: Tensor
    advantages: Tensor
    support: Support | None = None
    routing: Tensor | None = None

    def spread(self, values: Tensor) -> Tensor:
        """(N,) token values as (B, T), 0 elsewhere; differentiable."""
        flat = torch.zeros(self.mask.numel(), dtype=values.dtype, device=values.device)
        return flat.scatter(0, self.place, values).view(self.mask.shape)


def rows_of(items: Iterable[Item], budget: int) -> list[Row]:
    """Neighbouring items of the same prompt share rows of at most `budget` tokens; a single completion may exceed it."""
    rows: list[Row] = []
    for item in items:
        last = rows[-1] if rows else None
        if last is not None and last.prompt == item.prompt and last.length + len(item.tokens) - 1 <= budget:
            rows[-1] = Row(last.prompt, (*last.items, item))
        else:
            rows.append(Row(item.prompt, (item,)))
    return rows


def micro_batches(rows: Sequence[Row], budget: int) -> list[list[Row]]:
    """Rows of similar length together, padded size (rows x longest) within `budget` tokens, at least one row each."""
    result: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: row.length, reverse=True):  # so the first row of a micro-batch is its longest
        if result and result[-1][0].length * (len(result[-1]) + 1) <= budget:
            result[-1].append(row)
        else:
            result.append([row])
    return result


def build(rows: Sequence[Row], pad_id: int) -> MicroBatch:
    """The tensors of one micro-batch. Called just before its forward pass."""
    items = tuple(item for row in rows for item in row.items)
    width = max(row.length for row in rows)
    longest = max(len(item.tokens) for item in items)
    input_ids = torch.full((len(rows), width), pad_id, dtype=torch.int64)
    position_ids = torch.zeros((len(rows), width), dtype=torch.int64)
    # Segment 0 is the prompt, 1.. the completions, -1 padding, which sees itself alone: a query that sees nothing is NaN.
    segment = torch.full((len(rows), width), -1, dtype=torch.int64)
    source: list[int] = []
    targets: list[int] = []
    place: list[int] = []
    number = 0
    for r, row in enumerate(rows):
        prompt = len(row.prompt)
        input_ids[r, :prompt] = torch.tensor(row.prompt)
        position_ids[r, :prompt] = torch.arange(prompt)
        segment[r, :prompt] = 0
        start = prompt
        for k, item in enumerate(row.items):
            fed = len(item.tokens) - 1
            input_ids[r, start : start + fed] = torch.tensor(item.tokens[:-1], dtype=torch.int64)
            position_ids[r, start : start + fed] = torch.arange(prompt, prompt + fed)
            segment[r, start : start + fed] = k + 1
            source.append(r * width + prompt - 1)
            source.extend(range(r * width + start, r * width + start + fed))
            targets.extend(item.tokens)
            place.extend(range(number * longest, number * longest + len(item.tokens)))
            start += fed
            number += 1
    order = torch.arange(width)
    same = segment[:, :, None] == segment[:, None, :]
    prompt_key = (segment == 0)[:, None, :] & (segment >= 0)[:, :, None]
    attention = (same | prompt_key) & (order[:, None] >= order[None, :])
    rollout = torch.zeros((number, longest), dtype=torch.float64)
    mask = torch.zeros((number, longest), dtype=torch.bool)
    for b, item in enumerate(items):
        rollout[b, : len(item.tokens)] = torch.tensor(item.rollout, dtype=torch.float64)
        mask[b, : len(item.tokens)] = True
    return MicroBatch(
        items=items,
        input_ids=input_ids,
        position_ids=position_ids,
        attention=attention[:, None],
        source=torch.tensor(source),
        targets=torch.tensor(targets),
        place=torch.tensor(place),
        mask=mask,
        rollout=rollout,
        advantages=torch.tensor([[item.advantage] for item in items], dtype=torch.float64),
        support=_support(items),
        routing=_routing(rows, width),
    )


def _support(items: Sequence[Item]) -> Support | None:
    """Of the items' tokens, one after the other. A token that its own record lacks is put in: it was drawn, after all."""
    if all(item.support is None for item in items):
        return None
    rows: list[int] = []
    ids: list[int] = []
    number = 0
    for item in items:
        for position, token in enumerate(item.tokens):
            allowed = item.support[position] if item.support is not None else []
            if allowed:
                unique = {token, *allowed}
                rows.extend([number] * len(unique))
                ids.extend(sorted(unique))
            number += 1
    return Support(torch.tensor(rows), torch.tensor(ids)) if rows else None


def _routing(rows: Sequence[Row], width: int) -> Tensor | None:
    """The experts of each place in the rows. A prompt takes those of its row's first completion."""
    given = [item.routing for row in rows for item in row.items if item.routing is not None]
    if not given:
        return None
    routing = torch.full((len(rows), width, given[0].shape[1]), -1, dtype=torch.int16)
    for r, row in enumerate(rows):
        start = prompt = len(row.prompt)
        for k, item in enumerate(row.items):
            fed = len(item.tokens) - 1
            if item.routing is not None:
                if k == 0:
                    routing[r, :prompt] = item.routing[:prompt]
                routing[r, start : start + fed] = item.routing[prompt:]
            start += fed
    return routing.view(len(rows) * width, -1)
