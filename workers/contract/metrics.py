"""The catalogue of metrics: every name the engine may emit, with unit and meaning. Pages, docs and tests read it."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Literal

Group = Literal["reward", "flow", "staleness", "sync", "loss", "throughput", "evaluation", "time", "samples", "engine", "system"]


@dataclass(frozen=True)
class Metric:
    """One series. `overview` puts it on the run page's first screen."""

    name: str
    title: str
    unit: str
    group: Group
    description: str
    overview: bool = False


def _table(*rows: Metric) -> dict[str, Metric]:
    return {row.name: row for row in rows}


CATALOGUE: dict[str, Metric] = _table(
    Metric(
        "reward/mean", "Train reward", "", "reward", "Mean reward of the samples trained in the step; failed samples are not in it.", True
    ),
    Metric("reward/std", "Reward spread", "", "reward", "Standard deviation of those rewards."),
    Metric(
        "reward/zero_variance_share",
        "Groups of equal rewards",
        "share",
        "reward",
        "Share of the step's groups in which every reward is the same: they teach nothing.",
    ),
    Metric("reward/truncated_share", "Truncated samples", "share", "reward", "Share of samples cut at max_new_tokens."),
    Metric("reward/completion_tokens", "Completion length", "tokens", "reward", "Mean number of tokens a completion."),
    Metric("eval/reward_mean", "Held-out reward", "", "evaluation", "Mean reward on held-out prompts at one pinned version.", True),
    Metric("buffer/depth", "Buffer depth", "units", "flow", "Units (groups or samples) waiting for the trainer.", True),
    Metric("flow/in_flight", "Samples in flight", "samples", "flow", "Samples dispatched and neither buffered, trained, dropped nor lost."),
    Metric("flow/running", "Busy slots", "samples", "flow", "Samples being decoded."),
    Metric(
        "lag/mean", "Lag, mean", "versions", "staleness", "Mean over trained tokens of version trained minus version that sampled.", True
    ),
    Metric("lag/max", "Lag, largest", "versions", "staleness", "Largest lag of a trained token.", True),
    Metric(
        "lag/versions_per_sample", "Versions a sample", "versions", "staleness", "Mean number of policy versions within one trained sample."
    ),
    Metric("sync/pause_s", "Sync pause", "s", "sync", "Extra gap between two decode steps caused by a weight change.", True),
    Metric("sync/latency_s", "Sync latency", "s", "sync", "From the start of a publish until every engine serves the new version.", True),
    Metric("sync/export_s", "Sync: export", "s", "sync", "Trainer writes and hashes the payload."),
    Metric("sync/transfer_s", "Sync: transfer", "s", "sync", "Engines read the payload and check its digest."),
    Metric("sync/apply_s", "Sync: apply", "s", "sync", "From staged until the pointer is flipped."),
    Metric("sync/bytes", "Sync payload", "bytes", "sync", "Bytes of one publish."),
    Metric(
        "sync/merge_survived_share",
        "Merge: survived rounding",
        "share",
        "sync",
        "LoRA merged: sum of min(|change of the rounded weight|, |update|) over sum of |update|. 1: rounding lost nothing of the adapter.",
    ),
    Metric(
        "sync/changed_share", "Delta: changed", "share", "sync", "Payload delta: share of values whose bits changed since the base version."
    ),
    Metric(
        "sync/experts_sent",
        "Experts sent",
        "experts",
        "sync",
        "Payload expert_shards: experts that changed and travelled, over all layers.",
    ),
    Metric("sync/experts", "Experts", "experts", "sync", "Payload expert_shards: experts of the model, over all layers."),
    Metric("loss/policy", "Policy loss", "", "loss", "The aggregated policy loss."),
    Metric("loss/grad_norm", "Gradient norm", "", "loss", "Global norm before clipping.", True),
    Metric("loss/learning_rate", "Learning rate", "", "loss", "Of the optimizer's last step."),
    Metric("loss/entropy", "Entropy", "nats", "loss", "Mean entropy of the trainer's distribution at sampling temperature.", True),
    Metric(
        "loss/clip_share",
        "Clipped tokens",
        "share",
        "loss",
        "Share of loss tokens whose gradient the clip removes, or whose weight it cuts.",
    ),
    Metric(
        "loss/kl_mismatch",
        "Engine/trainer gap (k3)",
        "nats",
        "loss",
        "mean(w - 1 - log w), w = exp(trainer - engine): how far the two disagree about the same tokens.",
        True,
    ),
    Metric(
        "loss/mismatch_mean_abs",
        "Engine/trainer gap",
        "nats",
        "loss",
        "Mean absolute difference of trainer's and engine's log-prob at lag 0 tokens and older alike.",
    ),
    Metric("loss/weight_max", "Largest importance weight", "", "loss", "Largest exp(trainer - engine) before the cap."),
    Metric("loss/ess", "Effective sample share", "share", "loss", "(sum w)^2 / (S sum w^2) over loss tokens."),
    Metric("loss/kl_mismatch_k1", "Engine/trainer gap (k1)", "nats", "loss", "mean(engine - trainer log-prob): may be negative."),
    Metric("loss/weight_mean", "Mean importance weight", "", "loss", "Mean of exp(trainer - engine); 1 where both agree on average."),
    Metric("loss/ess_sequence", "Effective sample share, by sample", "share", "loss", "The same over each sample's product of weights."),
    Metric("loss/chi2", "Chi-squared of the weights", "", "loss", "mean(w^2) - 1, w = exp(trainer - engine)."),
    Metric(
        "loss/perplexity_gap", "Perplexity gap", "nats", "loss", "Mean over samples of mean engine log-prob minus mean trainer log-prob."
    ),
    Metric("loss/perplexity_ratio", "Perplexity ratio", "", "loss", "Mean over samples of exp of that gap: trainer over engine."),
    Metric("loss/probability_gap_max", "Largest probability gap", "", "loss", "Largest |p - q| of a token: trainer against engine."),
    Metric(
        "loss/masked_share", "Masked tokens", "share", "loss", "Completion tokens that are compared but have no loss (truncated, masked)."
    ),
    Metric("loss/rejected_share", "Rejected tokens", "share", "loss", "Share of loss tokens that a correction takes out."),
    Metric("loss/kl_reference", "KL to the reference", "nats", "loss", "Mean k3 of trainer against the model before training."),
    Metric(
        "loss/teacher_gap",
        "Distance to the teacher",
        "nats",
        "loss",
        "reverse_kl: mean of student minus teacher log-prob on the student's tokens. jsd: mean divergence over the vocabulary.",
    ),
    Metric("loss/skipped_steps", "Skipped steps", "steps", "loss", "Optimizer steps skipped for a non-finite loss or gradient, so far."),
    Metric("throughput/samples_per_s", "Samples a second", "1/s", "throughput", "Samples trained a second, over the last step.", True),
    Metric("throughput/tokens_per_s", "Tokens a second", "1/s", "throughput", "Completion tokens trained a second, over the last step."),
    Metric("throughput/decode_tokens_per_s", "Decode rate", "1/s", "throughput", "Tokens the engine produced a second of decoding."),
    Metric("time/step_s", "Step time", "s", "time", "Wall time from one trained batch to the next."),
    Metric("time/decode_step_s", "Decode step", "s", "time", "Mean time of one decode step, over all engines, since the start."),
    Metric("time/decode_step_longest_s", "Longest decode step", "s", "time", "The longest one so far: what a sync pause is measured by."),
    Metric("time/train_s", "Train time", "s", "time", "Forward, backward and optimizer of the step."),
    Metric("time/wait_s", "Trainer waited", "s", "time", "Time the trainer waited for the batch."),
    Metric("samples/trained", "Samples trained", "samples", "samples", "So far."),
    Metric("samples/dropped", "Samples dropped", "samples", "samples", "So far, for whatever reason."),
    Metric("samples/tokens", "Tokens trained", "tokens", "samples", "Completion tokens so far."),
    Metric(
        "samples/tokens_discarded",
        "Tokens thrown away",
        "tokens",
        "samples",
        "Completion tokens generated and not trained because their sample was aborted or recycled, so far.",
    ),
    Metric("system/driver_rss", "Driver memory", "bytes", "system", "Resident memory of the driver."),
    Metric("system/trainer_rss", "Trainer memory", "bytes", "system", "Resident memory of the trainer."),
    Metric("system/generator_rss", "Engine memory", "bytes", "system", "Resident memory of the inference engines."),
    Metric("system/cpu_share", "Processor", "share", "system", "Busy share of all cores of the driver's machine."),
    Metric("system/memory_used", "Memory in use", "bytes", "system", "Of the driver's machine: all that is not available."),
    Metric("system/memory_total", "Memory", "bytes", "system", "Of the driver's machine."),
    Metric("system/disk_free", "Disk left", "bytes", "system", "Free space where the run's folder is."),
)

