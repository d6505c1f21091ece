"""What the emulated engine is made of: declared costs, requests under way, new weights on their way, and a bell."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import ClassVar

from workers.records import FinishReason, Manifest, Rollout, SampleRequest, UpdateReport


@dataclass(frozen=True)
class EngineCost:
    """Declared seconds. A decode step takes `step_s` + `sample_s` for each running sample, a prefill `prefill_s` a token.

    grain: how many tokens one simulated token stands for; step and prefill are seconds of real ones.
    """

    step_s: float = 0.05
    sample_s: float = 0.0
    prefill_s: float = 0.0
    apply_s: float = 0.0  # making new weights the ones that serve
    grain: int = 1

    reads_cache: ClassVar[bool] = False  # whether a decode step's seconds hang on what is held

    def step(self, running: int, held: float) -> float:
        """Seconds of one decode step. `held`: positions whose keys and values are read in it, all running samples together; 0 where
        `reads_cache` is false."""
        return self.step_s + self.sample_s * running


@dataclass(eq=False, slots=True)
class Sequence:
    """A request under way. done: tokens drawn of `length`, which ends it as `finish`; spans: (version, tokens drawn under it) in order,
    without those under `version`, which began at `since`.

    Where a token stands for many, weights may be swapped within one: then `done` is no whole number.
    """

    request: SampleRequest
    answer: asyncio.Future[Rollout]
    length: int
    finish: FinishReason
    done: float = 0
    spans: list[tuple[int, float]] = field(default_factory=list)
    version: int = 0
    since: float = 0
    admitted: float | None = None
    cached: bool = False  # its keys and values are still there: no prefill
    prompt: int = 0  # tokens

    @property
    def over(self) -> bool:
        return self.done > self.length - 1e-9

    def turn(self, version: int) -> None:
        """Called before tokens are drawn under another version."""
        if self.done > self.since:
            self.spans.append((self.version, self.done - self.since))
        self.version, self.since = version, self.done

    def versions(self) -> list[int]:
        """One for each whole token drawn."""
        if not self.spans:
            return [self.version] * round(self.done)
        listed: list[int] = []
        drawn = 0.0
        for version, tokens in (*self.spans, (self.version, self.done - self.since)):
            drawn += tokens
            listed += [version] * (round(drawn) - len(listed))
        return listed


@dataclass(eq=False, slots=True)
class News:
    """New weights on their way. accepted: the interrupt let them be fetched; stood: since when decoding stands still for them."""

    manifest: Manifest
    flipped: asyncio.Future[UpdateReport]
    accepted: bool = False
    fetched: bool = False
    busy: bool = False
    stood: float = 0.0
    transfer_s: float = 0.0


class Bell:
    """Wakes the engine's task before its timer. A ring that nobody waits for is kept."""

    def __init__(self) -> None:
        self._rung = False
        self._waiting: asyncio.Future[bool] | None = None

    def ring(self) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(True)
        else:
            self._rung = True

    async def wait(self, seconds: float | None = None) -> bool:
        """Whether it rang before `seconds` were over."""
        if self._rung:
            self._rung = False
            return True
        loop = asyncio.get_running_loop()
        self._waiting = loop.create_future()
        timer = None if seconds is None else loop.call_later(seconds, _over, self._waiting)
        try:
            return await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()


def _over(waiting: asyncio.Future[bool]) -> None:
    if not waiting.done():
        waiting.set_result(False)
