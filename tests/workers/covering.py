"""Covering arrays: few rows in which every pair of values of two factors occurs, as far as a constraint lets it."""

from __future__ import annotations

import random
from collections.abc import Callable
from itertools import combinations
from typing import Any

Row = dict[str, Any]
Pair = tuple[str, Any, str, Any]
Cell = tuple[str, int]  # a factor and the number of one of its values
TRIES = 60  # rows tried for one pair before it is called impossible


def pairwise(factors: dict[str, list[Any]], valid: Callable[[Row], bool], seed: int = 0) -> tuple[list[Row], list[Pair]]:
    """(rows, pairs that no valid row was found for). Greedy: each row is built around one pair not yet covered."""
    rng = random.Random(seed)
    cells = {name: [(name, number) for number in range(len(values))] for name, values in factors.items()}
    left = {frozenset((a, b)): None for one, two in combinations(cells, 2) for a in cells[one] for b in cells[two]}
    rows, impossible = [], []
    while left:
        pair = next(iter(left))
        for attempt in range(TRIES):
            chosen = _row(pair, cells, left, rng, greedy=attempt < TRIES // 2)
            row = {name: factors[name][number] for name, number in chosen}
            if valid(row):
                rows.append({name: row[name] for name in factors})
                for covered in combinations(chosen, 2):
                    left.pop(frozenset(covered), None)
                break
        else:
            del left[pair]
            (one, first), (two, second) = sorted(pair)
            impossible.append((one, factors[one][first], two, factors[two][second]))
    return rows, impossible


def _row(pair: frozenset[Cell], cells: dict[str, list[Cell]], left: dict[Any, None], rng: random.Random, greedy: bool) -> list[Cell]:
    chosen = sorted(pair)
    names = [name for name in cells if name not in {cell[0] for cell in chosen}]
    rng.shuffle(names)
    for name in names:
        options = rng.sample(cells[name], len(cells[name]))
        chosen.append(max(options, key=lambda cell: sum(frozenset((cell, other)) in left for other in chosen)) if greedy else options[0])
    return chosen
