"""A forecast for people: the planner's JSON as rows of a page, and the same figures of the run beside it."""

from __future__ import annotations

from typing import Any

from headrace.dispatch.capacity import Price
from headrace.experiments.text import duration

GENERATORS, TRAINER = "generators", "trainer"
BUSY = ("train", "generate", "straggler_tail")
# Time that the planner leaves out.
APART = ("startup", "paused", "down", "evaluation", "checkpoint")
CAUSES = {
    "wait_buffer_empty": "the buffer is empty",
    "wait_buffer_full": "the buffer is full",
    "wait_depth_bound": "the bound on work ahead is reached",
    "wait_sync": "new weights are on their way",
    "sync_pause": "weights are being published",
    "score": "answers are being scored",
    "environment": "the environment answers",
    "idle": "there is nothing to do",
}


def predicted(told: dict[str, Any], price: Price | None, unlike: list[str]) -> dict[str, Any]:
    """What the form shows and the run keeps, from the planner's answer. `rows`: label and value in words. No data is None."""
    hours = told.get("gpu_hours")
    money = (
        None if price is None or hours is None else {"amount": round(float(price.per_device_hour) * hours, 2), "currency": price.currency}
    )
    found: dict[str, Any] = {
        **{name: told.get(name) for name in ("samples_per_s", "step_s", "overlap", "wall_s", "budget_steps", "dropped_share", "memory")},
        "money": money,
        "lag": {name: told["lag"].get(name) for name in ("mean", "p95", "max")},
        "buffer_depth": {name: told["buffer_depth"].get(name) for name in ("mean", "unit")},
        "idle": {lane: idle(told["idle"].get(lane)) for lane in (GENERATORS, TRAINER)},
        "unlike": unlike,
    }
    return {**found, "rows": rows(found)}


def idle(causes: dict[str, float] | None) -> dict[str, Any] | None:
    """Share of time without work, and the cause that takes most of it. None: the lane has told nothing."""
    if causes is None:
        return None
    most = max(causes.items(), key=lambda item: item[1], default=(None, 0.0))
    return {"share": sum(causes.values()), "cause": most[0], "cause_share": most[1]}


def rows(found: dict[str, Any]) -> list[dict[str, str]]:
    """Label and value; what is not known is left out."""
    lag, depth, money = found["lag"], found["buffer_depth"], found["money"]
    told = [
        ("Samples a second", short(found["samples_per_s"])),
        ("Seconds a step", short(found["step_s"])),
        ("The whole budget", _whole(found)),
        ("Costs", f"{money['amount']:,.2f} {money['currency']}" if money else None),
        ("Engines idle", _idle(found["idle"][GENERATORS])),
        ("Trainer idle", _idle(found["idle"][TRAINER])),
        ("Lag", None if lag["mean"] is None else f"{lag['mean']:.2f} on average, 95th percentile {short(lag['p95'])}"),
        ("Buffer", None if depth["mean"] is None else f"{short(depth['mean'])} {depth['unit']}s on average"),
        ("Dropped", None if found["dropped_share"] is None else percent(found["dropped_share"], 1)),
        *((f"Memory, {pool}", _memory(one)) for pool, one in (found["memory"] or {}).items()),
    ]
    return [{"label": label, "value": value} for label, value in told if value is not None]


def _whole(found: dict[str, Any]) -> str | None:
    if found["wall_s"] is None:
        return None
    return f"{duration(found['wall_s'])} for {found['budget_steps']:,} step{'' if found['budget_steps'] == 1 else 's'}"


def _idle(lane: dict[str, Any] | None) -> str | None:
    if lane is None:
        return None
    if not lane["cause"]:
        return "never"
    words = CAUSES.get(lane["cause"], str(lane["cause"]).replace("_", " "))
    return f"{percent(lane['share'])}, most of it while {words}"


def _memory(one: dict[str, Any]) -> str:
    fits = "fits" if one["fits"] else "fits on average only" if one.get("fits_expected") else "does not fit"
    return f"{fits}: {one['bytes'] / 1e9:.1f} of {one['limit_bytes'] / 1e9:.1f} GB"


def compared(forecast: Any, state: Any, samples_a_step: int | None) -> list[dict[str, str]]:
    """Rows of "Predicted and actual". Nothing predicted: no rows. What the run has not told yet is a dash.

    state: the run's latest event of that kind. Start-up, pauses, evaluations and checkpoints are left out on both sides.
    samples_a_step: None where the attempt went on from a checkpoint, because its totals then hold steps of another attempt's time.
    """
    said = forecast.get("predicted") if isinstance(forecast, dict) else None
    if not isinstance(said, dict):
        return []
    now = _actual(state if isinstance(state, dict) else {}, samples_a_step)
    trainer = (said.get("idle") or {}).get(TRAINER) or {}
    lines = [
        ("Samples a second", said.get("samples_per_s"), now.get("samples_per_s"), short),
        ("Seconds a step", said.get("step_s"), now.get("step_s"), short),
        ("Lag, mean", (said.get("lag") or {}).get("mean"), now.get("lag"), lambda value: f"{value:.2f}"),
        ("Trainer waits", trainer.get("share"), now.get("waits"), percent),
    ]
    return [
        {
            "label": label,
            "predicted": "–" if before is None else write(before),
            "actual": "–" if after is None else write(after),
            "off": off(before, after),
        }
        for label, before, after, write in lines
    ]


def off(before: float | None, after: float | None) -> str:
    """How far the actual is from the predicted, in percent of the predicted."""
    if before is None or after is None:
        return "–"
    if before == 0:
        return "as predicted" if after == 0 else "–"
    if abs(after - before) < 0.005 * abs(before):
        return "as predicted"
    return f"{(after - before) / before:+.0%}".replace("%", " %").replace("-", "−")


def _actual(state: dict[str, Any], samples_a_step: int | None) -> dict[str, float | None]:
    lanes = (state.get("time") or {}).get("lanes") or {}
    causes = {cause: seconds for cause, seconds in (lanes.get(TRAINER) or {}).items() if cause not in APART}
    seconds, trained = sum(causes.values()), (state.get("samples") or {}).get("trained")
    found: dict[str, float | None] = {"lag": (state.get("lag") or {}).get("mean")}
    if seconds <= 0 or not trained:
        return found
    found["waits"] = 1 - sum(causes.get(cause, 0.0) for cause in BUSY) / seconds
    if samples_a_step:
        found |= {"samples_per_s": trained / seconds, "step_s": seconds * samples_a_step / trained}
    return found


def short(value: float | None) -> str:
    """Three digits, as the pages' scripts write numbers."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def percent(value: float, digits: int = 0) -> str:
    return f"{value * 100:.{digits}f} %"
