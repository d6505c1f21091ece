"""The kinds of rules: their options, checked, and when each holds. No database here.

A rule over a series is a small machine that sees one point after the other and says whether it holds. The live watch shows it the end
of the series, the dry run the whole history: both say the same.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from headrace.experiments.problems import BadInput
from headrace.experiments.states import RunState
from workers.contract.metrics import CATALOGUE

NAME = r"^[A-Za-z0-9][A-Za-z0-9_./:@+-]{0,119}$"
StateName = Literal["running", "paused", "succeeded", "failed", "cancelled", "lost"]


@dataclass(frozen=True, slots=True)
class Point:
    """One value of a series; it may be non-finite."""

    t: float
    step: int
    value: float


class Options(BaseModel):
    """Options of one kind of rule."""

    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


class Threshold(Options):
    metric: str = Field(pattern=NAME)
    side: Literal["above", "below"]
    value: float
    points: int = Field(3, ge=1, le=1000)
    seconds: float = Field(0, ge=0, le=86_400)


class Collapse(Options):
    metric: str = Field("reward/mean", pattern=NAME)
    percent: float = Field(50, gt=0, le=100)
    steps: int = Field(50, ge=2, le=100_000)
    mean_of: int = Field(3, ge=1, le=100)


class NonFinite(Options):
    metric: str = Field("", pattern=f"{NAME}|^$")


class Stall(Options):
    of: Literal["event", "step"] = "step"
    seconds: float = Field(600, ge=15, le=604_800)


class StateChange(Options):
    states: list[StateName] = Field(min_length=1, max_length=6)


class Queue(Options):
    seconds: float = Field(1800, ge=10, le=604_800)


KINDS: dict[str, tuple[type[Options], str, str]] = {
    "threshold": (Threshold, "A metric is above or below a value", "For so many points on end, or for so many seconds."),
    "collapse": (Collapse, "A metric has fallen far below its best", "Reward collapse: the mean of the last points against the best one."),
    "nonfinite": (NonFinite, "A value is not finite", "A NaN or infinity in a loss, a gradient norm or any other metric."),
    "stall": (Stall, "Nothing happens", "No event, or no finished step, for so long."),
    "state": (StateChange, "A run changes its state", "It failed, is lost, has succeeded, is paused."),
    "queue": (Queue, "A run waits too long", "Queued or launching for longer than this."),
}
OVER_SERIES = frozenset({"threshold", "collapse", "nonfinite"})
MOMENTARY = frozenset({"nonfinite", "state"})


def parse(kind: str, given: dict[str, Any]) -> Options:
    """The options of a rule. Raises BadInput naming the field."""
    if kind not in KINDS:
        raise BadInput("is not a kind of rule", field="kind", value=kind[:40], cure=f"one of {', '.join(KINDS)}")
    try:
        return KINDS[kind][0].model_validate(given)
    except ValidationError as error:
        fault = error.errors(include_url=False, include_context=False)[0]
        field = str(fault["loc"][0]) if fault["loc"] else "options"
        value = None if isinstance(fault["input"], dict | list) else str(fault["input"])[:80]
        raise BadInput(fault["msg"].lower(), field=field, value=value, cure="see the words beside the field") from error


class Watch(Protocol):
    """Sees a series point by point."""

    def see(self, point: Point) -> bool:
        """Whether the rule holds after this point."""
        ...

    def words(self) -> str:
        """Why it holds, in a sentence."""
        ...


class ThresholdWatch:
    """Holds once every one of the last `points` (or all points of the last `seconds`) was beyond. A non-finite point is no evidence."""

    def __init__(self, options: Threshold) -> None:
        self.options = options
        self.since: float | None = None
        self.run = 0
        self.last: Point | None = None

    def see(self, point: Point) -> bool:
        if not math.isfinite(point.value):
            return self.holds()
        beyond = point.value > self.options.value if self.options.side == "above" else point.value < self.options.value
        self.last = point
        self.run = self.run + 1 if beyond else 0
        if not beyond:
            self.since = None
        elif self.since is None:
            self.since = point.t
        return self.holds()

    def holds(self) -> bool:
        if self.since is None or self.last is None:
            return False
        if self.options.seconds > 0:
            return self.last.t - self.since >= self.options.seconds
        return self.run >= self.options.points

    def words(self) -> str:
        at = f"{self.last.value:.4g}" if self.last else "?"
        how_long = f"for {self.options.seconds:g} s" if self.options.seconds > 0 else f"for {self.options.points} points"
        return f"{title_of(self.options.metric)} is {at}, {self.options.side} {self.options.value:g} {how_long}"


class CollapseWatch:
    """Holds while the running mean lies `percent` below the best running mean of the last `steps` steps."""

    def __init__(self, options: Collapse) -> None:
        self.options = options
        self.recent: deque[float] = deque(maxlen=options.mean_of)
        self.means: deque[tuple[int, float]] = deque()  # decreasing: the first is the best of the window
        self.now = self.best = math.nan

    def see(self, point: Point) -> bool:
        if not math.isfinite(point.value):
            return self.holds()
        self.recent.append(point.value)
        if len(self.recent) < self.options.mean_of:
            return False
        self.now = sum(self.recent) / len(self.recent)
        while self.means and self.means[-1][1] <= self.now:
            self.means.pop()
        self.means.append((point.step, self.now))
        while self.means[0][0] < point.step - self.options.steps:
            self.means.popleft()
        self.best = self.means[0][1]
        return self.holds()

    def holds(self) -> bool:
        return self.best - self.now >= abs(self.best) * self.options.percent / 100 and self.best > self.now

    def words(self) -> str:
        fall = 100 * (self.best - self.now) / abs(self.best) if self.best else 100.0
        name, opts = title_of(self.options.metric), self.options
        return f"{name} fell to {self.now:.4g}, {fall:.0f} % below its best of the last {opts.steps} steps ({self.best:.4g})"


class NonFiniteWatch:
    """Holds at every point that is not finite."""

    def __init__(self, options: NonFinite) -> None:
        self.last: Point | None = None

    def see(self, point: Point) -> bool:
        self.last = point
        return not math.isfinite(point.value)

    def words(self) -> str:
        return f"the value is {self.last.value if self.last else '?'}"


def watch_for(options: Options) -> Watch:
    """A fresh machine for a rule over a series."""
    if isinstance(options, Threshold):
        return ThresholdWatch(options)
    if isinstance(options, Collapse):
        return CollapseWatch(options)
    if isinstance(options, NonFinite):
        return NonFiniteWatch(options)
    raise TypeError(f"no series is watched by {type(options).__name__}")


def points_needed(options: Options) -> int:
    """How many points from the end of the series suffice to know whether the rule holds now; one over seconds is read by time."""
    if isinstance(options, Threshold):
        return options.points
    if isinstance(options, Collapse):
        return min(20_000, options.steps + options.mean_of + 1)
    return 1


def firings(options: Options, points: Iterable[Point], cooldown_s: float) -> list[tuple[Point, str]]:
    """(point, words) of each time the rule would have fired and told, oldest first: what the dry run shows."""
    watch = watch_for(options)
    found: list[tuple[Point, str]] = []
    held = False
    for point in points:
        holds = watch.see(point)
        if holds and not held and (not found or point.t - found[-1][0].t >= cooldown_s):
            found.append((point, watch.words()))
        held = holds
    return found


def title_of(metric: str) -> str:
    """A metric as the catalogue calls it."""
    known = CATALOGUE.get(metric)
    return known.title if known else metric


def second_of(t: float) -> str:
    """An instant as the time bar's `?t=` takes it, rounded up: what happened then is on the page."""
    return f"{math.ceil(t * 10) / 10:.1f}"


