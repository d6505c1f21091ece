"""What an interrupt may do to vLLM: done by the update at the right moment of vLLM's own pause."""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from workers.rollout.fronted import FrontedChange


@dataclass(slots=True)
class Change(FrontedChange):
    """recompute: running samples are prefilled again."""

    announced_at: float = field(default_factory=time.perf_counter)
    recompute: bool = False

    def retract(self) -> None:
        """vLLM preempts what runs to the head of its own queue: slots and cache are given up, tokens stay."""
        self.recompute = True

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
