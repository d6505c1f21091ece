"""What asynchronous RL is about, in one small simulation: two pools, a handful of batches, four numbers to turn.

The flow is the real one, as everywhere in the planner; the workload is invented so that generation and training are equally fast.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from workers.contract.errors import ConfigError, EngineError
from workers.contract.lesson import KNOBS
from workers.planner import design, scenarios
from workers.planner.measure import Ear, shares
from workers.planner.plan import rounded, simulate
from workers.planner.scenario import Scenario

STEPS = 14
WARMUP_STEPS = 4
SHOWN_STEPS = 8  # of which the timeline is drawn
ENGINES = 2
MEDIAN = 500
TOKEN_RATE = 50  # tokens a second of one sample


@dataclass
class Watching(Ear):
    """An ear that keeps what each lane did as well."""

    spans: list[list[Any]] = field(default_factory=list)
    steps_at: list[float] = field(default_factory=list)

    def emit(self, kind: str, data: dict[str, Any]) -> None:
        if kind == "spans":
            self.spans += data["spans"]
        if kind == "lag":
            self.steps_at.append(self.clock.now())
        super().emit(kind, data)


def lesson(ahead: float = 1, max_lag: float = 4, sync_s: float = 1, spread: float = 3) -> dict[str, Any]:
    """The design that the four numbers make, as JSON values: timeline, ledgers, figures. Called by the teaching page.

    spans: [lane, cause, began, ended] in seconds, of the first steps; `steps_at` ends of steps; `failure`: why the run would end, or None,
    and then there are no figures. Raises ConfigError for a number outside its range.
    """
    given = {"ahead": ahead, "max_lag": max_lag, "sync_s": sync_s, "spread": spread}
    for knob in KNOBS:
        if not knob.least <= given[knob.name] <= knob.most:
            cure = f"give a number from {knob.least:g} to {knob.most:g}"
            raise ConfigError("is outside its range", field=knob.name, value=given[knob.name], cure=cure)
    scenario = workload(sync_s, spread)
    config = design.configured("demo", scenario, _sets(int(ahead), int(max_lag)))
    try:
        heard = simulate(config, scenario, Watching)
    except EngineError as error:
        return {"given": given, "failure": str(error), "spans": [], "steps_at": [], "figures": None, "time": None}
    assert isinstance(heard, Watching) and heard.begin is not None and heard.end is not None
    begin, end = heard.begin, heard.end
    seconds, trained, dropped = end.at - begin.at, end.trained - begin.trained, end.dropped - begin.dropped
    until = heard.steps_at[SHOWN_STEPS - 1]
    figures = {
        "samples_per_s": trained / seconds,
        "step_s": seconds / STEPS,
        "lag": sum(lag * count for lag, count in heard.lags.items()) / heard.lags.total(),
        "dropped_share": dropped / (trained + dropped),
    }
    told: dict[str, Any] = rounded(
        {
            "given": given,
            "failure": None,
            "spans": [[lane, cause, at, min(over, until)] for lane, cause, at, over in heard.spans if at < until],
            "steps_at": heard.steps_at[:SHOWN_STEPS],
            "figures": figures,
            "time": shares(begin, end),
        }
    )
    return told


def workload(sync_s: float, spread: float) -> Scenario:
    """16 samples a batch, as many as the engines decode at once; training takes as long as the engines need for a batch without a
    barrier."""
    lengths = {"kind": "fixed", "value": MEDIAN} if spread == 1 else {"kind": "lognormal", "median": MEDIAN, "p90": MEDIAN * spread}
    given: dict[str, Any] = {
        "name": "lesson",
        "steps": STEPS,
        "warmup_steps": WARMUP_STEPS,
        "prompt_tokens": 1,
        "max_new_tokens": 20 * MEDIAN,
        "lengths": lengths,
        "batch": {"prompts": 4, "group_size": 4},
        "generation": {
            "replicas": ENGINES,
            "slots": 8,
            "speed": {"kind": "table", "running": [1, 8], "tokens_per_s": [TOKEN_RATE, 8 * TOKEN_RATE]},
        },
        "training": {"token_s": 1 / (ENGINES * 8 * TOKEN_RATE)},
        "sync": {"seconds": {"any": sync_s}},
    }
    return scenarios.validated(given)


def _sets(ahead: int, max_lag: int) -> list[str]:
    bound = f'{{"value": {1 + ahead}, "unit": "batches"}}'
    return [
        f"staleness.depth_bound={bound}",
        f"staleness.max_lag={max_lag}",
        "staleness.over_limit=drop",
        "interrupt.kind=keep",
        "orchestration.kind=asyncio",
        "buffer.depth=64",
        "rewards.zero_variance=keep",
    ]
