"""The load of engines and buffer, second by second, as series."""

from __future__ import annotations

from typing import TYPE_CHECKING

from workers.records import EngineStatus, Group

if TYPE_CHECKING:
    from workers.parts import Parts

MOST_ENGINES = 64  # with series of their own


def tell(parts: Parts) -> None:
    """Called every second: what changes between two steps and matters there."""
    statuses = parts.pool.statuses.values()
    values: dict[str, float] = {
        "buffer/depth": depth(parts),
        "flow/in_flight": parts.samples.in_flight,
        "flow/running": sum(engine.running for engine in statuses),
        "system/generator_rss": sum(engine.rss for engine in statuses),
    }
    steps = sum(engine.decode_steps for engine in statuses)
    if steps:
        values["time/decode_step_s"] = sum(engine.decode_s for engine in statuses) / steps
        values["time/decode_step_longest_s"] = max(engine.longest_decode_s for engine in statuses)
    if "decode_tokens_per_s" in parts.rates.values:
        values["throughput/decode_tokens_per_s"] = parts.rates.values["decode_tokens_per_s"]
    for name in list(parts.pool.engines)[:MOST_ENGINES]:
        if name in parts.pool.statuses:
            values.update(_engine(parts, name, parts.pool.statuses[name]))
    parts.emit.metrics(values)


def _engine(parts: Parts, name: str, status: EngineStatus) -> dict[str, float]:
    """One engine's gauges. The version is the one that its tokens are drawn from now."""
    values: dict[str, float] = {
        f"engine/{name}/running": status.running,
        f"engine/{name}/waiting": status.waiting,
        f"engine/{name}/version": status.version,
    }
    if name in parts.rates.engines:
        values[f"engine/{name}/tokens_per_s"] = parts.rates.engines[name]
    if status.failed_calls is not None:
        values[f"engine/{name}/failed_calls"] = status.failed_calls
    if status.kv_tokens is not None:
        values[f"engine/{name}/kv_tokens"] = status.kv_tokens
        if status.kv_capacity:
            values[f"engine/{name}/kv_share"] = status.kv_tokens / status.kv_capacity
    return values


def depth(parts: Parts) -> int:
    """How much waits in the buffer, in its units. One that holds nothing names for a moment what it hands over: that is the trainer's."""
    return 0 if parts.buffer.capacity == 0 else units(parts, parts.buffer.contents())


def units(parts: Parts, groups: list[Group]) -> int:
    """How many of the buffer's units these groups are."""
    return len(groups) if parts.config.buffer.unit == "group" else sum(len(group.samples) for group in groups)
