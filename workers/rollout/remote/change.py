"""What an interrupt may do to a server. What it asks for is noted, and done while the server stands still."""

from __future__ import annotations

import time
from dataclasses import dataclass

from workers.rollout.torch.scheduler import Scheduler


@dataclass(slots=True)
class Change:
    """One weight change as the interrupt sees it: an `Interruptible` over the samples that this engine has given to its server.

    held: no waiting request is sent; aborting: running and waiting requests end; retracting: running ones wait again with their tokens.
    """

    scheduler: Scheduler
    held: bool = False
    aborting: bool = False
    retracting: bool = False
    busy: bool = False  # whether a sample ran when the change was announced
    stopped: float | None = None  # when the server was told to stand still
    first_arrival: float | None = None  # when the first request since then came

    @property
    def running(self) -> int:
        return len(self.scheduler.running)

    @property
    def waiting(self) -> int:
        return self.scheduler.waiting

    def hold_admission(self) -> None:
        self.held = True

    def retract(self) -> None:
        self.retracting = True

    def abort(self) -> None:
        self.aborting = True

    def recompute_cache(self) -> None:
        """Nothing to do: no sample is on the server while its weights change."""

    def arrived(self) -> None:
        """Called when a request comes during the change."""
        if self.stopped is not None and self.first_arrival is None:
            self.first_arrival = time.perf_counter()

    def pause(self, ended: float) -> float:
        """Seconds of `UpdateReport.pause_s`: from the stop where samples ran, else from the first request that had to wait."""
        began = self.stopped if self.busy else self.first_arrival
        return 0.0 if began is None else ended - began
