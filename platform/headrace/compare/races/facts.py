"""What one run of a race shows: its curves along both axes, its figures, where its time went. Read from series, state and summary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from headrace.compare.races.curves import Curve, along, percentile
from headrace.compare.races.plan import devices_of
from headrace.compare.races.together import seconds_together
from headrace.experiments.models import Attempt, Run
from headrace.telemetry import series
from headrace.telemetry.models import LatestState
from workers.contract.config import RunConfig

POINTS = 400
TRAIN, HELDOUT = "reward/mean", "eval/reward_mean"
SAMPLES, TOKENS, LAG, PAUSE = "samples/trained", "samples/tokens", "lag/mean", "sync/pause_s"
AXES = ("wall_s", "samples")
KINDS = ("engines", "trainer")
KEPT = 256


@dataclass(frozen=True)
class Facts:
    """curves: {"train" | "heldout": {axis: Curve}}; figures: name -> number or None (never 0 for no data);
    time: {"engines" | "trainer": {cause: seconds}}, summed over the lanes of each."""

    curves: dict[str, dict[str, Curve]]
    figures: dict[str, float | None]
    time: dict[str, dict[str, float]]
    provenance: dict[str, Any] = field(default_factory=dict)


def facts_of(runs: Sequence[Run]) -> dict[int, Facts]:
    """{run key: facts} of runs of one team, whose access the caller has checked. Read anew only where something came in."""
    if not runs:
        return {}
    marks: dict[int, int] = {run.pk: 0 for run in runs}
    for attempt in Attempt.objects.for_team(runs[0].team_id).filter(run__in=runs).only("run_id", "ingested_through"):
        marks[attempt.run_id] += attempt.ingested_through
    return {run.pk: _facts(runs[0].team_id, run.pk, run.state, marks[run.pk]) for run in runs}


@lru_cache(maxsize=KEPT)
def _facts(team_id: int, run_pk: int, state: str, mark: int) -> Facts:
    """`state` and `mark` are part of the key alone: a run that goes on is read again."""
    run = Run.objects.for_team(team_id).select_related("config").get(pk=run_pk)
    attempts = list(Attempt.objects.for_team(team_id).filter(run=run).order_by("number"))
    latest = LatestState.objects.for_team(team_id).filter(attempt__run=run).order_by("attempt__number").last()
    columns = series.read(run, [TRAIN, HELDOUT, SAMPLES, TOKENS, LAG, PAUSE], x="time", buckets=POINTS)
    start = _start(attempts, latest, columns)
    told = _data(latest)
    together = seconds_together(attempts[-1]) if attempts else None
    figures = _figures(run, told, columns, series.lag_histogram(run), together)
    batch = _batch(run)
    curves = {"train": _curves(columns, TRAIN, start, batch), "heldout": _curves(columns, HELDOUT, start, batch)}
    provenance = attempts[-1].provenance if attempts else {}
    return Facts(curves, figures, _time(run, told), provenance)


def _start(attempts: Sequence[Attempt], latest: LatestState | None, columns: Mapping[str, Mapping[str, Any]]) -> float:
    """Unix seconds at which the run's clock began: the clock of its budget and its ledger, loading included.

    A state event tells wall time and moment together. Of a run that was resumed, and of one without a state, the first attempt's
    first word is taken. Never after the first point.
    """
    points = [values["t"][0] for values in columns.values() if values["t"]]
    state, wall = (latest.state or {}) if latest else {}, _number((_data(latest).get("time") or {}).get("wall_s"))
    moment = _number(state.get("t"))
    if len(attempts) == 1 and wall is not None and moment is not None:
        return float(min([moment - wall, *points]))
    began = attempts[0].started_at if attempts else None
    return min([*([began.timestamp()] if began else []), *points], default=0.0)


def _data(latest: LatestState | None) -> dict[str, Any]:
    data = (latest.state or {}).get("data") if latest else None
    return data if isinstance(data, dict) else {}


def _batch(run: Run) -> int:
    batch = run.config.data.get("batch", {})
    return int(batch.get("prompts", 1)) * int(batch.get("group_size", 1))


def _curves(columns: Mapping[str, Mapping[str, Any]], name: str, start: float, batch: int) -> dict[str, Curve]:
    """The series along both axes. Where no count of samples was told, a step counts as a full batch."""
    mine = _kept(columns.get(name))
    counted = _kept(columns.get(SAMPLES))
    times = [t - start for t in mine["t"]]
    if counted["t"]:
        trained = Curve.of([0.0, *(t - start for t in counted["t"])], [0.0, *counted["value"]])
        samples: Sequence[float | None] = along(trained, times)
    else:
        samples = [float(step * batch) for step in mine["step"]]
    return {"wall_s": Curve.of(times, mine["value"]), "samples": Curve.of([x if x is not None else 0.0 for x in samples], mine["value"])}


def _kept(columns: Mapping[str, Any] | None) -> dict[str, list[Any]]:
    """Without what a later attempt trained again."""
    if columns is None:
        return {"t": [], "step": [], "value": [], "count": []}
    keep = [index for index, faint in enumerate(columns["faint"]) if not faint]
    return {key: [columns[key][index] for index in keep] for key in ("t", "step", "value", "count")}


def _figures(
    run: Run, told: Mapping[str, Any], columns: Mapping[str, Any], lags: Mapping[str, list[Any]], together: float | None
) -> dict[str, float | None]:
    summary = run.summary if isinstance(run.summary, dict) else {}
    ledger = summary.get("sample_ledger") or told.get("samples") or {}
    time = told.get("time") or {}
    wall = _number(summary.get("wall_s")) or _number(time.get("wall_s"))
    lanes = summary.get("time_ledger") or time.get("lanes") or {}
    startup = max((_number(causes.get("startup")) or 0.0 for causes in lanes.values()), default=0.0) if lanes else None
    working = wall - (startup or 0.0) if wall else None
    samples = _number(summary.get("samples_trained")) or _number(ledger.get("trained")) or _last(columns.get(SAMPLES))
    tokens = _number(summary.get("tokens_trained")) or _last(columns.get(TOKENS))
    counts = {int(lag): float(sum(row)) for lag, row in zip(lags["lags"], lags["tokens"], strict=True)}
    dropped = ledger.get("dropped")
    dispatched = _number(ledger.get("dispatched"))
    pauses = _kept(columns.get(PAUSE))
    paused = sum(value * n for value, n in zip(pauses["value"], pauses["count"], strict=True) if value is not None)
    syncs = sum(n for value, n in zip(pauses["value"], pauses["count"], strict=True) if value is not None)
    devices = devices_of(RunConfig.model_validate(run.config.data)) if run.config.schema_version == 2 else None
    return {
        "samples_per_s": _ratio(samples, working),
        "tokens_per_s": _ratio(tokens, working),
        "overlap": overlap(lanes, working) if together is None else _share(together, working),
        "lag_mean": _ratio(sum(lag * n for lag, n in counts.items()), sum(counts.values())),
        "lag_p95": percentile(counts, 0.95),
        "dropped_share": _ratio(float(sum(dropped.values())), dispatched) if isinstance(dropped, dict) else None,
        "sync_pause_s": _ratio(paused, float(syncs)),
        "sync_share": _ratio(paused, working) if syncs else None,
        "startup_s": startup,
        "wall_s": wall,
        "samples": samples,
        "tokens": tokens,
        "device_hours": devices * wall / 3600 if devices and wall else None,
    }


def overlap(lanes: Mapping[str, Mapping[str, Any]], working: float | None) -> float | None:
    """At least this share of the working time an engine generated while the trainer trained: what the two ledgers cannot hide.

    Each ledger says how long, not when; so long as both together exceed the time there was, they must have overlapped.
    """
    generate = [_number(causes.get("generate")) or 0.0 for name, causes in lanes.items() if name.startswith("generator")]
    train = [_number(causes.get("train")) or 0.0 for name, causes in lanes.items() if name.startswith("trainer")]
    if not generate or not train or not working or working <= 0:
        return None
    return max(0.0, min(1.0, (max(generate) + max(train) - working) / working))


def _time(run: Run, told: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    summary = run.summary if isinstance(run.summary, dict) else {}
    lanes = summary.get("time_ledger") or (told.get("time") or {}).get("lanes") or {}
    found: dict[str, dict[str, float]] = {kind: {} for kind in KINDS}
    for name, causes in lanes.items():
        kind = found["trainer" if str(name).startswith("trainer") else "engines"]
        for cause, seconds in causes.items():
            kind[str(cause)] = kind.get(str(cause), 0.0) + (_number(seconds) or 0.0)
    return found


def _last(columns: Mapping[str, Any] | None) -> float | None:
    values = [value for value in _kept(columns)["value"] if value is not None]
    return float(values[-1]) if values else None


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _share(part: float, whole: float | None) -> float | None:
    found = _ratio(part, whole)
    return None if found is None else min(1.0, found)


def _ratio(above: float | None, below: float | None) -> float | None:
    return above / below if above is not None and below is not None and below > 0 else None
