"""What became of completions, in figures: length, reward and difficulty of those trained and of those dropped, by reason.

A policy that drops long samples, or hard ones, trains on a biased choice: these figures show it.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

from workers.records import Group, Sample

BINS = 24  # lengths 1, 2-3, 4-7, ... by powers of two; the last bin takes all that is longer


@dataclass
class Outcome:
    """Running sums over one outcome. A sum has its own count, for not every sample has a reward, nor every group a difficulty."""

    n: int = 0
    known: int = 0  # samples whose completion is known: one that was cancelled in flight has none
    tokens: int = 0
    lengths: list[int] = field(default_factory=lambda: [0] * BINS)
    rewards: int = 0
    reward: float = 0.0
    difficulties: int = 0
    difficulty: float = 0.0

    def add(self, sample: Sample, difficulty: float | None) -> None:
        length = len(sample.rollout.token_ids)
        self.n += 1
        self.known += 1
        self.tokens += length
        self.lengths[min(BINS, max(1, length).bit_length()) - 1] += 1
        if sample.reward is not None:
            self.rewards += 1
            self.reward += sample.reward
        if difficulty is not None:
            self.difficulties += 1
            self.difficulty += difficulty

    def quantile(self, share: float) -> float | None:
        """Length that `share` of the completions do not exceed, as well as powers of two can tell: linear within its bin."""
        if not self.known:
            return None
        below, wanted = 0, share * self.known
        for place, count in enumerate(self.lengths):
            if count and below + count >= wanted:
                return 2.0**place * (1 + (wanted - below) / count)
            below += count
        return 2.0**BINS

    def as_dict(self) -> dict[str, Any]:
        """None where nothing is known: no data is not zero. lengths[i] counts completions of 2^i to 2^(i+1) - 1 tokens."""
        used = max((place for place, count in enumerate(self.lengths) if count), default=-1) + 1
        return {
            "n": self.n,
            "tokens_mean": self.tokens / self.known if self.known else None,
            "tokens_p50": self.quantile(0.5),
            "tokens_p95": self.quantile(0.95),
            "reward_mean": self.reward / self.rewards if self.rewards else None,
            "difficulty_mean": self.difficulty / self.difficulties if self.difficulties else None,
            "lengths": self.lengths[:used],
        }


class Told:
    """By outcome: "trained", or why it was dropped. Absolute figures since the run began, restored on resume."""

    def __init__(self) -> None:
        self.outcomes: dict[str, Outcome] = {}

    def add(self, outcome: str, group: Group, samples: list[Sample]) -> None:
        """Called when samples of a group are trained or dropped. The group's difficulty is 1 - mean reward over all that it holds."""
        rewards = [
            sample.reward for sample in {id(sample): sample for sample in (*group.samples, *samples)}.values() if sample.reward is not None
        ]
        difficulty = 1.0 - statistics.fmean(rewards) if rewards else None
        kept = self.outcomes.setdefault(outcome, Outcome())
        for sample in samples:
            kept.add(sample, difficulty)

    def count(self, outcome: str, samples: int) -> None:
        """Called with samples that were dropped before they were complete."""
        self.outcomes.setdefault(outcome, Outcome()).n += samples

    def as_dict(self) -> dict[str, dict[str, Any]]:
        return {outcome: self.outcomes[outcome].as_dict() for outcome in sorted(self.outcomes)}

    def saved(self) -> dict[str, dict[str, Any]]:
        """For a checkpoint; `restore` is its inverse."""
        return {outcome: dict(vars(kept)) for outcome, kept in self.outcomes.items()}

    def restore(self, saved: dict[str, dict[str, Any]]) -> None:
        self.outcomes = {outcome: Outcome(**{**values, "lengths": list(values["lengths"])}) for outcome, values in saved.items()}
