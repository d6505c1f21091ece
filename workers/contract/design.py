"""A config's place in the design space: its kind on every axis. Called by lists of presets and by the pages that compare runs."""

from __future__ import annotations

from workers.contract.axes import AXES
from workers.contract.config import RunConfig

# Where a config names the kind of an axis.
FIELDS: dict[str, str] = {
    "orchestration": "orchestration.kind",
    "buffer": "buffer.kind",
    "transport": "transport.kind",
    "payload": "transport.payload",
    "interrupt": "interrupt.kind",
    "staleness": "staleness.over_limit",
    "partial": "partial",
    "lora": "lora.kind",
    "backend": "backend.kind",
    "rollout": "rollout.engine",
}


def kinds(config: RunConfig) -> dict[str, list[str]]:
    """{axis: its kinds}, in the order of `axes.AXES`; only `partial` may have more than one."""
    found: dict[str, list[str]] = {}
    for axis in AXES:
        value: object = config
        for part in FIELDS[axis].split("."):
            value = getattr(value, part)
        found[axis] = [str(kind) for kind in value] if isinstance(value, list) else [str(value)]
    return found
