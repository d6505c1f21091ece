"""Statistics of a race: intervals over seeds, comparisons of two contenders, and who won. Pure; numbers in, judgement out.

Two contenders that ran the same seeds saw the same prompts in the same order, so they are compared seed by seed (paired t test);
otherwise by Welch's t test. Over all pairs of one figure the p-values are Holm's. One seed has no spread and gives no verdict.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Literal

LEVEL = 0.95
ALPHA = 1 - LEVEL
_TINY = 1e-300
_ALIKE = 1e-12  # differences whose spread is below this share of their size have no spread that could be judged by

Method = Literal["paired", "welch", "none"]


@dataclass(frozen=True)
class Interval:
    """A mean over seeds; lo and hi are the t interval, empty with fewer than two values."""

    mean: float
    lo: float | None
    hi: float | None
    n: int

    @property
    def half(self) -> float | None:
        return None if self.hi is None else self.hi - self.mean


@dataclass(frozen=True)
class Comparison:
    """`first` minus `second`. p: two-sided, before Holm; p_holm: after it. None: cannot be judged, `why` says why."""

    first: str
    second: str
    difference: float
    lo: float | None
    hi: float | None
    p: float | None
    p_holm: float | None
    method: Method
    n: int
    why: str = ""

    @property
    def significant(self) -> bool:
        return self.p_holm is not None and self.p_holm < ALPHA


@dataclass(frozen=True)
class Ranking:
    """Contenders from best to worst of one figure. winner empty: no clear winner, and `words` says between whom."""

    order: list[str]
    winner: str | None
    tied: list[str]
    comparisons: list[Comparison]
    words: str


def interval(values: Sequence[float], level: float = LEVEL) -> Interval | None:
    """The mean of the values with its t interval. None for no value at all."""
    n = len(values)
    if n == 0:
        return None
    mean = math.fsum(values) / n
    if n == 1:
        return Interval(mean, None, None, 1)
    half = t_quantile(0.5 + level / 2, n - 1) * _deviation(values, mean) / math.sqrt(n)
    return Interval(mean, mean - half, mean + half, n)


def compare(first: str, second: str, left: Mapping[int, float], right: Mapping[int, float]) -> Comparison:
    """Two contenders by their values per seed. Paired over their common seeds if there are two or more, else Welch."""
    common = sorted(left.keys() & right.keys())
    if len(common) >= 2:
        return _paired(first, second, [left[seed] - right[seed] for seed in common])
    if len(left) >= 2 and len(right) >= 2:
        return _welch(first, second, list(left.values()), list(right.values()))
    difference = _mean(list(left.values())) - _mean(list(right.values()))
    n = min(len(left), len(right))
    return Comparison(first, second, difference, None, None, None, None, "none", n, "fewer than two seeds")


def rank(values: Mapping[str, Mapping[int, float]], *, higher_is_better: bool = True) -> Ranking | None:
    """All contenders of one figure: {label: {seed: value}}. Those without a value are left out; None if nobody has one."""
    there = {label: seeds for label, seeds in values.items() if seeds}
    if not there:
        return None
    sign = -1.0 if higher_is_better else 1.0
    order = sorted(there, key=lambda label: (sign * _mean(list(there[label].values())), label))
    comparisons = holm([compare(a, b, there[a], there[b]) for a, b in combinations(order, 2)])
    best = order[0]
    # Where seeds are missing, the mean over all of them and the difference over the common ones may point apart: then nobody has won.
    tied = [item.second for item in comparisons if item.first == best and not (item.significant and -sign * item.difference > 0)]
    if len(order) == 1:
        return Ranking(order, None, [], comparisons, f"Only {best} has a result there.")
    if tied:
        return Ranking(order, None, tied, comparisons, _no_winner(best, tied, comparisons))
    beaten = "the other" if len(order) == 2 else f"all {len(order) - 1} others"
    return Ranking(order, best, [], comparisons, f"{best} is ahead of {beaten}.")


def holm(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """The same comparisons with p-values that hold for all of them together (Holm's step-down)."""
    judged = sorted((item for item in comparisons if item.p is not None), key=lambda item: item.p or 0.0)
    corrected: dict[tuple[str, str], float] = {}
    highest = 0.0
    for position, item in enumerate(judged):
        highest = max(highest, min(1.0, (len(judged) - position) * (item.p or 0.0)))
        corrected[item.first, item.second] = highest
    return [_with_holm(item, corrected.get((item.first, item.second))) for item in comparisons]


@lru_cache(maxsize=512)
def t_quantile(probability: float, freedom: float) -> float:
    """The value that Student's t with so many degrees of freedom stays below with this probability (0.5 <= probability < 1)."""
    if not 0.5 <= probability < 1 or freedom <= 0:
        raise ValueError(f"t_quantile({probability}, {freedom}) -> probability in 0.5..1, freedom above 0")
    low, high = 0.0, 1.0
    while t_below(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if t_below(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def t_below(value: float, freedom: float) -> float:
    """Student's t: the probability of a value below this one."""
    tail = 0.5 * _incomplete_beta(freedom / 2, 0.5, freedom / (freedom + value * value))
    return 1 - tail if value > 0 else tail


def _paired(first: str, second: str, differences: list[float]) -> Comparison:
    n, mean = len(differences), _mean(differences)
    error = _deviation(differences, mean) / math.sqrt(n)
    return _judged(first, second, mean, error, n - 1, "paired", n, max(map(abs, differences)))


def _welch(first: str, second: str, left: list[float], right: list[float]) -> Comparison:
    mean_left, mean_right = _mean(left), _mean(right)
    parts = [_deviation(left, mean_left) ** 2 / len(left), _deviation(right, mean_right) ** 2 / len(right)]
    below = sum(part**2 / (len(values) - 1) for part, values in zip(parts, (left, right), strict=True))
    freedom = sum(parts) ** 2 / below if below > 0 else 1.0
    size = max(map(abs, [*left, *right]))
    return _judged(first, second, mean_left - mean_right, math.sqrt(sum(parts)), freedom, "welch", min(len(left), len(right)), size)


def _judged(first: str, second: str, difference: float, error: float, freedom: float, method: Method, n: int, size: float) -> Comparison:
    if error <= _ALIKE * max(size, _TINY):
        if abs(difference) <= _ALIKE * max(size, _TINY):
            return Comparison(first, second, 0.0, 0.0, 0.0, 1.0, None, method, n)
        why = "every seed differs by the same amount: there is no spread to judge by"
        return Comparison(first, second, difference, None, None, None, None, method, n, why)
    p = min(1.0, 2 * (1 - t_below(abs(difference) / error, freedom)))
    half = t_quantile(0.5 + LEVEL / 2, freedom) * error
    return Comparison(first, second, difference, difference - half, difference + half, p, None, method, n)


def _with_holm(item: Comparison, p_holm: float | None) -> Comparison:
    return Comparison(item.first, item.second, item.difference, item.lo, item.hi, item.p, p_holm, item.method, item.n, item.why)


def _no_winner(best: str, tied: list[str], comparisons: Sequence[Comparison]) -> str:
    others = ", ".join(tied[:-1]) + (" and " if len(tied) > 1 else "") + tied[-1]
    of_best = [item for item in comparisons if item.first == best and item.second in tied]
    if all(item.method == "none" for item in of_best):
        return f"No clear winner: with fewer than two seeds, {best} cannot be told from {others}."
    return f"No clear winner: {best} cannot be told from {others}."


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _deviation(values: Sequence[float], mean: float) -> float:
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (len(values) - 1))


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function by its continued fraction (Numerical Recipes 6.4, modified Lentz), accurate to 1e-12."""
    if x <= 0 or x >= 1:
        return 0.0 if x <= 0 else 1.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    if x > (a + 1) / (a + b + 2):
        return 1 - front * _fraction(b, a, 1 - x) / b
    return front * _fraction(a, b, x) / a


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _away(1 - (a + b) * x / (a + 1))
    result = d
    for m in range(1, 500):
        for top in (m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)), -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))):
            d = 1 / _away(1 + top * d)
            c = _away(1 + top / c)
            change = c * d
            result *= change
        if abs(change - 1) < 1e-15:
            break
    return result


def _away(value: float) -> float:
    """Kept off zero, where the fraction would break down."""
    return value if abs(value) > _TINY else _TINY
