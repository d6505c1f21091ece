"""What cannot work together, and what works but is pointless. Called on every resolved config, before anything starts."""

from __future__ import annotations

from collections.abc import Iterator

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError, HeadraceError


def check(config: RunConfig) -> list[HeadraceError]:
    """Every combination that cannot work, each naming field, value and cure. Empty: the run may start."""
    return [*_flow(config), *_strict(config)]


def warnings(config: RunConfig) -> list[HeadraceError]:
    """Combinations that run but do not do what one might think. Shown before launch; they refuse nothing."""
    return [*_pointless_data(config), *_pointless_loss(config), *_pointless_flow(config)]


def _flow(config: RunConfig) -> Iterator[HeadraceError]:
    batch, buffer = config.batch, config.buffer
    if buffer.depth < batch.prompts:
        # It would run, but no batch could be made ready while the trainer works: the pools would take turns.
        yield ConfigError(
            f"the buffer must hold at least one batch of {batch.prompts} groups, or generation stands still while the trainer works",
            field="buffer.depth",
            value=buffer.depth,
            cure=f"set buffer.depth to {batch.prompts} or more, or batch.prompts to {buffer.depth} or less",
        )
    if batch.prompts % batch.minibatches:
        divisors = [n for n in range(1, min(batch.prompts, 64) + 1) if batch.prompts % n == 0]
        yield ConfigError(
            f"minibatches must divide the batch's {batch.prompts} prompts",
            field="batch.minibatches",
            value=batch.minibatches,
            cure=f"set batch.minibatches to one of {', '.join(map(str, divisors))}",
        )
    bound = config.staleness.depth_bound
    if bound is not None:
        one_batch = batch.prompts * batch.group_size
        if bound.value * (one_batch if bound.unit == "batches" else 1) < one_batch:
            # Groups that wait for the rest of their batch are under way, too: the batch would never be complete.
            yield ConfigError(
                f"less than one batch of {one_batch} samples may be under way: no batch would ever be complete",
                field="staleness.depth_bound",
                value=f"{bound.value:g} {bound.unit}",
                cure=f"allow at least 1 batches, or {one_batch} samples",
            )
    if len(set(config.partial)) != len(config.partial):
        yield ConfigError("a kind stands twice", field="partial", value=config.partial, cure="name each kind once")


def _strict(config: RunConfig) -> Iterator[HeadraceError]:
    """Strict mode promises the same bits; each row is something that would change them."""
    if config.determinism != "strict":
        return
    rows = (
        ("model.dtype", config.model.dtype, config.model.dtype == "float32", "float32"),
        ("staleness.max_lag", config.staleness.max_lag, config.staleness.max_lag == 0, "0"),
        ("rollout.engines", config.rollout.engines, config.rollout.engines == 1, "1"),
        ("rollout.threads", config.rollout.threads, config.rollout.threads <= 1, "1"),
        ("backend.threads", config.backend.threads, config.backend.threads <= 1, "1"),
    )
    for field, value, holds, wanted in rows:
        if not holds:
            yield ConfigError(
                f"strict determinism needs {wanted}", field=field, value=value, cure=f"set {field} to {wanted}, or determinism to fast"
            )
    bound = config.staleness.depth_bound
    groups = None if bound is None else bound.value * (config.batch.prompts if bound.unit == "batches" else 1 / config.batch.group_size)
    if groups != config.batch.prompts:
        # Otherwise dispatch runs ahead, and which samples are dropped as stale hangs on the clock.
        yield ConfigError(
            "strict determinism needs exactly one batch under way",
            field="staleness.depth_bound",
            value="none" if bound is None else f"{bound.value:g} {bound.unit}",
            cure='set staleness.depth_bound to {"value": 1, "unit": "batches"}, or determinism to fast',
        )
    if config.budget.wall_s is not None:
        yield ConfigError(
            "a time limit ends a run at a different step each time, which strict determinism rules out",
            field="budget.wall_s",
            value=config.budget.wall_s,
            cure="set budget.wall_s to null and bound the run by budget.steps, or determinism to fast",
        )


def _pointless_data(config: RunConfig) -> Iterator[HeadraceError]:
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
        if truncates:
            yield ConfigError(
                "the engine's log-probs are of the cut distribution, the trainer's of the full vocabulary: importance weights are biased",
                field=field,
                value=value,
                cure=f"set {field} to {off}",
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


def _pointless_loss(config: RunConfig) -> Iterator[HeadraceError]:
    loss, batch, optimizer = config.loss, config.batch, config.optimizer
    if loss.policy == "ppo" and loss.anchor == "rollout" and loss.tis_cap is not None:
        yield ConfigError(
            "with the ratio anchored at the engine's log-probs, the importance weight corrects the same gap a second time",
            field="loss.tis_cap",
            value=loss.tis_cap,
            cure="set loss.tis_cap to null, or loss.anchor to old",
        )
    if loss.dual_clip is not None and loss.policy != "ppo":
        yield ConfigError(
            "has no effect: only ppo has a dual clip", field="loss.dual_clip", value=loss.dual_clip, cure="set loss.dual_clip to null"
        )
    elif loss.dual_clip is not None and loss.anchor == "old" and batch.minibatches * batch.epochs == 1:
        yield ConfigError(
            "has no effect: with one optimizer step a batch the ratio to the old log-probs is always 1",
            field="loss.dual_clip",
            value=loss.dual_clip,
            cure="set loss.dual_clip to null, or batch.minibatches to 2 or more",
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


def _pointless_flow(config: RunConfig) -> Iterator[HeadraceError]:
    batch, rollout = config.batch, config.rollout
    lag = expected_lag(config)
    if config.staleness.over_limit == "drop" and lag > config.staleness.max_lag > 0:
        yield ConfigError(
            f"with this buffer and this many slots a waiting group grows up to {lag} versions old: many groups will be dropped",
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
    if config.sync.every_steps >= config.budget.steps > 1:
        yield ConfigError(
            "the engine never gets new weights before the run ends",
            field="sync.every_steps",
            value=config.sync.every_steps,
            cure=f"set sync.every_steps under {config.budget.steps}",
        )
    if config.transport.kind == "shared_memory" and rollout.engines > 1 and config.orchestration.kind == "ray":
        yield ConfigError(
            "shared memory reaches only engines on the trainer's host: the cluster must place them all there",
            field="transport.kind",
            value=config.transport.kind,
            cure="set transport.kind to filesystem for a cluster of several hosts",
        )


def expected_lag(config: RunConfig) -> int:
    """Versions published while the buffer and every slot drain ahead of a group: the lag of a balanced run at its oldest."""
    groups_in_flight = -(-config.rollout.max_running * config.rollout.engines // config.batch.group_size)
    batches_ahead = -(-(config.buffer.depth + groups_in_flight) // config.batch.prompts)
    return -(-batches_ahead * config.batch.minibatches * config.batch.epochs // config.sync.every_steps)
