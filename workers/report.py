"""What the flow tells: events made from records. Pure assembly; nothing here decides anything."""

from __future__ import annotations

import statistics
from collections import Counter
from typing import TYPE_CHECKING, Any

from workers import gauges
from workers.contract.errors import EngineError
from workers.records import Batch, Group, Manifest, Prompt, Sample, StepResult, UpdateReport
from workers.steering import steps_total

if TYPE_CHECKING:
    from workers.emit import Emitter
    from workers.ledger import TimeLedger
    from workers.parts import Parts

SPANS_EVERY_S = 0.2  # quick steps share an event
SAMPLES_A_STEP = 8
SAMPLES_A_GROUP = 2
_THROTTLES = {"wait_buffer_full": "buffer_full", "wait_depth_bound": "depth_bound", "wait_sync": "sync", "paused": "paused"}


def due(step: int, every: int) -> bool:
    return every > 0 and step % every == 0


def step(parts: Parts, batch: Batch, result: StepResult, wait_s: float, step_s: float) -> None:
    """Called after each trained batch: metrics, the lag distribution, a few of its samples."""
    parts.emit.step = parts.progress.step
    samples = [sample for group in batch.groups for sample in group.samples]
    lags = lag_counts(batch.version, samples)
    _remember(parts, samples, lags, step_s)
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    equal = sum(len(set(group.rewards)) == 1 for group in batch.groups)
    tokens = sum(lags.values())
    for group in batch.groups:
        parts.progress.told.add("trained", group, group.samples)
    parts.emit.metrics(
        {
            **result.metrics,
            "reward/mean": statistics.fmean(rewards),
            "reward/std": statistics.pstdev(rewards),
            "reward/zero_variance_share": equal / len(batch.groups),
            "reward/truncated_share": sum(sample.truncated for sample in samples) / len(samples),
            "reward/completion_tokens": tokens / len(samples),
            "lag/mean": sum(lag * count for lag, count in lags.items()) / tokens,
            "lag/max": max(lags),
            "lag/versions_per_sample": sum(sample.rollout.versions_count for sample in samples) / len(samples),
            "throughput/samples_per_s": len(samples) / step_s,
            "throughput/tokens_per_s": tokens / step_s,
            "time/step_s": step_s,
            "time/train_s": result.seconds,
            "time/wait_s": wait_s,
            "samples/trained": parts.samples.trained,
            "samples/dropped": sum(parts.samples.dropped.values()),
            "samples/tokens": parts.progress.tokens_trained,
            "samples/tokens_discarded": parts.samples.effects["tokens_discarded"],
        }
    )
    skips = int(result.metrics.get("loss/skipped_steps", 0))
    skipped = f", optimizer steps skipped for a loss or gradient that was not finite: {skips} so far" if skips else ""
    line = f"step {batch.step}: reward {statistics.fmean(rewards):.3f}, {len(samples)} samples, {tokens} tokens, {step_s:.1f} s{skipped}"
    parts.emit.log("warning" if skips else "info", line)
    parts.emit.emit("lag", {"counts": {str(lag): count for lag, count in sorted(lags.items())}})
    parts.fates.trained(batch)
    groups(parts)
    chosen = [(group, sample) for group in batch.groups for sample in group.samples[:SAMPLES_A_GROUP]][:SAMPLES_A_STEP]
    for group, sample in chosen:
        identity = sample.rollout.id
        sample.advantage = result.advantages.get(identity)
        mask = result.masks.get(identity, [0] * len(sample.rollout.token_ids)) if result.masks else None
        _sample(parts, group.id, group.prompt, sample, "trained", trained=batch.version, logprobs=result.logprobs.get(identity), mask=mask)


def lag_counts(version: int, samples: list[Sample]) -> Counter[int]:
    """Tokens by their lag behind `version`."""
    versions: Counter[int] = Counter()
    for sample in samples:
        drawn = sample.rollout.versions
        if sample.rollout.of_one_version:
            versions[drawn[0]] += len(drawn)
        else:
            versions.update(drawn)
    return Counter({version - drawn: count for drawn, count in versions.items()})


def _remember(parts: Parts, samples: list[Sample], lags: Counter[int], step_s: float) -> None:
    progress = parts.progress
    progress.tokens_trained += sum(lags.values())
    progress.lag_tokens += sum(lags.values())
    progress.lag_sum += sum(lag * count for lag, count in lags.items())
    progress.lag_max = max(progress.lag_max, *lags)
    progress.rewards.append(statistics.fmean(sample.reward for sample in samples if sample.reward is not None))
    progress.step_rate = len(samples) / step_s


