"""Before a resume: which checkpoint it goes on from, what comes back, what is made again and what is lost. Reads only.

Called by the preview page and its JSON. What cannot be known from here (a folder on another machine, a checkpoint whose event never
came) is said to be unknown, never guessed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from django.utils import timezone

from headrace.experiments import selectors
from headrace.experiments.budget import budget_of, used_of, used_up
from headrace.experiments.models import Artifact, Attempt, Run
from headrace.telemetry.models import LatestState, Series

LARGEST_DRIVER_STATE = 32 * 1024 * 1024
WHAT = {
    "adapter_model.safetensors": ("weights", "the adapter's weights"),
    "model.safetensors": ("weights", "every weight of the model"),
    "optimizer.safetensors": ("optimizer", "the optimizer's moments"),
    "trainer.json": ("counters", "the trainer's counters and learning-rate position"),
    "driver.json": ("flow", "data cursor, sample ledger, policy version and buffer"),
}


def preview(run: Run) -> dict[str, Any]:
    """Everything the page says before the button: checkpoint, restored, again, lost, attempts, ended, budget."""
    attempts = list(selectors.attempts_of(run).select_related("resumed_from"))
    checkpoint = _checkpoint(run)
    manifest, driver = _read(checkpoint)
    used = used_of(run)
    budget = budget_of(run)
    return {
        "checkpoint": _facts(checkpoint, manifest),
        "restored": _restored(manifest, driver),
        "again": _again(driver),
        "lost": _lost(run, checkpoint, used.steps),
        "attempts": [_attempt(attempt) for attempt in attempts],
        "next_attempt": attempts[-1].number + 1 if attempts else 1,
        "ended": _ended(run, attempts),
        "config_digest": run.config.digest,
        "checkpoint_digest": (manifest or {}).get("config_digest"),
        "budget": {"steps": budget.steps, "wall_s": budget.wall_s, "config_steps": budget.config_steps},
        "done_steps": used.steps,
        "used_up": used_up(run),
        "suggested_steps": max(budget.steps, used.steps) + max(1, budget.config_steps // 2),
    }


def _checkpoint(run: Run) -> Artifact | None:
    rows = Artifact.objects.for_team(run.team_id).filter(run=run, kind=Artifact.Kind.CHECKPOINT, state=Artifact.State.COMPLETE)
    return rows.select_related("attempt").order_by("attempt__number", "step", "pk").last()


def _read(checkpoint: Artifact | None) -> tuple[dict[str, Any] | None, dict[str, Any] | None]:
    """The manifest and the driver's state, where this machine holds the attempt's folder; None where it does not."""
    if checkpoint is None or checkpoint.attempt is None or not checkpoint.attempt.out_dir:
        return None, None
    root = Path(checkpoint.attempt.out_dir).resolve()
    folder = (root / checkpoint.path).resolve()
    if not folder.is_relative_to(root):  # the path came in with an event: nothing outside the attempt's folder is opened
        return None, None
    manifest = _json(folder / "MANIFEST.json")
    return manifest, _json(folder / "driver.json") if manifest is not None else None


def _json(path: Path) -> dict[str, Any] | None:
    try:
        if path.stat().st_size > LARGEST_DRIVER_STATE:
            return None
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _facts(checkpoint: Artifact | None, manifest: dict[str, Any] | None) -> dict[str, Any] | None:
    if checkpoint is None:
        return None
    return {
        "step": checkpoint.step,
        "version": checkpoint.version,
        "bytes": checkpoint.bytes,
        "at": checkpoint.created_at.isoformat(),
        "age_s": (timezone.now() - checkpoint.created_at).total_seconds(),
        "attempt": checkpoint.attempt.number if checkpoint.attempt else None,
        "folder": Path(checkpoint.path).name,
        "here": manifest is not None,
    }


def _restored(manifest: dict[str, Any] | None, driver: dict[str, Any] | None) -> list[dict[str, Any]]:
    if manifest is None:
        return []
    files = manifest.get("files") if isinstance(manifest.get("files"), dict) else {}
    rows = [
        {"name": WHAT[name][0], "words": WHAT[name][1], "bytes": fact.get("bytes") if isinstance(fact, dict) else None}
        for name, fact in files.items()
        if name in WHAT
    ]
    if driver is not None:
        buffer = driver.get("buffer")
        ledger = driver.get("samples") if isinstance(driver.get("samples"), dict) else {}
        rows.append({"name": "buffer", "words": f"{len(buffer) if isinstance(buffer, list) else 'an unknown number of'} groups that wait"})
        rows.append({"name": "ledger", "words": f"{ledger.get('trained', 'an unknown number of')} samples trained so far"})
    rows.append({"name": "random numbers", "words": "each prompt's seed comes from the run's seed and its place, so the same ones follow"})
    return rows


def _again(driver: dict[str, Any] | None) -> list[str]:
    if driver is None:
        return ["What was in flight when the checkpoint was written is generated again; how much is not known from here."]
    groups = driver.get("under_way") if isinstance(driver.get("under_way"), list) else []
    slots = sum(len(group.get("slots") or []) for group in groups if isinstance(group, dict))
    words = f"{len(groups)} groups were in flight when it was written: their {slots} unfinished samples are generated again."
    return [words if groups else "Nothing was in flight when it was written.", "The engines start anew and get the restored weights."]


def _lost(run: Run, checkpoint: Artifact | None, done: int) -> dict[str, Any]:
    """Steps, tokens and minutes after the checkpoint; None: not known."""
    from_step = checkpoint.step if checkpoint is not None and checkpoint.step is not None else 0
    steps = max(0, done - from_step)
    latest = LatestState.objects.for_team(run.team_id).filter(attempt__run=run).order_by("-attempt__number").first()
    seconds = tokens = None
    if latest is not None and latest.t is not None:
        mark = latest.checkpoint or {}
        if checkpoint is not None and mark.get("step") == checkpoint.step and checkpoint.attempt_id == latest.attempt_id:
            seconds = max(0.0, latest.t - float(mark.get("t") or latest.t))
        tokens = _tokens_since(latest.attempt, from_step)
    return {"steps": steps, "seconds": seconds if steps else 0.0, "tokens": tokens if steps else 0}


def _tokens_since(attempt: Attempt, step: int) -> int | None:
    from headrace.telemetry import series

    if not Series.objects.for_team(attempt.team_id).filter(attempt=attempt, name="samples/tokens").exists():
        return None
    columns = series.read(attempt.run, ["samples/tokens"], x="step", lo=float(step), buckets=2000).get("samples/tokens")
    if not columns or not columns.get("value"):
        return None
    rows = zip(columns["step"], columns["value"], strict=True)
    kept = [(at, value) for at, value in rows if isinstance(value, int | float)]
    if not kept:
        return None
    before = [value for at, value in kept if at <= step]
    return int(kept[-1][1] - (before[-1] if before else 0))


def _attempt(attempt: Attempt) -> dict[str, Any]:
    resumed = attempt.provenance.get("resumed_from") if isinstance(attempt.provenance, dict) else None
    return {
        "number": attempt.number,
        "state": attempt.state,
        "started": attempt.started_at.isoformat() if attempt.started_at else None,
        "ended": attempt.ended_at.isoformat() if attempt.ended_at else None,
        "from_step": resumed.get("step") if isinstance(resumed, dict) else None,
        "why": (attempt.exit_cause or {}).get("message", ""),
    }


def _ended(run: Run, attempts: list[Attempt]) -> dict[str, Any]:
    cause = run.outcome_cause or (attempts[-1].exit_cause if attempts else None) or {}
    return {"state": run.state, "message": cause.get("message", ""), "cure": cause.get("cure") or "", "retryable": cause.get("retryable")}
