"""One weight change, from its announcement to the flip: what the decode thread and the caller of `update` share."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto

from workers.rollout.torch.adapter import Adapter
from workers.rollout.torch.weights import Weights


class Phase(Enum):
    """announced: the interrupt has not made room yet; cleared: it has, the weights are on their way; staged: they wait for the flip."""

    ANNOUNCED = auto()
    CLEARED = auto()
    STAGED = auto()


@dataclass(frozen=True, slots=True)
class Served:
    """What a version serves with. weights None: those that serve already stay, as where only an adapter travels."""

    adapter: Adapter
    weights: Weights | None = None


@dataclass(slots=True, eq=False)
class Update:
    """cleared(None): the weights may be fetched. over((apply_s, pause_s)) or over(error): the update has ended.

    Both are called by the decode thread; `first_arrival` and `phase` change under the loop's lock.
    """

    cleared: Callable[[None], None]
    over: Callable[[tuple[float, float] | BaseException], None]
    announced_at: float = field(default_factory=time.perf_counter)
    phase: Phase = Phase.ANNOUNCED
    served: Served | None = None
    staged_at: float = 0.0
    busy: bool = False  # whether a sample ran since the announcement
    stood_still: bool = False  # whether decoding had to wait for the weights, and not only for the flip
    first_arrival: float | None = None  # when the first request since the announcement came
    replaced: Served | None = None  # what served before the flip: nothing computes with it any more

    def pause(self, flip_began: float, flip_ended: float, last_pass: float, running: bool) -> float:
        """Seconds by which this update widened the gap between two forward passes: `UpdateReport.pause_s`.

        Where decoding went on until the flip, that is the flip itself, if samples ran through it. Where it stood still, it is the
        time from the end of the last forward pass, but not from before the announcement, to the end of the flip. On an engine that
        had nothing to do, from the arrival of the first request that had to wait; 0 if none came.
        """
        if not self.stood_still:
            return flip_ended - flip_began if running else 0.0
        if self.busy:
            return flip_ended - max(last_pass, self.announced_at)
        return 0.0 if self.first_arrival is None else flip_ended - self.first_arrival