def describe(kind: str, given: dict[str, Any]) -> str:
    """One sentence that says when a rule fires."""
    options = parse(kind, given)
    if isinstance(options, Threshold):
        how_long = f"{options.seconds:g} s" if options.seconds > 0 else f"{options.points} point{'s' * (options.points != 1)} on end"
        return f"{title_of(options.metric)} {options.side} {options.value:g} for {how_long}"
    if isinstance(options, Collapse):
        return f"{title_of(options.metric)} {options.percent:g} % below its best of {options.steps} steps"
    if isinstance(options, NonFinite):
        return f"{title_of(options.metric) if options.metric else 'Any metric'} is NaN or infinite"
    if isinstance(options, Stall):
        return f"No {'step finished' if options.of == 'step' else 'event'} for {options.seconds:g} s"
    if isinstance(options, StateChange):
        return "The run becomes " + " or ".join(RunState(name).label.lower() for name in options.states)
    return f"Queued or launching for {getattr(options, 'seconds', 0):g} s"


@dataclass(frozen=True, slots=True)
class ReadyMade:
    """A rule that is offered as it is."""

    key: str
    name: str
    why: str
    kind: str
    options: dict[str, Any]
    severity: str = "warning"


READY_MADE = (
    ReadyMade(
        "ended-badly", "A run failed or is lost", "The one rule every team wants.", "state", {"states": ["failed", "lost"]}, "critical"
    ),
    ReadyMade("done", "A run has succeeded", "Go and look at the result.", "state", {"states": ["succeeded"]}, "info"),
    ReadyMade(
        "stalled", "No step for ten minutes", "A hung weight sync or a dead engine says nothing: silence has to.", "stall", {"of": "step"}
    ),
    ReadyMade("collapse", "Reward collapse", "Train reward lost half of its best.", "collapse", {}, "critical"),
    ReadyMade(
        "entropy",
        "Entropy is nearly gone",
        "Below 0.05 nats the policy hardly explores any more.",
        "threshold",
        {"metric": "loss/entropy", "side": "below", "value": 0.05, "points": 5},
    ),
    ReadyMade(
        "no-signal",
        "Most groups teach nothing",
        "More than 80 % of the groups have equal rewards: no advantage, no gradient.",
        "threshold",
        {"metric": "reward/zero_variance_share", "side": "above", "value": 0.8, "points": 5},
    ),
    ReadyMade(
        "truncated",
        "Most answers are cut off",
        "More than half of the completions reach the token limit.",
        "threshold",
        {"metric": "reward/truncated_share", "side": "above", "value": 0.5, "points": 3},
    ),
    ReadyMade(
        "mismatch",
        "Engine and trainer disagree",
        "The gap (k3) is above 0.1 nats: a sync that went wrong, or numbers that differ too much.",
        "threshold",
        {"metric": "loss/kl_mismatch", "side": "above", "value": 0.1, "points": 3},
        "critical",
    ),
    ReadyMade("nan", "A loss is not finite", "The optimizer skipped a step, or is about to.", "nonfinite", {"metric": ""}, "critical"),
    ReadyMade("queue", "Half an hour in the queue", "Something blocks the cluster, or the quota is used up.", "queue", {}),
)
