"""Combinations that run but do not do what one might think: each rule names the field and the cure, and refuses nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from workers.contract import loss_rules
from workers.contract.bounds import expected_lag
from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

Faults = Iterator[ConfigError]


def data(config: RunConfig) -> Faults:
    environment, batch, sampling = config.environment, config.batch, config.sampling
    if environment.size < batch.prompts:
        yield ConfigError(
            f"one batch takes {batch.prompts} prompts, more than there are: prompts repeat within a batch",
            field="environment.size",
            value=environment.size,
            cure=f"set environment.size to {batch.prompts} or more",
        )
    if not environment.dataset.endswith(".jsonl") and environment.verifier != "exact":
        yield ConfigError(
            "has no effect: reasoning-gym datasets bring their own verifier",
            field="environment.verifier",
            value=environment.verifier,
            cure="leave it at exact, or give a .jsonl file as environment.dataset",
        )
    truncating = (
        ("sampling.top_k", sampling.top_k, sampling.top_k != 0, 0),
        ("sampling.top_p", sampling.top_p, sampling.top_p != 1.0, 1),
        ("sampling.min_p", sampling.min_p, sampling.min_p != 0.0, 0),
    )
    for field, value, truncates, off in truncating:
        if truncates and not config.replay.sampling_mask:
            yield ConfigError(
                "the engine's log-probs are of the cut distribution, the trainer's of the full vocabulary: importance weights are biased",
                field=field,
                value=value,
                cure=f"set replay.sampling_mask to true, or {field} to {off}",
            )
    if config.replay.sampling_mask and not any(truncates for _, _, truncates, _ in truncating):
        yield ConfigError(
            "has no effect: nothing is cut from the distribution",
            field="replay.sampling_mask",
            value=True,
            cure="set sampling.top_p below 1, or replay.sampling_mask to false",
        )
    if sampling.temperature < 0.1:
        yield ConfigError(
            "nearly greedy: the completions of a group are mostly the same, and equal rewards teach nothing",
            field="sampling.temperature",
            value=sampling.temperature,
            cure="set sampling.temperature to 0.5 or more",
        )
    if config.evaluation.every_steps == 0 and not config.evaluation.at_start and not config.evaluation.at_end:
        yield ConfigError(
            "there will be no held-out score",
            field="evaluation.every_steps",
            value=0,
            cure="set evaluation.at_end to true",
        )


def learning(config: RunConfig) -> Faults:
    batch, optimizer = config.batch, config.optimizer
    if config.lora.kind == "off" and optimizer.learning_rate > 1e-4:
        yield ConfigError(
            "a step of this size is meant for adapters; on all weights of a model it mostly destroys",
            field="optimizer.learning_rate",
            value=optimizer.learning_rate,
            cure="set optimizer.learning_rate to 2e-5 or less",
        )
    if config.lora.kind == "merged" and config.model.dtype == "bfloat16":
        yield ConfigError(
            "a small update is mostly lost when it is rounded into bfloat16 weights: the engine lags behind the trainer unseen",
            field="lora.kind",
            value="merged",
            cure="set lora.kind to adapter_only, or model.dtype to float32; sync/merge_survived_share shows what is left",
        )
    if config.replay.routing == "r2" and batch.minibatches * batch.epochs == 1:
        yield ConfigError(
            "has no effect: with one optimizer step a batch the trainer's routing is the same in both passes",
            field="replay.routing",
            value="r2",
            cure="set replay.routing to r3 or off, or batch.minibatches to 2 or more",
        )
    if optimizer.warmup_steps >= config.budget.steps and optimizer.warmup_steps:
        yield ConfigError(
            f"the run ends after {config.budget.steps} steps, before the learning rate is reached",
            field="optimizer.warmup_steps",
            value=optimizer.warmup_steps,
            cure=f"set optimizer.warmup_steps under {config.budget.steps}",
        )
    if config.sampling.max_new_tokens > batch.micro_tokens:
        yield ConfigError(
            f"a single completion of {config.sampling.max_new_tokens} tokens is larger than the micro-batch: its memory bound cannot hold",
            field="batch.micro_tokens",
            value=batch.micro_tokens,
            cure=f"set batch.micro_tokens above {config.sampling.max_new_tokens}",
        )


def bounds(config: RunConfig) -> Faults:
    """Of samples and tokens, which a run may end at before or instead of its steps."""
    batch, budget = config.batch, config.budget
    a_batch = batch.prompts * batch.group_size
    longest = a_batch * config.sampling.max_new_tokens
    for name, limit, most in (("samples", budget.samples, a_batch), ("tokens", budget.tokens, longest)):
        if limit is not None and limit > budget.steps * most:
            yield ConfigError(
                f"is never reached: {budget.steps} steps train at most {budget.steps * most} {name}",
                field=f"budget.{name}",
                value=limit,
                cure=f"raise budget.steps, or set budget.{name} to null",
            )
    if budget.samples is not None and budget.samples < a_batch:
        yield ConfigError(
            f"the run ends after one step all the same: a batch is {a_batch} samples, and the step that reaches the limit is finished",
            field="budget.samples",
            value=budget.samples,
            cure=f"set budget.samples to a multiple of {a_batch}",
        )


def flow(config: RunConfig) -> Faults:
    batch, rollout = config.batch, config.rollout
    lag = expected_lag(config)
    if config.staleness.over_limit in ("drop", "recycle") and lag is not None and lag > config.staleness.max_lag > 0:
        yield ConfigError(
            f"with this buffer and this many slots a waiting group grows up to {lag} versions old: many groups will be thrown away",
            field="staleness.max_lag",
            value=config.staleness.max_lag,
            cure=f"set staleness.max_lag to {lag} or more, or lower buffer.depth",
        )
    if rollout.max_running * rollout.engines < batch.group_size:
        yield ConfigError(
            f"fewer slots than a group of {batch.group_size} has samples: groups are generated in several rounds",
            field="rollout.max_running",
            value=rollout.max_running,
            cure=f"set rollout.max_running to {batch.group_size} or more",
        )
    if rollout.remote is not None and rollout.engine != "remote":
        yield ConfigError(
            f"has no effect: the engine is {rollout.engine}, which runs here",
            field="rollout.remote",
            value=f"{len(rollout.remote.urls)} address(es)",
            cure="set rollout.engine to remote, or rollout.remote to null",
        )
    if config.sync.every_steps >= config.budget.steps > 1:
        yield ConfigError(
            "the engine never gets new weights before the run ends",
            field="sync.every_steps",
            value=config.sync.every_steps,
            cure=f"set sync.every_steps under {config.budget.steps}",
        )
    one_host = config.transport.kind in ("shared_memory", "collective", "collective_bucketed", "http")
    if one_host and rollout.engines > 1 and config.orchestration.kind == "ray":
        yield ConfigError(
            f"{config.transport.kind} reaches only engines on the trainer's host: the cluster must place them all there",
            field="transport.kind",
            value=config.transport.kind,
            cure="set transport.kind to filesystem or object_store for a cluster of several hosts",
        )


RULES: tuple[Callable[[RunConfig], Faults], ...] = (data, learning, loss_rules.pointless, flow, bounds)
