"""What a simulated run is watched by: an ear for its events, and a gauge around its buffer."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from workers import gauges
from workers.axes.buffer.base import Buffer
from workers.clock import Clock
from workers.parts import TRAINER, Parts
from workers.records import Group

GENERATORS = "generators"
BUSY = {GENERATORS: ("generate", "straggler_tail"), TRAINER: ("train",)}


class Gauge:
    """A buffer that knows how full it was, and for how long. Depth is in the buffer's own units."""

    def __init__(self, buffer: Buffer, parts: Parts) -> None:
        self._buffer = buffer
        self._parts = parts
        self.capacity = buffer.capacity
        self._since = parts.clock.now()
        self._depth = 0
        self.area = 0.0  # units x seconds
        self.most = 0

    async def put(self, group: Group) -> list[Group]:
        evicted = await self._buffer.put(group)
        self._change(gauges.units(self._parts, [group]) - gauges.units(self._parts, evicted))
        return evicted

    async def take(self) -> Group:
        group = await self._buffer.take()
        self._change(-gauges.units(self._parts, [group]))
        return group

    def contents(self) -> list[Group]:
        return self._buffer.contents()

    def restore(self, groups: list[Group]) -> None:
        self._buffer.restore(groups)

    def settle(self) -> None:
        """Called before the area is read."""
        now = self._parts.clock.now()
        self.area += self._depth * (now - self._since)
        self._since = now

    def _change(self, units: int) -> None:
        self.settle()
        self._depth += units
        self.most = max(self.most, self._depth)


@dataclass
class Mark:
    """What had been counted at one moment."""

    at: float
    area: float
    trained: int
    dropped: int
    reasons: Counter[str]
    seconds: dict[str, dict[str, float]]  # by lane and cause


@dataclass
class Ear:
    """Hears the flow's events in place of the spool and keeps what the plan is made of; the flow itself is not touched.

    `parts` and `gauge` are set when the parts have been made. Nothing grows with the steps but one number a step.
    """

    clock: Clock
    warmup_steps: int
    last_step: int
    step: int = 0
    last_seq: int = 0
    parts: Parts | None = None
    gauge: Gauge | None = None
    begin: Mark | None = None
    end: Mark | None = None
    lags: Counter[int] = field(default_factory=Counter)
    sync_s: list[float] = field(default_factory=list)
    step_s: list[float] = field(default_factory=list)

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "lag":
            self._stepped(data["counts"])
        elif kind == "sync" and self.begin is not None:
            self.sync_s.append(data["latency_s"])

    def metrics(self, values: dict[str, float]) -> None:
        if "time/step_s" in values and self.begin is not None:
            self.step_s.append(values["time/step_s"])

    def log(self, level: str, message: str, source: str = "driver") -> None:
        """A plan keeps no log."""

    def phase(self, name: str, detail: str = "", done: float | None = None) -> None:
        """A simulated run has no start-up."""

    def start(self) -> None:
        """Called before the first dispatch: without a warm-up, all is measured."""
        if self.warmup_steps == 0:
            self.begin = self.mark()

    def mark(self) -> Mark:
        assert self.parts is not None and self.gauge is not None
        self.gauge.settle()
        samples = self.parts.samples
        reasons = Counter({reason: count for reason, count in samples.dropped.items() if reason != "run_ended"})
        lanes = self.parts.time.as_dict()["lanes"]
        return Mark(self.clock.now(), self.gauge.area, samples.trained, reasons.total(), reasons, lanes)

    def _stepped(self, counts: dict[str, int]) -> None:
        assert self.parts is not None and self.gauge is not None
        if self.begin is not None:
            self.lags.update({int(lag): count for lag, count in counts.items()})
            if self.parts.progress.step == self.last_step:
                self.end = self.mark()
        elif self.parts.progress.step == self.warmup_steps:
            self.begin = self.mark()
            self.gauge.most = 0


def shares(begin: Mark, end: Mark) -> dict[str, dict[str, float]]:
    """By lane class, each cause's share of the time between two marks. They add up to 1."""
    sums: dict[str, dict[str, float]] = {GENERATORS: {}, TRAINER: {}}
    for lane, causes in end.seconds.items():
        sums_of = sums[TRAINER if lane == TRAINER else GENERATORS]
        for cause, seconds in causes.items():
            sums_of[cause] = sums_of.get(cause, 0.0) + seconds - begin.seconds.get(lane, {}).get(cause, 0.0)
    told = {}
    for name, found in sums.items():
        total = sum(found.values())
        ordered = sorted(found.items(), key=lambda item: -item[1])
        told[name] = {cause: round(seconds / total, 6) for cause, seconds in ordered if seconds > 1e-9} if total > 0 else {}
    return told


def weighted_percentile(counts: Counter[int], share: float) -> int | None:
    """Nearest rank among values that occurred so often. None without any."""
    left = float(share * counts.total())
    for value in sorted(counts):
        left -= counts[value]
        if left <= 1e-9:
            return value
    return None