def dropped(parts: Parts, group: Group, reason: str) -> None:
    """One sample of a dropped group is shown, with the reason; all are in the figures."""
    parts.progress.told.add(reason, group, group.samples)
    for sample in group.samples[:1]:
        _sample(parts, group.id, group.prompt, sample, "dropped", reason=reason)


def groups(parts: Parts) -> None:
    """Called with every step, before a checkpoint takes the state, and at the end: by name, where samples went since the last call."""
    told = parts.fates.take()
    if told is not None:
        parts.emit.emit("groups", told)


def no_progress(refused: Counter[str], last_fault: str = "") -> EngineError:
    """The failure of a run that drops everything it generates. last_fault: of the last sample that had no reward."""
    reason, count = refused.most_common(1)[0]
    cures = {
        "zero_variance": "the task is too easy or too hard for this model: choose another, or set rewards.zero_variance to keep",
        "stale": "raise staleness.max_lag, lower buffer.depth, or set staleness.depth_bound",
        "recycled": "everything is too old when its turn comes: raise staleness.max_lag, or lower staleness.depth_bound",
        "overwritten": "the trainer is far slower than generation: raise buffer.ring, or choose a bounded buffer",
        "group_incomplete": "verifier or engine fail on nearly every sample: see the failed samples and their errors",
    }
    last = f"; the last sample without a reward: {last_fault}" if last_fault and reason == "group_incomplete" else ""
    return EngineError(
        f"{refused.total()} groups in a row were refused and none was trained, {count} of them as {reason}{last}",
        field="sample_ledger.dropped",
        value=dict(refused),
        cure=cures.get(reason, "see the dropped samples"),
    )


def left(parts: Parts, group: Group, samples: list[Sample], reason: str) -> None:
    """Samples that leave their group: shown with the reason. One whose judgement failed is logged, and is never a reward of 0."""
    parts.progress.told.add(reason, group, samples)
    for sample in samples[:SAMPLES_A_GROUP]:
        if reason in ("scoring_failed", "deadline", "empty", "engine_failed"):
            parts.last_fault = sample.error or ""
            parts.emit.log("warning", f"sample {sample.rollout.id} has no reward: {sample.error}", "scoring")
        _sample(parts, group.id, group.prompt, sample, "failed" if sample.reward is None else "dropped", reason=reason)


def sync(parts: Parts, manifest: Manifest, updates: dict[str, UpdateReport], latency_s: float) -> None:
    """Called after each publish."""
    phases = {
        "export_s": manifest.export_s,
        "transfer_s": max(update.transfer_s for update in updates.values()),
        "apply_s": max(update.apply_s for update in updates.values()),
    }
    pauses = {name: update.pause_s for name, update in updates.items()}
    progress = parts.progress
    progress.pauses.extend(pauses.values())
    progress.sync_bytes += manifest.bytes
    progress.sync_count += 1
    progress.last_sync = {"last_latency_s": latency_s, "last_pause_s": max(pauses.values())}
    parts.emit.emit(
        "sync",
        {
            "version": manifest.version,
            "bytes": manifest.bytes,
            "digest": manifest.digest,
            "transport": manifest.transport,
            "payload": manifest.payload,
            "note": manifest.note,
            "phases": phases,
            "pause_s": pauses,
            "latency_s": latency_s,
        },
    )
    parts.emit.metrics(
        {
            "sync/latency_s": latency_s,
            "sync/pause_s": max(pauses.values()),
            "sync/bytes": manifest.bytes,
            **{f"sync/{name}": value for name, value in {**phases, **manifest.note}.items()},
        }
    )


