"""What an interrupt may do to vLLM. What it asks for is noted, and done by the update at the right moment of vLLM's own pause."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from workers.rollout.torch.scheduler import Scheduler


@dataclass(slots=True)
class Change:
    """One weight change as the interrupt sees it: an `Interruptible` over the samples that this engine has given to vLLM.

    held: no waiting request is given to vLLM; aborting: running and waiting requests end; recompute: running ones are prefilled again.
    """

    scheduler: Scheduler
    announced_at: float = field(default_factory=time.perf_counter)
    held: bool = False
    aborting: bool = False
    recompute: bool = False
    busy: bool = False  # whether a sample ran since the announcement
    first_arrival: float | None = None  # when the first request since the announcement came

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return self.scheduler.waiting

    def hold_admission(self) -> None:
        self.held = True

    def retract(self) -> None:
        """vLLM preempts what runs to the head of its own queue: slots and cache are given up, tokens stay."""
        self.recompute = True

    def abort(self) -> None:
        self.aborting = True

    def recompute_cache(self) -> None:
        self.recompute = True

    def pause(self, stopped: bool, still_since: float, ended: float) -> float:
        """Seconds of `UpdateReport.pause_s`. stopped: whether decoding stood still for the weights, and not only while they were
        loaded; still_since: when vLLM's last step ended."""
        if not stopped:
            return ended - still_since if self.busy else 0.0
        if self.busy:
            return ended - max(still_since, self.announced_at)
        return 0.0 if self.first_arrival is None else ended - self.first_arrival
