"""What an interrupt may do to a server: done while the server stands still."""

from __future__ import annotations

from dataclasses import dataclass

from workers.rollout.fronted import FrontedChange


@dataclass(slots=True)
class Change(FrontedChange):
    """retracting: running samples wait again with their tokens; stopped: when the server was told to stand still."""

    retracting: bool = False
    stopped: float | None = None

    def retract(self) -> None:
        self.retracting = True

    def recompute_cache(self) -> None:
        """Nothing to do: no sample is on the server while its weights change."""

    def arrived(self) -> None:
        if self.stopped is not None:
            FrontedChange.arrived(self)

    def pause(self, ended: float) -> float:
        """Seconds of `UpdateReport.pause_s`: from the stop where samples ran, else from the first request that had to wait."""
        began = self.stopped if self.busy else self.first_arrival
        return 0.0 if began is None else ended - began
