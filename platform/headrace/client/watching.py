"""A run's progress, read from two answers of the API: what a terminal shows in one line. No data is None, never zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from headrace.supervisor.progress import Reading as Progress

LINE_METRICS = ("reward/mean", "sync/latency_s")


def progress_of(snapshot: Mapping[str, Any], results: Mapping[str, float | None]) -> Progress:
    """From GET /runs/{id}/snapshot and the last values of LINE_METRICS."""
    run, state = snapshot["run"], snapshot.get("state") or {}
    flow, buffer, phase = state.get("flow") or {}, state.get("buffer") or {}, snapshot.get("phase") or {}
    latency = results.get("sync/latency_s")
    return Progress(
        state=run["state"],
        step=state.get("step"),
        steps=state.get("steps_total") or run.get("steps_total"),
        reward=results.get("reward/mean"),
        depth=buffer.get("depth"),
        capacity=buffer.get("capacity"),
        lag=(state.get("lag") or {}).get("mean"),
        sync_ms=None if latency is None else latency * 1000,
        samples_per_s=flow.get("train_samples_per_s"),
        phase=phase.get("detail") or phase.get("name"),
        cause=run.get("outcome_cause"),
    )


__all__ = ["LINE_METRICS", "Progress", "progress_of"]
