"""Which prompts come when: the order of an epoch, and the window of pass rates outside which prompts are passed over."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable
from typing import Any

from workers.contract import config
from workers.contract.errors import CheckpointError

UNSEEN = 0.5  # where a prompt without a pass rate stands between easy and hard


class Curriculum:
    """The running pass rate of every prompt seen, and what follows from it. Deterministic in the calls it gets.

    Pass rate of a group: the mean of its rewards, held within 0 and 1. Running pass rate: the first group's own, then
    `memory` x before + (1 - memory) x the newest group's.

    passed_over: visits of prompts outside the window, never dispatched; let_through: prompts outside that were dispatched all
    the same, because the window left nothing.
    """

    def __init__(self, options: config.Curriculum, size: int, seed: int, tell: Callable[[str], None]) -> None:
        self._options = options
        self._size = size
        self._seed = seed
        self._tell = tell
        self.by_rate = options.order in ("easy_first", "hard_first")
        self._narrow = options.window_low > 0 or options.window_high < 1
        self._rates: dict[int, float] = {}  # by question; empty where nothing depends on it
        self._waited: dict[int, int] = {}  # by question: how often it was passed over since it was last let through
        self._open = 0  # prompts for which the window stands open
        self.passed_over = 0
        self.let_through = 0

    @property
    def active(self) -> bool:
        """Whether pass rates matter at all."""
        return self.by_rate or self._narrow

    def observe(self, index: int, rewards: list[float]) -> None:
        """One more group of question `index`; samples that failed are not among `rewards`. No rewards: nothing was seen."""
        if not self.active or not rewards:
            return
        rate = min(1.0, max(0.0, statistics.fmean(rewards)))
        before = self._rates.get(index, rate)
        self._rates[index] = self._options.memory * before + (1 - self._options.memory) * rate

    def order(self, epoch: int) -> list[int]:
        """All questions in the order of an epoch. By pass rate: as known when the epoch begins; equal ones are shuffled."""
        order = list(range(self._size))
        if self._options.order == "sequential":
            return order
        random.Random(f"{self._seed}:{epoch}").shuffle(order)
        if self.by_rate:
            order.sort(key=lambda index: self._rates.get(index, UNSEEN), reverse=self._options.order == "easy_first")
        return order

    def admits(self, index: int) -> bool:
        """Whether question `index`, whose turn it is, is asked. One outside the window is counted as passed over, unless it has
        been passed over `revisit_every` times since its last chance, or the window stands open."""
        rate = self._rates.get(index)
        if not self._narrow or rate is None or self._options.window_low <= rate <= self._options.window_high:
            self._waited.pop(index, None)
            return True
        if self._open:
            self.let_through += 1
        elif self._waited.get(index, 0) < self._options.revisit_every:
            self._waited[index] = self._waited.get(index, 0) + 1
            self.passed_over += 1
            return False
        self._waited.pop(index, None)
        return True

    def asked(self) -> None:
        """Called once a prompt that is dispatched."""
        self._open = max(0, self._open - 1)

    def open(self) -> bool:
        """Called when a whole epoch held no prompt to ask: opens the window for as many prompts as there are questions.

        False where that cannot help: the window passed none of them over, or stands open already.
        """
        if not self._waited or self._open:
            return False
        self._open = self._size
        low, high = self._options.window_low, self._options.window_high
        self._tell(
            f"no prompt's pass rate lies within curriculum.window_low {low:g} and window_high {high:g}:"
            f" the next {self._size} prompts are let through, counted; widen the window to choose among them"
        )
        return True

    def state(self) -> dict[str, Any]:
        """As JSON. Called by checkpoints. Pairs, because JSON's keys are strings."""
        return {
            "rates": sorted(self._rates.items()),
            "waited": sorted(self._waited.items()),
            "open": self._open,
            "passed_over": self.passed_over,
            "let_through": self.let_through,
        }

    def restore(self, state: Any) -> None:
        """Called once, on resume. Raises CheckpointError where `state` is none of this data's."""
        try:
            rates = {index: float(rate) for index, rate in state["rates"]}
            waited = dict(state["waited"])
            counts = [state["open"], state["passed_over"], state["let_through"], *waited.values()]
            known = all(type(index) is int and 0 <= index < self._size for index in (*rates, *waited))
            if not known or not all(0 <= rate <= 1 for rate in rates.values()) or not all(type(n) is int and n >= 0 for n in counts):
                raise ValueError("out of range")
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(
                "the checkpoint's pass rates cannot be read", field="cursor.curriculum", value=str(error), cure="use another checkpoint"
            ) from None
        self._rates, self._waited = rates, waited
        self._open, self.passed_over, self.let_through = counts[:3]
