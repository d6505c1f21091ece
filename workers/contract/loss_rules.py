"""Which parts of the loss block cannot go together, and which have no effect. Called through `compat`."""

from __future__ import annotations

from collections.abc import Iterator

from workers.contract.config import RunConfig
from workers.contract.errors import ConfigError

Faults = Iterator[ConfigError]
TO_ROLLOUT = ("dppo", "ipo", "topr", "reinforce_is")  # these take their ratio to the engine's policy whatever the anchor


def refused(config: RunConfig) -> Faults:
    loss, rewards = config.loss, config.rewards
    if loss.anchor == "decoupled" and loss.policy in ("kimi", *TO_ROLLOUT):
        yield ConfigError(
            f"{loss.policy} has no clip that could be decoupled: the engine's ratio would be weighed twice",
            field="loss.anchor",
            value=loss.anchor,
            cure="set loss.anchor to old, or loss.policy to ppo",
        )
    if loss.proximal == "loglinear" and loss.anchor != "decoupled":
        yield ConfigError(
            "only the decoupled anchor has a proximal policy",
            field="loss.proximal",
            value=loss.proximal,
            cure="set loss.proximal to recompute, or loss.anchor to decoupled",
        )
    if rewards.on_truncated == "penalise":
        if loss.advantage == "max_rl":
            yield ConfigError(
                "a penalty can make a group's mean negative, and dividing by it turns every advantage round",
                field="loss.advantage",
                value=loss.advantage,
                cure="set loss.advantage to grpo, or rewards.on_truncated to keep, mask or drop",
            )
        if rewards.overlong_tokens >= config.sampling.max_new_tokens:
            yield ConfigError(
                f"the overlong zone is no smaller than the limit of {config.sampling.max_new_tokens} tokens: everything is penalised",
                field="rewards.overlong_tokens",
                value=rewards.overlong_tokens,
                cure="set it under sampling.max_new_tokens",
            )
    if loss.distillation is not None and loss.distillation.replace_reward and rewards.zero_variance != "keep":
        yield ConfigError(
            "the teacher alone teaches, and groups of equal rewards would be thrown away",
            field="rewards.zero_variance",
            value=rewards.zero_variance,
            cure="set rewards.zero_variance to keep",
        )
    for number, correction in enumerate(loss.corrections):
        if correction.lo is None and correction.hi is None and correction.action != "clip":
            yield ConfigError(
                f"{correction.action} without a bound rejects nothing",
                field=f"loss.corrections.{number}.hi",
                value=None,
                cure="give lo or hi, or take the correction out",
            )


Row = tuple[bool, str, object, str, str]  # whether it holds, field, value, what it means, the cure


def pointless(config: RunConfig) -> Faults:
    yield from _counted_twice(config)
    for holds, field, value, message, cure in (*_ratios(config), *_terms(config)):
        if holds:
            yield ConfigError(message, field=field, value=value, cure=cure)


def _ratios(config: RunConfig) -> tuple[Row, ...]:
    """Clips and caps that never bite."""
    loss, batch = config.loss, config.batch
    one_step = batch.minibatches * batch.epochs == 1
    return (
        (
            loss.dual_clip is not None and loss.policy != "ppo",
            "loss.dual_clip",
            loss.dual_clip,
            "has no effect: only ppo has a dual clip",
            "set loss.dual_clip to null",
        ),
        (
            loss.dual_clip is not None and loss.policy == "ppo" and loss.anchor != "rollout" and one_step,
            "loss.dual_clip",
            loss.dual_clip,
            "has no effect: with one optimizer step a batch the ratio to the old log-probs is always 1",
            "set loss.dual_clip to null, or batch.minibatches to 2 or more",
        ),
        (
            loss.ratio_cap is not None and loss.policy != "ppo",
            "loss.ratio_cap",
            loss.ratio_cap,
            "has no effect: only ppo caps its ratio",
            "set loss.ratio_cap to null",
        ),
        (
            loss.cap is not None and loss.policy not in ("cispo", "topr", "reinforce_is"),
            "loss.cap",
            loss.cap,
            f"has no effect: {loss.policy} has no weight to cap",
            "set loss.cap to null",
        ),
        (
            loss.policy == "kimi" and loss.anchor == "old" and one_step,
            "loss.anchor",
            loss.anchor,
            "the squared log-ratio to the old policy has no gradient in the only optimizer step of a batch",
            "set loss.anchor to rollout, or batch.minibatches to 2 or more",
        ),
        (
            loss.policy == "gspo" and max(loss.clip_low, loss.clip_high) >= 0.05,
            "loss.clip_low",
            loss.clip_low,
            "a sequence's mean ratio hardly ever leaves so wide a band: nothing is clipped",
            "set loss.clip_low to 3e-4 and loss.clip_high to 4e-4, as its authors do",
        ),
        (
            loss.policy == "gspo" and loss.aggregation == "token_mean",
            "loss.aggregation",
            loss.aggregation,
            "gspo compares whole sequences: by tokens, long ones weigh more",
            "set loss.aggregation to sequence_mean",
        ),
    )


def _terms(config: RunConfig) -> tuple[Row, ...]:
    """KL and teacher where they do nothing, or cost more than one might think."""
    loss = config.loss
    return (
        (
            loss.kl is not None and loss.kl.coefficient == 0,
            "loss.kl",
            0,
            "a KL term of weight 0 costs a forward pass and does nothing",
            "set loss.kl to null",
        ),
        (
            loss.kl is not None and loss.kl.estimator == "k1" and loss.kl.where == "loss",
            "loss.kl.estimator",
            "k1",
            "as a loss, k1's gradient has mean zero: it pulls nowhere",
            "set loss.kl.estimator to k2, k3_plus or k3_weighted, or loss.kl.where to reward",
        ),
        (
            loss.kl is not None and loss.kl.estimator == "k3_weighted" and loss.kl.where == "reward",
            "loss.kl.estimator",
            "k3_weighted",
            "in the reward the ratio is 1: it is k3",
            "set loss.kl.estimator to k3",
        ),
        (
            loss.kl is not None and config.lora.kind == "off",
            "loss.kl",
            "with lora.kind off",
            "the reference is a second copy of the model in the trainer's memory",
            "set loss.kl to null, or train adapters, whose reference costs nothing",
        ),
        (
            loss.distillation is not None and loss.distillation.kind == "jsd" and config.replay.sampling_mask,
            "loss.distillation.kind",
            "jsd",
            "the divergence stays over the full vocabulary, whatever sampling had left",
            "set loss.distillation.kind to reverse_kl",
        ),
    )


def _counted_twice(config: RunConfig) -> Faults:
    loss = config.loss
    if loss.anchor == "old" and loss.policy not in TO_ROLLOUT:
        return
    weights = [correction for correction in loss.corrections if correction.action in ("clip", "mask")]
    if weights:
        yield ConfigError(
            "the loss already weighs by the ratio to the engine's policy: this correction counts the same gap a second time",
            field="loss.corrections",
            value=[correction.model_dump(mode="json") for correction in weights],
            cure="set loss.corrections to [], give it the action gate or drop_row, or set loss.anchor to old",
        )