# Names with a part that each run fills in: the engine's name, the number of a GPU.
PATTERNS: dict[str, Metric] = _table(
    Metric("engine/<engine>/running", "Busy slots", "samples", "engine", "Samples that this engine decodes."),
    Metric("engine/<engine>/waiting", "Waiting requests", "samples", "engine", "Requests that wait for a slot of this engine."),
    Metric("engine/<engine>/version", "Version served", "versions", "engine", "Policy version that this engine draws tokens from."),
    Metric("engine/<engine>/tokens_per_s", "Tokens a second", "1/s", "engine", "Tokens this engine produced a second, over ten seconds."),
    Metric("engine/<engine>/kv_tokens", "Cached tokens", "tokens", "engine", "Positions of running samples with keys and values."),
    Metric("engine/<engine>/kv_share", "Cache in use", "share", "engine", "Those, of the positions that there is room for now."),
    Metric(
        "engine/<engine>/failed_calls",
        "Failed calls",
        "calls",
        "engine",
        "Calls to this engine's server that failed since the start, those that another try made good included; none becomes a sample.",
    ),
    Metric(
        "system/gpu/<index>/memory_used", "GPU memory in use", "bytes", "system", "Of this GPU of the driver's machine, by all processes."
    ),
    Metric("system/gpu/<index>/memory_total", "GPU memory", "bytes", "system", "Of this GPU."),
    Metric("system/gpu/<index>/utilization", "GPU busy", "share", "system", "Share of time in which a kernel ran."),
    Metric("system/gpu/<index>/power_w", "GPU power", "W", "system", "What this GPU draws."),
)
_SHAPES = [(re.compile(re.sub(r"<[a-z]+>", "(.+)", name)), metric) for name, metric in PATTERNS.items()]


def describe(name: str) -> Metric | None:
    """The metric of this name, one with a filled-in part included; its title names that part. None: users' own series."""
    if name in CATALOGUE:
        return CATALOGUE[name]
    for shape, metric in _SHAPES:
        if found := shape.fullmatch(name):
            return replace(metric, name=name, title=f"{metric.title} ({found[1]})")
    return None
