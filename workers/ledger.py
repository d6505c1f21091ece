"""Two ledgers that always close. Samples: dispatched = trained + buffered + in flight + dropped + lost.
Time: every second of every lane goes to exactly one cause."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from workers.clock import Clock
from workers.contract.errors import EngineError
from workers.spans import Spans

# Highest first: at each instant a lane's second goes to the highest running cause (engine rules: "Ledgers").
CAUSES = (
    "down",
    "startup",
    "paused",
    "checkpoint",
    "sync_pause",
    "evaluation",
    "straggler_tail",
    "generate",
    "train",
    "score",
    "wait_buffer_empty",
    "wait_buffer_full",
    "wait_depth_bound",
    "wait_sync",
    "environment",
    "idle",
)
_RANK = {cause: rank for rank, cause in enumerate(CAUSES)}


class SampleLedger:
    """Counts completion slots, each once: resubmission keeps a slot's id and does not count again."""

    def __init__(self) -> None:
        self.dispatched = 0
        self.trained = 0
        self.buffered = 0
        self.in_flight = 0
        self.dropped: Counter[str] = Counter()
        self.lost: Counter[str] = Counter()
        # What the policies did on the way, beside the account: it is no place where a sample could be.
        self.effects: Counter[str] = Counter()

    def dispatch(self, samples: int) -> None:
        self.dispatched += samples
        self.in_flight += samples

    def buffer(self, samples: int) -> None:
        self.in_flight -= samples
        self.buffered += samples

    def train(self, samples: int) -> None:
        self.buffered -= samples
        self.trained += samples

    def recycle(self, samples: int) -> None:
        """Back from the buffer to generation, under the same ids."""
        self.buffered -= samples
        self.in_flight += samples

    def drop(self, samples: int, reason: str, *, buffered: bool) -> None:
        """Leaves the flow unused, counted by reason; `buffered` tells whether it had entered the buffer."""
        if buffered:
            self.buffered -= samples
        else:
            self.in_flight -= samples
        self.dropped[reason] += samples

    def roll_back(self, samples: int) -> None:
        """Trained past the checkpoint that a resume goes on from, and undone with it: work lost, and done again."""
        self.dispatched += samples
        self.lost["rolled_back"] += samples

    def check(self) -> None:
        """Called at every step. Raises EngineError when the account does not close."""
        total = self.trained + self.buffered + self.in_flight + sum(self.dropped.values()) + sum(self.lost.values())
        if total != self.dispatched or min(self.trained, self.buffered, self.in_flight) < 0:
            raise EngineError("the sample ledger does not close", field="sample_ledger", value=self.as_dict())

    def as_dict(self) -> dict[str, Any]:
        return {
            "dispatched": self.dispatched,
            "trained": self.trained,
            "buffered": self.buffered,
            "in_flight": self.in_flight,
            "dropped": dict(sorted(self.dropped.items())),
            "lost": sum(self.lost.values()),
            "lost_by_reason": dict(sorted(self.lost.items())),
            "effects": dict(sorted((name, count) for name, count in self.effects.items() if count)),
        }

    def restore(self, saved: dict[str, Any]) -> None:
        """Continues a checkpoint's account; its in-flight samples are dispatched again under the same ids by the caller."""
        self.dispatched = saved["dispatched"]
        self.trained = saved["trained"]
        self.buffered = saved["buffered"]
        self.in_flight = saved["in_flight"]
        self.dropped = Counter(saved["dropped"])
        self.lost = Counter(saved["lost_by_reason"])
        self.effects = Counter(saved.get("effects", {}))


class TimeLedger:
    """Per device lane, the seconds of each cause. Causes may overlap: the highest is charged, the rest counted as overlapped."""

    def __init__(self, clock: Clock, lanes: list[str]) -> None:
        self._clock = clock
        self._began = clock.now()
        self._since = dict.fromkeys(lanes, self._began)
        self._spans = Spans(lanes, clock.stamp() - self._began)
        self._told_at = self._began
        self._active: dict[str, dict[str, int]] = {lane: defaultdict(int) for lane in lanes}
        self._set: dict[str, set[str]] = {}  # by lane, what `set` was last given, while nothing else has changed it
        self.seconds: dict[str, dict[str, float]] = {lane: defaultdict(float) for lane in lanes}
        self.overlapped: dict[str, dict[str, float]] = {lane: defaultdict(float) for lane in lanes}

    @property
    def lanes(self) -> list[str]:
        return list(self._since)

    def enter(self, lane: str, cause: str) -> None:
        self._settle(lane)
        self._set.pop(lane, None)
        self._active[lane][cause] += 1

    def leave(self, lane: str, cause: str) -> None:
        self._settle(lane)
        self._set.pop(lane, None)
        self._active[lane][cause] -= 1

    @contextmanager
    def during(self, lane: str, cause: str) -> Iterator[None]:
        self.enter(lane, cause)
        try:
            yield
        finally:
            self.leave(lane, cause)

    def set(self, lane: str, causes: set[str]) -> None:
        """Replaces the lane's running causes; for lanes whose state is computed rather than nested."""
        if self._set.get(lane) == causes:
            return
        if {cause for cause, count in self._active[lane].items() if count > 0} != causes:
            self._settle(lane)
            self._active[lane] = defaultdict(int, dict.fromkeys(causes, 1))
        self._set[lane] = causes

    def shift(self, lane: str, source: str, target: str, seconds: float) -> None:
        """Moves time that only an engine can measure (a sync pause between two decode steps) to its own cause."""
        self._settle(lane)
        moved = min(seconds, self.seconds[lane][source])
        self.seconds[lane][source] -= moved
        self.seconds[lane][target] += moved
        self._spans.move(lane, source, target, moved)

    def take_spans(self, every_s: float = 0.0) -> list[list[Any]]:
        """What each lane did since this was last asked, up to now: [lane, cause, began, ended]. Empty when asked again within `every_s`."""
        now = self._clock.now()
        if every_s and now - self._told_at < every_s:
            return []
        self._told_at = now
        for lane in self._since:
            self._settle(lane)
        return self._spans.take()

    def total(self, lane: str, cause: str) -> float:
        """Seconds of this lane charged to the cause so far."""
        self._settle(lane)
        return self.seconds[lane][cause]

    def as_dict(self) -> dict[str, Any]:
        for lane in self._since:
            self._settle(lane)
        return {
            "wall_s": self._clock.now() - self._began,
            "lanes": {lane: _positive(causes) for lane, causes in self.seconds.items()},
            "overlapped_s": {lane: _positive(causes) for lane, causes in self.overlapped.items()},
        }

    def _settle(self, lane: str) -> None:
        now = self._clock.now()
        elapsed = now - self._since[lane]
        if not elapsed:
            return
        self._since[lane] = now
        running = sorted((cause for cause, count in self._active[lane].items() if count > 0), key=_RANK.__getitem__)
        charged = running[0] if running else "idle"
        self.seconds[lane][charged] += elapsed
        self._spans.add(lane, charged, now - elapsed, now)
        for cause in running[1:]:
            self.overlapped[lane][cause] += elapsed


def _positive(causes: dict[str, float]) -> dict[str, float]:
    return {cause: round(causes[cause], 6) for cause in CAUSES if causes.get(cause, 0.0) > 0}