def evaluation(parts: Parts, prompts: list[Prompt], samples: list[Sample], seconds: float) -> None:
    """Called after each held-out evaluation; failed samples are counted, not averaged."""
    rewards = [sample.reward for sample in samples if sample.reward is not None]
    for prompt, sample in list(zip(prompts, samples, strict=True))[:4]:
        _sample(parts, prompt.id, prompt, sample, "evaluation", trained=parts.progress.version)
    failures = len(samples) - len(rewards)
    if not rewards:
        parts.emit.log(
            "error", f"no sample of the evaluation could be scored: {samples[0].error if samples else 'no prompts'}", "evaluation"
        )
        return
    mean = statistics.fmean(rewards)
    spread = statistics.stdev(rewards) / len(rewards) ** 0.5 if len(rewards) > 1 else 0.0
    parts.progress.evaluations.append(
        {"step": parts.progress.step, "version": parts.progress.version, "mean": mean, "n": len(rewards), "stderr": spread}
    )
    parts.emit.emit(
        "evaluation",
        {
            "version": parts.progress.version,
            "step": parts.progress.step,
            "n": len(rewards),
            "failed": failures,
            "mean": mean,
            "stderr": spread,
            "seconds": seconds,
            "dataset": parts.config.environment.dataset,
        },
    )
    parts.emit.log(
        "info", f"held-out reward {mean:.3f} +- {spread:.3f} at version {parts.progress.version}, {len(rewards)} prompts", "evaluation"
    )
    parts.emit.metrics({"eval/reward_mean": mean})


def state(parts: Parts) -> None:
    """Called every second and after every step: flow, buffer and both ledgers as absolute values."""
    pool, progress, statuses = parts.pool, parts.progress, parts.pool.statuses
    throttle = _THROTTLES.get(pool.blocked or "")
    if throttle is None and parts.waiting_for_batch:
        throttle = "buffer_empty"
    data: dict[str, Any] = {
        "status": "paused" if parts.held else "running",
        "step": progress.step,
        "version": progress.version,
        "steps_total": steps_total(parts),
        "flow": {
            "running": sum(engine.running for engine in statuses.values()) if statuses else None,
            "waiting": sum(engine.waiting for engine in statuses.values()) if statuses else None,
            "slots": pool.slots,
            "in_flight": parts.samples.in_flight,
            "train_samples_per_s": progress.step_rate,
            "versions": dict(pool.versions),
            "throttle": throttle,
            **parts.rates.values,
        },
        "buffer": {
            "depth": gauges.depth(parts),
            "capacity": parts.buffer.capacity,
            "unit": parts.config.buffer.unit,
        },
        "samples": {**parts.samples.as_dict(), "told": progress.told.as_dict()},
        "time": parts.time.as_dict(),
        "lag": {"mean": progress.lag_sum / progress.lag_tokens if progress.lag_tokens else None, "max": progress.lag_max},
        "sync": {"count": progress.sync_count, **progress.last_sync},
    }
    parts.emit.emit("state", data)
    spans(parts.emit, parts.time, SPANS_EVERY_S)


def spans(emit: Emitter, time: TimeLedger, every_s: float = 0.0) -> None:
    """Called with every state, while the pools start, and at the end: what the lanes did since the last call."""
    rows = time.take_spans(every_s)
    if rows:
        emit.emit("spans", {"spans": rows})


async def pulse(parts: Parts, every_s: float) -> None:
    """Called again and again beside the flow: each engine's load and the state as it is, then a wait of `every_s`."""
    await parts.pool.refresh()
    parts.rates.update(parts.clock.now(), parts.pool.statuses, parts.samples)
    gauges.tell(parts)
    state(parts)
    await parts.clock.sleep(every_s)


def _sample(
    parts: Parts,
    group_id: str,
    prompt: Prompt,
    sample: Sample,
    outcome: str,
    *,
    reason: str | None = None,
    trained: int | None = None,
    logprobs: list[float] | None = None,
    mask: list[int] | None = None,
) -> None:
    """`logprobs`: the trainer's; `mask`: as in StepResult.masks, 0 where the sample had no loss. None: not known."""
    rollout = sample.rollout
    parts.emit.emit(
        "sample",
        {
            "group": group_id,
            "prompt_id": prompt.id,
            "index": rollout.index,
            "prompt": prompt.text,
            "completion": sample.text,
            "answer_expected": None if prompt.answer is None else str(prompt.answer),
            "answer_given": sample.answer,
            "reward": sample.reward,
            "advantage": sample.advantage,
            "outcome": outcome,
            "drop_reason": reason,
            "error": sample.error,
            "version_min": min(rollout.versions, default=None),
            "version_max": max(rollout.versions, default=None),
            "version_trained": trained,
            "finish_reason": rollout.finish_reason,
            "tokens": {
                "ids": rollout.token_ids,
                "text": parts.environment.tokens(rollout.token_ids),
                "logprobs": rollout.logprobs,
                "versions": rollout.versions,
                "trainer_logprobs": logprobs,
                "mask": mask,
            },
        },
    )
