"""A plan for people to read."""

from __future__ import annotations

from typing import Any


def told(plan: dict[str, Any]) -> str:
    """What `python -m workers plan` prints."""
    lag, depth = plan["lag"], plan["buffer_depth"]
    lines = [
        f"{plan['preset']} at {plan['scenario']}: {plan['steps']} steps after {plan['warmup_steps']} of warm-up",
        "",
        f"step                {plan['step_s']:.4g} s",
        f"samples             {plan['samples_per_s']:.4g} /s",
        f"overlap             {plan['overlap']:.3f} of what the slower pool could do alone",
        f"generation          {plan['generation_batch_s']:.4g} s for a batch behind a barrier",
        f"lag                 {_or(lag['mean'], '.2f')} on average, {_or(lag['p95'])} at the 95th percentile, {_or(lag['max'])} at most",
        f"buffer              {depth['mean']:.4g} {depth['unit']}s on average ({depth['batches']:.2f} batches), {depth['max']} at most",
        f"dropped             {_or(plan['dropped_share'], '.1%')}{_reasons(plan['dropped'])}",
        f"sync                {_or(plan['sync_s'], '.3g')} s until every engine serves",
        f"wall                {plan['wall_s']:.4g} s on {plan['gpus']} GPUs, {plan['gpu_hours']:.4g} GPU-hours{_price(plan['cost'])}",
    ]
    for lane, causes in plan["time"].items():
        shares = ", ".join(f"{cause} {share:.1%}" for cause, share in causes.items())
        lines.append(f"{lane:20}{shares}")
    lines += _memory(plan["memory"]) + _episodes(plan["episodes"]) + _published(plan)
    return "\n".join(lines)


def _memory(memory: dict[str, Any] | None) -> list[str]:
    lines: list[str] = []
    for pool, told in (memory or {}).items():
        words = "fits" if told["fits"] else "does not fit"
        if not told["fits"] and told.get("fits_expected"):
            words = "fits on average, not with every sample at its longest"
        lines += ["", f"memory of a GPU, {pool}: {words} ({told['bytes'] / 1e9:.1f} of {told['limit_bytes'] / 1e9:.1f} GB)"]
        lines += [f"  {line}" for line in told["arithmetic"]]
    return lines


def _episodes(episodes: dict[str, Any] | None) -> list[str]:
    if episodes is None:
        return []
    tails = ", ".join(f"{tail:.2f}" for tail in episodes["tail_of_agents"])
    lines = [
        "",
        f"{episodes['agents']} agents in turn: 90th percentile over median {tails} alone, {episodes['tail_of_episode']:.2f} together",
    ]
    for barrier, seconds in episodes["batch_s"].items():
        share = episodes["wait_share"][barrier]
        lines.append(f"  {barrier.replace('_', ' '):26}{seconds:.4g} s a batch, {share:.0%} of it waiting")
    return lines


def _published(plan: dict[str, Any]) -> list[str]:
    lines = [""] if plan["published"] else []
    for row in plan["published"]:
        predicted = "-" if row["predicted"] is None else f"{row['predicted']:.4g}"
        note = f"; {row['note']}" if row["note"] else ""
        lines.append(f"published {row['figure']}: {row['value']:g} {row['unit']}, predicted {predicted} ({row['source']}{note})")
    return lines


def _or(value: float | None, shape: str = "") -> str:
    return "-" if value is None else format(value, shape)


def _reasons(reasons: dict[str, int]) -> str:
    return f" ({', '.join(f'{reason} {count}' for reason, count in reasons.items())})" if reasons else ""


def _price(cost: float | None) -> str:
    return "" if cost is None else f", {cost:.4g} at the price given"
