"""A run's folder as numbers: what its events say of each step, each publish and its engines."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.contract import reading
from workers.contract.config import RunConfig
from workers.contract.errors import DataError
from workers.contract.loading import upgraded
from workers.parts import TRAINER
from workers.planner.measure import GENERATORS
from workers.rates import WINDOW_S
from workers.spool import read_spool

COLD_STEPS = 1  # left out: the first batch of an engine and of a trainer is slower than any other


@dataclass(frozen=True)
class Step:
    """One batch. Tokens are those trained; causes are seconds by lane class since the step before."""

    tokens: float
    samples: int
    train_s: float
    step_s: float
    causes: dict[str, dict[str, float]]


@dataclass(frozen=True)
class Pulse:
    """What the engines had done together by one pulse: tokens drawn, seconds in decode steps, decode steps."""

    t: float
    tokens: float
    decode_s: float
    steps: float


@dataclass
class Run:
    """steps: without the cold ones. lengths: of the completions that were shown. syncs: phases of each publish. pulses: empty where
    the engines do not tell of their decode steps."""

    config: RunConfig
    steps: list[Step] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    truncated: int = 0
    syncs: list[dict[str, float]] = field(default_factory=list)
    scoring_failed: int = 0
    judged: int = 0
    pulses: list[Pulse] = field(default_factory=list)


def read(folder: Path) -> Run:
    """Raises DataError where the folder holds no run that has trained."""
    if not (folder / "config.json").is_file():
        raise DataError("holds no run: config.json is missing", field="run", value=str(folder), cure="give the folder that --out named")
    config = RunConfig.model_validate(upgraded(reading.read(folder / "config.json")))
    run, ledger, values = Run(config), _lanes({}), dict[str, float]()
    gauge: dict[str, float] | None = None
    count = 0
    for event, _ in read_spool(folder / "spool"):
        if event is None:
            continue
        kind, data = event["kind"], event["data"]
        if kind == "metrics" and "time/step_s" in data["values"]:
            values = data["values"]
        elif kind == "metrics" and "flow/running" in data["values"]:
            gauge = data["values"]
        elif kind == "state" and gauge is not None:
            run.pulses.append(_pulse(run.pulses, event["t"], data["flow"], gauge.get("time/decode_step_s")))
            gauge = None
        if kind == "state" and values and data["step"] > count:
            count, now = data["step"], _lanes(data["time"]["lanes"])
            if count > COLD_STEPS:
                run.steps.append(_step(values, ledger, now))
            ledger, values = now, {}
        elif kind == "sync":
            run.syncs.append({**data["phases"], "latency_s": data["latency_s"], "bytes": data["bytes"]})
        elif kind == "sample":
            _sample(run, data)
    if not run.steps:
        need = COLD_STEPS + 1
        raise DataError("has trained too little to be fitted", field="run", value=str(folder), cure=f"give a run of at least {need} steps")
    return run


def _pulse(before: list[Pulse], t: float, flow: dict[str, Any], mean_step_s: float | None) -> Pulse:
    """The engines' totals, from rates that are told over a sliding window: a window's beginning is a pulse, too, whose totals are known."""
    if not before:
        return Pulse(t, 0.0, 0.0, 0.0)
    began = next((pulse for pulse in before if t - pulse.t <= WINDOW_S), before[-1])
    drawn = (flow.get("generate_tokens_per_s") or 0.0) * (t - began.t)
    rate = flow.get("decode_tokens_per_s")
    decode_s = began.decode_s + (drawn / rate if rate else 0.0)
    return Pulse(t, began.tokens + drawn, decode_s, decode_s / mean_step_s if mean_step_s else 0.0)


def _sample(run: Run, data: dict[str, Any]) -> None:
    if data["outcome"] not in ("trained", "dropped", "failed"):
        return
    run.judged += data["outcome"] != "dropped"
    run.scoring_failed += data["drop_reason"] == "scoring_failed"
    if data["finish_reason"] in ("stop", "length") and data["tokens"]["ids"]:
        run.lengths.append(len(data["tokens"]["ids"]))
        run.truncated += data["finish_reason"] == "length"


def _step(values: dict[str, float], before: dict[str, dict[str, float]], now: dict[str, dict[str, float]]) -> Step:
    samples = round(values["throughput/samples_per_s"] * values["time/step_s"])
    causes = {lane: {cause: seconds - before[lane].get(cause, 0.0) for cause, seconds in totals.items()} for lane, totals in now.items()}
    return Step(values["reward/completion_tokens"] * samples, samples, values["time/train_s"], values["time/step_s"], causes)


def _lanes(lanes: dict[str, dict[str, float]]) -> dict[str, dict[str, float]]:
    """Seconds by lane class and cause."""
    sums: dict[str, dict[str, float]] = {GENERATORS: {}, TRAINER: {}}
    for lane, causes in lanes.items():
        target = sums[TRAINER if lane == TRAINER else GENERATORS]
        for cause, seconds in causes.items():
            target[cause] = target.get(cause, 0.0) + seconds
    return sums
