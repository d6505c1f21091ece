"""What is asked of a running attempt beyond its config, and how much of its budget is left. The config itself never changes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from workers.contract.events import Control

if TYPE_CHECKING:
    from workers.parts import Parts


@dataclass
class Steering:
    """The server's wishes. Written by `ask` on the flow's loop, read by the flow between steps and while it waits.

    steps, wall_s: the budget as it was extended or shortened; None: as the config says.
    """

    pause: bool = False
    stop_after_step: bool = False
    steps: int | None = None
    wall_s: float | None = None
    heard: asyncio.Event = field(default_factory=asyncio.Event)  # set once the server has said anything
    changed: asyncio.Event = field(default_factory=asyncio.Event)  # set with every change; cleared by who waits for it
    _saves_wished: int = 0
    _saves_granted: int = 0

    def ask(self, control: Control) -> None:
        """Called with the wishes of every reply; the same ones again change nothing. A stop that was asked for stays asked for."""
        before = (self.pause, self.stop_after_step, self.steps, self.wall_s, self._saves_wished)
        self.pause = control.pause
        self.stop_after_step = self.stop_after_step or control.stop_after_step
        self.steps, self.wall_s = control.steps, control.wall_s
        self._saves_wished = max(self._saves_wished, control.checkpoint_now)
        self.heard.set()
        if before != (self.pause, self.stop_after_step, self.steps, self.wall_s, self._saves_wished):
            self.changed.set()

    def take_save(self) -> bool:
        """ "Checkpoint now" was pressed since this was last asked."""
        wished, granted = self._saves_wished, self._saves_granted
        self._saves_granted = wished
        return wished > granted


def steps_total(parts: Parts) -> int:
    """The steps the run ends at; never fewer than are done."""
    asked = parts.steering.steps
    return max(asked if asked is not None else parts.config.budget.steps, parts.progress.step)


def spent(parts: Parts) -> bool:
    """Whether steps, samples or tokens of the budget are used up. Asked between steps: the step that reaches a bound is the last."""
    budget = parts.config.budget
    return (
        parts.progress.step >= steps_total(parts)
        or (budget.samples is not None and parts.samples.trained >= budget.samples)
        or (budget.tokens is not None and parts.progress.tokens_trained >= budget.tokens)
    )


def groups_left(parts: Parts) -> int:
    """How many more groups the budget has use for, in whole batches: what is under way beyond them would be thrown away."""
    batch, budget = parts.config.batch, parts.config.budget
    steps = steps_total(parts) - parts.progress.step
    if budget.samples is not None:
        steps = min(steps, -(-max(0, budget.samples - parts.samples.trained) // (batch.prompts * batch.group_size)))
    return steps * batch.prompts
